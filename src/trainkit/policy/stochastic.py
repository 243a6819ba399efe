"""`StochasticPolicy`, the base of policies that act by a distribution of actions: PPO, A2C, REINFORCE, SAC and BC."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor

from trainkit.core import tree
from trainkit.core.assignments import Elsewhere, fixed_options
from trainkit.core.data import POLICY_ACTION, ActOutput, Obs, is_finite
from trainkit.core.errors import ConfigError, DivergedError, SpaceMismatchError, check_flag
from trainkit.core.schedules import Schedule
from trainkit.core.signatures import read_only
from trainkit.core.spaces import checked_legal, zeros_of
from trainkit.core.stats import NO_VALUES, Summary
from trainkit.engine.device import CPU, to_device
from trainkit.engine.loss import legal_mask
from trainkit.nets.action_scale import Actions
from trainkit.nets.distributions import Categorical, Distribution
from trainkit.policy.base import Policy
from trainkit.policy.checks import forward_on
from trainkit.policy.exploration import one_hot
from trainkit.policy.noise import EnvIds, Noise, NoiseSequences, Starts
from trainkit.policy.statistics import ActionStd


@read_only
@fixed_options(
    *("activation", "clip", "encoder", "flush_denormals", "hidden", "max_grad_norm", "norm", "normalize_obs"),
    *("optimizer", "recurrent", "reward"),
)
class StochasticPolicy(Policy):
    """Base class of policies whose actor's outputs are the parameters of a distribution of actions.

    A subclass sets `distribution` and defines `_actor_outputs`.

    Attributes:
        distribution: of actions, those of a Box in policy units.
    """

    unwatched: ClassVar[frozenset[str]] = frozenset({"_action_std", "_noise_sequences"})
    learning_rate = Elsewhere("policy.lr = 1e-4 is for updates that follow")
    distribution: Distribution
    _action_std: ActionStd | None = None  # of sampled actions, where they are reported
    _noise_sequences: NoiseSequences | None = None

    @property
    def _noise_std(self) -> Schedule | None:
        """What noise is multiplied by, where the distribution does not do it itself."""
        return None

    def _actor_outputs(self, features: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the parameters [B, width] of the distribution, and further outputs by name."""
        raise NotImplementedError

    def act(
        self,
        obs: Obs,
        *,
        step: int = 0,
        explore: bool = False,
        state: Any = None,
        starts: NDArray[np.bool_] | None = None,
        env_ids: NDArray[np.intp] | None = None,
    ) -> ActOutput:
        """Sample an action of each row's distribution or, without exploring, take its mode.

        Correlated noise (`exploration`) follows the environment `env_ids` of each row, by default its index; a call
        with neither `env_ids` nor `starts`, as by `predict`, draws independent noise.
        """
        check_flag(self, "act(explore=)", explore)
        obs = self._rows_to_act_on(obs, env_ids)
        checked_legal(obs, env_ids)
        self.enter(training=False)
        n_rows = len(tree.first_leaf(obs))
        correlated = self._correlated_noise(n_rows, env_ids, starts) if explore else None
        draw = partial(self.distribution.draw_noise, n_rows, self.generator) if explore else None
        carried = self._network_state.carry(state, n_rows, starts, env_ids)
        std = None if self._noise_std is None else self._noise_std(step)
        results = self._engine.call("act", self._act, (obs, correlated, std, carried.rows, None), draw=draw)
        outputs = results["outputs"]
        if explore and self._action_std is not None:
            self._action_std.add(outputs)
        numbers = results["log_prob"] + results["value"] if "log_prob" in results else outputs.sum(axis=1)
        if not is_finite(numbers):
            row = int(np.argmin(np.isfinite(numbers)))
            env = row if env_ids is None else int(env_ids[row])
            raise DivergedError(f"{type(self).__name__} gives {outputs[row].tolist()} for env {env} at step {step}")
        return ActOutput(*self._output({**results, **carried.columns}), carried.after(results))

    def act_on_device(self, obs: Any, *, explore: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        """Act as `act` does, on tensors [K, ...] on the policy's device, without waiting for it.

        Returns:
            (actions [K, ...] in the units of the space, columns of `extras_spec`), which nothing has checked: of a row
            that is not finite, or whose mask allows no action, log_prob or value is not finite.
        """
        if self.state_size > 0:
            raise ConfigError(f"{type(self).__name__}.act_on_device carries no state: collect with a Collector")
        self.enter(training=False)
        draw = partial(self.distribution.draw_noise, len(tree.first_leaf(obs)), self.generator) if explore else None
        std = None if self._noise_std is None else self._noise_std(self.last_step)
        with torch.no_grad():
            if self.device == CPU:  # where nothing waits, and the engine is faster
                given = tree.map_tree(np.asarray, obs), None, std, (), None
                arrays = self._engine.call("act", self._act, given, draw=draw)
                results = {name: torch.from_numpy(column) for name, column in arrays.items()}
            else:
                results = self._engine.call_on_device("act", self._act, (obs, None, std, (), None), draw=draw)
            if explore and self._action_std is not None:
                self._action_std.add(results["outputs"])
            return self._output(results)

    def _output(self, results: Mapping[str, Actions]) -> tuple[Actions, dict[str, Actions]]:
        """Return the actions in the units of the space, and the columns to store."""
        stored = {**results, POLICY_ACTION: results["action"]}
        return self._in_space(results["action"]), {name: stored[name] for name in self._extras_spec}

    def _act(self, given: Any) -> dict[str, Tensor]:
        """Act on raw observations with noise on the device; actions of a Box are in policy units.

        The noise is [K, N] or None; correlated noise [K, D] replaces its last columns, a normal distribution's, and
        `std` is a number to multiply it by, or None.
        """
        obs, correlated, std, state, noise = given
        if correlated is not None:
            noise = torch.cat([noise[:, : -correlated.shape[1]], correlated], dim=1)
        if std is not None and noise is not None:
            noise = std * noise
        legal, family = legal_mask(obs), self.distribution
        (outputs, others), after = self._network_state.call(self._actor_outputs, self.preprocess(obs), state)
        action = family.mode(outputs, legal) if noise is None else family.sample(outputs, legal, noise)
        return {"action": action, "outputs": outputs, **others, **after}

    @property
    def exploration(self) -> Noise | None:
        """The correlated noise that actions are sampled with, None for independent noise; may be set."""
        return None if self._noise_sequences is None else self._noise_sequences.noise

    @exploration.setter
    def exploration(self, exploration: Noise | None) -> None:
        self._noise_sequences = None
        if exploration is None:
            return
        if self.distribution.n_normal == 0:
            raise SpaceMismatchError(
                f"{type(self).__name__}.exploration is noise of a normal distribution, which actions in a Box of "
                f"floats have, got actions in {self.action_space} by {type(self.distribution).__name__}: leave it out"
            )
        self._noise_sequences = NoiseSequences(exploration, self.distribution.n_normal)

    def _correlated_noise(self, n_rows: int, env_ids: EnvIds, starts: Starts) -> NDArray[np.float32] | None:
        """Return the next correlated noise [K, D] of these environments, None where noise is independent."""
        if self._noise_sequences is None or (env_ids is None and starts is None):
            return None
        return self._noise_sequences.step(n_rows, env_ids, starts, self.rng)

    def explore_metrics(self, step: int) -> dict[str, float]:
        """Return the standard deviation of additive noise, where the distribution has some."""
        return {} if self._noise_std is None else {"noise_std": self._noise_std(step)}

    def start_streams(self, root: int) -> None:
        """Restart the random streams from a root seed, and nothing else."""
        super().start_streams(root)
        if self._noise_sequences is not None:
            self._noise_sequences.reset()

    def streams_state(self) -> dict[str, Any]:
        """Return the state of the random streams, and of the sequences of correlated noise."""
        state = super().streams_state()
        return state if self._noise_sequences is None else state | {"sequences": self._noise_sequences.state_dict()}

    def load_streams_state(self, state: Mapping[str, Any]) -> None:
        """Load the state of the random streams; noise saved on another type of device is not loaded."""
        super().load_streams_state(state)
        if self._noise_sequences is not None:
            self._noise_sequences.load_state_dict(state.get("sequences"))

    def _in_space(self, action: Actions) -> Actions:
        """Convert actions of the distribution to the units and bounds of the environments."""
        return action if self._action_scale is None else self._action_scale.to_space(action)

    def check_networks(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Raise for spaces that do not fit the actor, and the critic of states that is called with it."""
        subject = f"{type(self).__name__}'s network"
        self.enter(training=False)
        with forward_on(subject, observation_space):
            outputs, others = self._actor_outputs(self.features(zeros_of(observation_space)))
        shapes = {name: tuple(tensor.shape) for name, tensor in {"outputs": outputs, **others}.items()}
        expected = {"outputs": (1, self.distribution.width), **dict.fromkeys(others, (1,))}
        if shapes != expected:
            raise SpaceMismatchError(
                f"{subject} gives {shapes} for one observation, but {action_space} needs {expected}"
            )

    def read_action_std(self) -> Summary:
        """Return the standard deviations of sampled actions since the last call, in policy units and before tanh."""
        return NO_VALUES if self._action_std is None else self._action_std.read()

    def action_probability(self, obs: Obs, *, step: int = 0, explore: bool = False) -> NDArray[np.float64]:
        """Return the probability of each action, [K, A]: of the distribution if exploring, else 1 for its mode.

        Of one observation it is [A]. A network that carries a state takes them for the first of their episodes.
        """
        check_flag(self, "action_probability(explore=)", explore)
        if not isinstance(self.distribution, Categorical):
            return super().action_probability(obs)
        rows, is_one = self._read("action_probability", obs)
        checked_legal(rows)
        self.enter(training=False)
        with torch.no_grad():
            on_device = to_device(rows, self.device)
            outputs, _ = self._actor_outputs(self.preprocess(on_device))
            probability = self.distribution.probability(outputs.double(), legal_mask(on_device)).cpu().numpy()
        if not explore:
            probability = one_hot(probability.argmax(axis=1), probability.shape[1])
        return probability[0] if is_one else probability

    def greedy(self, obs: Any, state: Any = ()) -> dict[str, Tensor]:
        """Return the modes [B, ...] for raw observations on the device, and what they were chosen by.

        That is the "probability" [B, A] of a Discrete action, else the actor's outputs as "numbers", and the "value"
        [B] of a policy with a critic of states. With the states before them [B, S] the next ones are "state_out".
        """
        legal = legal_mask(obs)
        (outputs, others), after = self._network_state.call(self._actor_outputs, self.preprocess(obs), state)
        others |= after
        chosen_by = {"numbers": outputs}
        if isinstance(self.distribution, Categorical):
            chosen_by = {"probability": self.distribution.probability(outputs, legal)}
        return {"action": self._in_space(self.distribution.mode(outputs, legal)), **chosen_by, **others}

"""The Q-learner: one class, whose parts decide whether it is DQN, C51, Rainbow, or something new."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit import seeding, tree
from trainkit.data import ACTION_MASK, ActOutput, Horizon, Obs, TransitionBatch
from trainkit.errors import DivergedError, SpaceMismatchError
from trainkit.policy.backups import Backup, DoubleBackup, MaxBackup, TensorBatch, pick
from trainkit.policy.base import Meter, Policy, UpdateResult
from trainkit.policy.device import to_device
from trainkit.policy.exploration import EpsilonGreedy, Exploration, Greedy
from trainkit.policy.gradient_step import Adam, Clip, GradientStep
from trainkit.policy.host import HostNetwork
from trainkit.policy.networks import ActionValues, PlainModule, Prediction, QNetwork
from trainkit.policy.noisy import draw_noise
from trainkit.policy.preprocess import Preprocess, WithoutMask, without_mask
from trainkit.policy.target import Target, TargetNetwork
from trainkit.policy.values import ExpectedValue, Value
from trainkit.protocols import EnvSpaces
from trainkit.spaces import legal_actions, refuse_empty_mask, zeros_of


class DQNPolicy(Policy):
    """Learn action values from transitions (Mnih et al., 2015), by the parts passed in.

    The update, in order: the chosen action's numbers, what the backup says follows, the value part's goal and loss,
    the mean of importance weight times loss, one gradient step, and the target's turn to follow.

    Args:
        network: a `QNetwork`, or any module that maps observations to [B, A, W] or [B, A].
        value: what the W numbers mean.
        backup: which next value counts.
        exploration: how to leave the greedy path; may be set between any two steps.
        horizon: the return to learn from.
        target: when the target network follows.
        optimizer: Adam's numbers.
        clip: of gradients; None clips nothing.
        preprocess: from raw observation tensors to what the network takes, without parameters of its own; default:
            the mask taken out.
        observation_space: of one environment, for `predict` and checks; a collector tells it otherwise.
        action_space: of one environment, Discrete.
        device: "auto", "cpu", "cuda" or a torch device.
        seed: root of initial weights, noise and exploration; None takes the trainer's. A module of your own is
            initialised by you.
        flush_denormals: see `GradientStep`.

    Metrics: loss, q_mean (of chosen actions), weight_mean, grad_norm (before the clip), lr, and the value part's own.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        value: Value | None = None,
        backup: Backup | None = None,
        exploration: Exploration | None = None,
        horizon: Horizon | None = None,
        target: Target | None = None,
        optimizer: Adam | None = None,
        clip: Clip | None = None,
        preprocess: nn.Module | None = None,
        observation_space: Space[Any] | None = None,
        action_space: Space[Any] | None = None,
        device: str | torch.device = "auto",
        seed: int | None = None,
        flush_denormals: bool = True,
    ) -> None:
        super().__init__(observation_space=observation_space, action_space=action_space, device=device, seed=seed)
        self.network = network if isinstance(network, ActionValues) else PlainModule(network)
        self.preprocess = WithoutMask() if preprocess is None else preprocess
        self.value: Value = ExpectedValue() if value is None else value
        self.backup: Backup = MaxBackup() if backup is None else backup
        default = EpsilonGreedy.linear(1.0, 0.05, 10_000)
        self.exploration: Exploration = default if exploration is None else exploration
        self.horizon = Horizon() if horizon is None else horizon
        self.to(self.device)
        self._target = TargetNetwork(self.network, Target() if target is None else target)
        self.target_network = self._target.network
        self._gradient_step = GradientStep(
            self.network,
            Adam() if optimizer is None else optimizer,
            clip,
            flush_denormals=flush_denormals,
        )
        self._meter = Meter()
        self.n_updates = 0
        self._n_updates_read = 0
        is_plain = bool(getattr(self.preprocess, "is_identity", False))
        self._host = HostNetwork.for_network(self.network, self.value, self.device) if is_plain else None
        self._has_modes = not isinstance(self.network, QNetwork)  # whether train and eval may differ
        self.eval()
        if seed is not None:
            self.seed(seed)

    @classmethod
    def for_envs(
        cls,
        envs: EnvSpaces,
        *,
        hidden: Sequence[int] | None = None,
        head: Sequence[int] | None = None,
        dueling: bool = False,
        noisy: bool = False,
        sigma0: float = 0.5,
        double: bool = False,
        value: Value | None = None,
        n_step: int | tuple[int, int] = 1,
        gamma: float = 0.99,
        reward: Any = None,
        lr: Any = 5e-4,
        max_grad_norm: float | None = 10.0,
        **parts: Any,
    ) -> Self:
        """Make a policy for environments, by short words.

        Args:
            envs: anything with `observation_space` and `action_space`.
            hidden, head, dueling, noisy, sigma0: as in `QNetwork`; layers default to (128, 128) shared and none per
                head, for images to none and (512,) as in the paper; noisy heads explore by themselves, greedily.
            double: choose by the online, judge by the target network.
            n_step, gamma, reward: as in `Horizon`.
            lr, max_grad_norm: of Adam, and the clip of the global norm; None clips nothing.
            value, parts: arguments of `DQNPolicy`; `optimizer` and `clip` replace `lr` and `max_grad_norm`.
        """
        if not isinstance(envs.action_space, spaces.Discrete):
            raise SpaceMismatchError(f"{cls.__name__} needs a Discrete action space, got {envs.action_space}")
        value = ExpectedValue() if value is None else value
        preprocess = Preprocess(envs.observation_space)
        sees_images = preprocess.sees_images
        network = QNetwork(
            preprocess.shapes,
            int(envs.action_space.n),
            width=value.width,
            hidden=(() if sees_images else (128, 128)) if hidden is None else hidden,
            head=((512,) if sees_images else ()) if head is None else head,
            dueling=dueling,
            noisy=noisy,
            sigma0=sigma0,
        )
        defaults: dict[str, Any] = {
            "backup": DoubleBackup() if double else MaxBackup(),
            "optimizer": Adam(lr),
            "clip": None if max_grad_norm is None else Clip(max_grad_norm),
            "horizon": Horizon(n_step, gamma, reward),
            "exploration": Greedy() if noisy else None,
            "observation_space": envs.observation_space,
            "action_space": envs.action_space,
        }
        return cls(network, value=value, preprocess=preprocess, **defaults | parts)

    # ---- acting ----

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
        """Choose the action of the largest value, or let the exploration choose; noise is drawn row by row."""
        legal = legal_actions(obs)
        if legal is not None:
            refuse_empty_mask(legal, env_ids)
        q = self.action_values(obs, explore=explore)
        if not np.isfinite(q).all():
            row = int(np.argwhere(~np.isfinite(q))[0][0])
            env = row if env_ids is None else int(env_ids[row])
            raise DivergedError(f"{type(self).__name__} gives values {q[row]} for env {env} at step {step}")
        if legal is not None:
            q = np.where(legal, q, -np.inf)
        choose = self.exploration.choose if explore else Greedy().choose
        return ActOutput(choose(q, legal, step=step, env_ids=env_ids, rng=self._rng), {}, state)

    def action_values(self, obs: Obs, *, explore: bool = False) -> NDArray[np.float32]:
        """Return the expected return [K, A] of every action, illegal ones too, for raw observations [K, ...]."""
        self._enter(training=False)
        noise = self._draw_noise(len(tree.first_leaf(obs))) if explore else None
        features = without_mask(obs)
        if self._host is not None and self._host.takes(features):
            return self._host.action_values(features, None if noise is None else noise.numpy(), legal_actions(obs))
        with torch.no_grad():
            numbers = self._predict(self.network, to_device(obs, self.device), noise).numbers
            values: NDArray[np.float32] = self.value.mean(numbers).cpu().numpy()
        return values

    def explore_metrics(self, step: int) -> dict[str, float]:
        """Return what dashboards show about exploration."""
        return self.exploration.metrics(step)

    # ---- learning ----

    def update(self, batch: TransitionBatch, *, step: int) -> UpdateResult:
        """Learn from one batch and return its priorities.

        Raises:
            DivergedError: on the CPU, when the loss or a gradient is not finite; nothing has moved then. On CUDA
                such a step is not taken either, and the next `read_metrics` raises.
        """
        self._enter(training=True)
        rows = self._rows(batch)
        noises = self._draw_noise(1), self._draw_noise(1)
        metrics: dict[str, Tensor] = {}
        priority: list[Tensor] = []

        def loss() -> Tensor:
            per_row, row_priority, row_metrics = self._loss(rows, *noises)
            weighted = (rows.weight * per_row).mean()
            priority.append(row_priority)
            metrics.update(loss=weighted.detach(), **row_metrics)
            return weighted

        norm, skipped = self._gradient_step(loss, step=step)
        if self.device.type == "cpu" and skipped:
            raise DivergedError(
                f"{type(self).__name__}: update {self.n_updates + 1} at step {step} has gradient norm {float(norm)} "
                f"and loss {float(metrics['loss'])}; it was not taken: lower the learning rate or clip the reward"
            )
        self.n_updates += 1
        self.last_step = step
        shown = {**metrics, "weight_mean": rows.weight.mean(), "grad_norm": norm, "skipped": skipped}
        self._meter.add(shown, lr=self._gradient_step.lr(step))
        self._target.follow(step=step, n_updates=self.n_updates)
        return UpdateResult(priority[0])

    def read_metrics(self) -> dict[str, float]:
        """Return the means over all updates since the last call, and begin anew; empty when there were none."""
        metrics = self._meter.read()
        if not metrics:
            return {}
        first, self._n_updates_read = self._n_updates_read + 1, self.n_updates
        if metrics.pop("skipped") > 0:
            raise DivergedError(
                f"{type(self).__name__}: a loss or gradient among updates {first} to {self.n_updates} was not finite; "
                "those steps were not taken: lower the learning rate or clip the reward"
            )
        return metrics

    def _loss(
        self, rows: TensorBatch, online_noise: Tensor | None, target_noise: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return (loss [B], priority [B], scalars to show)."""

        def online(features: Any, legal: Tensor | None) -> Prediction:
            return self.network(features, online_noise, legal)  # type: ignore[no-any-return]  # a module's call is Any

        def target(features: Any, legal: Tensor | None) -> Prediction:
            return self.target_network(features, target_noise, legal)  # type: ignore[no-any-return]  # as above

        chosen = pick(online(rows.obs, rows.legal).numbers, rows.action)
        with torch.no_grad():
            after, reward = self.backup(online, target, rows, self.value)
            goal = self.value.goal(after, reward, rows.discount)
        loss, priority = self.value.loss(chosen, goal)
        with torch.no_grad():
            shown = {"q_mean": self.value.mean(chosen).mean()}
            shown |= self.value.metrics(chosen, goal, after, reward, rows.discount)
        return loss, priority, shown

    def _rows(self, batch: TransitionBatch) -> TensorBatch:
        """Move a batch to the device and its observations through the preprocessing."""
        columns = (batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs, batch.weight)
        obs, action, reward, discount, next_obs, weight = to_device(columns, self.device)
        legal, next_legal = _legal(obs), _legal(next_obs)
        with torch.no_grad():
            obs, next_obs = self.preprocess(obs), self.preprocess(next_obs)
        return TensorBatch(obs, action.long(), reward, discount, next_obs, weight, legal, next_legal)

    def _predict(self, network: nn.Module, rows: Any, noise: Tensor | None) -> Prediction:
        prediction: Prediction = network(self.preprocess(rows), noise, _legal(rows))
        return prediction

    def _draw_noise(self, rows: int) -> Tensor | None:
        size = self.network.noise_size
        return draw_noise(rows, size, self._noise) if size else None

    def _enter(self, *, training: bool) -> None:
        """Switch modules whose train and eval modes differ; `QNetwork` has none that does."""
        if self._has_modes and self.training != training:
            self.train(training)

    def train(self, mode: bool = True) -> Self:
        """Switch modes; the target network always stays in eval mode."""
        super().train(mode)
        self.target_network.eval()
        return self

    def check_spaces(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Refuse environments that the network cannot see or act in, by trying it on one blank observation."""
        self._refuse_other_spaces(observation_space, action_space)
        if not isinstance(action_space, spaces.Discrete):
            raise SpaceMismatchError(f"{type(self).__name__} needs a Discrete action space, got {action_space}")
        self._enter(training=False)
        blank = to_device(zeros_of(observation_space), self.device)
        try:
            with torch.no_grad():
                shape = tuple(self._predict(self.network, blank, None).numbers.shape)
        except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise SpaceMismatchError(
                f"{type(self).__name__}'s network cannot take an observation of {observation_space}: {error}"
            ) from error
        expected = (1, int(action_space.n), self.value.width)
        if shape != expected:
            raise SpaceMismatchError(
                f"{type(self).__name__}'s network gives numbers {shape} for one observation, but {action_space} and "
                f"{type(self.value).__name__} need {expected} [B, A, W]"
            )
        super().check_spaces(observation_space, action_space)

    def seed(self, root: int) -> None:
        """Start all random streams anew, and draw the initial weights again unless they were trained or loaded."""
        super().seed(root)
        if isinstance(self.network, QNetwork) and self.network.is_untouched:
            self.network.draw(seeding.derive(root, "policy", "weights"))
            self._target.copy()

    def training_state(self) -> dict[str, Any]:
        """Return all that training goes on from: weights, moments, counters, random streams."""
        return {
            "weights": self.state_dict(),
            "optimizer": self._gradient_step.state_dict(),
            "target": self._target.state_dict(),
            "n_updates": self.n_updates,
            "last_step": self.last_step,
            "streams": self.streams_state(),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of a policy made of the same parts."""
        self.load_weights(state["weights"])
        self._gradient_step.load_state_dict(state["optimizer"])
        self._target.load_state_dict(state["target"])
        self.n_updates = self._n_updates_read = state["n_updates"]
        self.last_step = state["last_step"]
        self.load_streams_state(state["streams"])
        self.is_seeded = True


def _legal(obs: Any) -> Tensor | None:
    """Return the mask [B, A] in an observation of tensors, None where there is none."""
    return obs[ACTION_MASK] != 0 if isinstance(obs, dict) and ACTION_MASK in obs else None

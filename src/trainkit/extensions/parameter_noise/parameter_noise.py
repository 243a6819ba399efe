"""Parameter-space noise for exploration: the best action for perturbed weights, which stay for an episode."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from trainkit.core import tree
from trainkit.core.config import Part
from trainkit.core.data import Obs, is_finite
from trainkit.core.errors import Checks, ConfigError
from trainkit.core.schedules import Adjustable, Linear, Scheduled
from trainkit.core.signatures import checked
from trainkit.engine.device import to_device
from trainkit.policy.exploration import Actions, EnvIds, Mask, Values, non_finite_values

if TYPE_CHECKING:
    from trainkit.policy.dqn import DQNPolicy

_LARGEST_SEED = 2**63 - 1
_STD_RANGE = 1e-6, 1e3  # whatever the distance is

QValues = Callable[[Any], Tensor]  # raw observations [K, ...] on the device -> action values [K, A] by the network


@checked
class ParameterNoise(Part):
    """Adaptive noise on the weights of the acting Q-network (Plappert et al., 2018), constant during an episode.

    In every environment an episode's start draws a direction, standard normal for each weight and bias of the network's
    `torch.nn.Linear` layers. The action is the best one for the weights plus `std` times the direction, so that the
    same observation gets the same action while nothing is learned. There is no `probability`.

    The standard deviation adapts at every vector step, so that the softmax policies of the values with and without
    noise differ as much as epsilon-greedy differs from greedy: it is multiplied by `adapt` if the mean over rows of the
    divergence KL(softmax(q) || softmax(perturbed q)) is below -log(1 - epsilon + epsilon / legal actions), else divided
    (their appendix C.1). Theirs adapts by a perturbation of its own every 50 steps, and perturbs a policy head.

    One object explores for one policy. `norm="layer"` in the network is recommended, as in the paper: one standard
    deviation is for all layers.

    Args:
        epsilon: of the epsilon-greedy policy to be as far from greedy as; a number, knots or a schedule of the step.
        initial_std: first standard deviation; RLlib's is 1.
        adapt: factor above 1 per vector step; the paper's is 1.01.
    """

    epsilon = Adjustable(low=0, high=1, of_part=True)

    def __init__(self, epsilon: Scheduled | Linear, *, initial_std: float = 1.0, adapt: float = 1.01) -> None:
        self.epsilon = epsilon
        with Checks("ParameterNoise") as checks:
            checks.number("initial_std", initial_std, low=0, above_low=True)
            checks.number("adapt", adapt, low=1, above_low=True)
        self._initial_std, self.adapt = initial_std, adapt
        self.std = initial_std
        self.reset()

    @property
    def initial_std(self) -> float:
        """The first standard deviation; `std` is the current one, and may be assigned."""
        return self._initial_std

    def reset(self) -> None:
        """Draw another direction in every environment at its next step; the standard deviation stays."""
        self._seeds = np.full(0, -1)  # [N], of each environment's direction; -1 where there is none
        self._directions: dict[int, Tensor] = {}  # [P] on the device, by seed

    def choose(
        self, q: Values, legal: Mask, *, step: int, env_ids: EnvIds, rng: np.random.Generator, starts: Mask = None
    ) -> Actions:
        """Return the best action of every row [K], by perturbed values."""
        best: Actions = q.argmax(axis=1)
        return best

    def check_policy(self, policy: "DQNPolicy") -> None:
        """Raise a `ConfigError` if a policy's network has noisy layers or a memory, or nothing to perturb."""
        name = type(policy).__name__
        if policy.network.noise_size:
            raise ConfigError(f"{name}: ParameterNoise and noisy layers both perturb weights: use one")
        if policy.state_size > 0:
            raise ConfigError(f"{name}: ParameterNoise has no recurrent state: use another exploration")
        _weights_of(policy.network)

    def own_values(
        self, policy: "DQNPolicy", obs: Obs, q: Values, *, step: int, env_ids: EnvIds, starts: Mask
    ) -> Values:
        """Return the values [K, A] by perturbed weights, computed on the policy's device by torch; adapt `std` to them.

        Raises:
            DivergedError: the values are not all finite.
        """
        how: dict[str, Any] = {"n_rows": len(q), "env_ids": env_ids, "starts": starts, "rng": policy.rng}
        on_device = to_device(obs, policy.device)
        values = self.perturbed_values(policy.network, lambda given: policy.greedy(given)["q_values"], on_device, **how)
        if not is_finite(values):
            raise non_finite_values(f"{type(policy).__name__} with ParameterNoise", values, step, env_ids)
        self.adapt_std(q, np.where(np.isfinite(q), values, -np.inf), step)
        return values

    def perturbed_values(
        self,
        network: nn.Module,
        q_values: QValues,
        obs: Any,
        *,
        n_rows: int,
        env_ids: EnvIds,
        starts: Mask,
        rng: np.random.Generator,
    ) -> Values:
        """Return the action values [K, A] of `q_values` by perturbed weights of the network, each row by its own.

        Rows of no environment, with neither `env_ids` nor `starts`, have directions that are not used again.
        """
        weights = {f"network.{path}": weight for path, weight in _weights_of(network).items()}
        seeds = self._next_seeds(n_rows, env_ids, starts, rng)
        device, size = next(iter(weights.values())).device, sum(weight.numel() for weight in weights.values())
        self._directions = {seed: self._direction(seed, size, device) for seed in seeds.tolist()} | {
            seed: known for seed, known in self._directions.items() if seed in self._seeds
        }
        noise = self.std * torch.stack([self._directions[seed] for seed in seeds.tolist()])  # [K, P]
        parts = noise.split([weight.numel() for weight in weights.values()], dim=1)
        perturbed = {
            name: weight + part.view(n_rows, *weight.shape).to(weight.dtype)
            for (name, weight), part in zip(weights.items(), parts, strict=True)
        }
        caller = _Caller(network, q_values)

        def values_of_row(own: Mapping[str, Tensor], row: Any) -> Tensor:
            values: Tensor = functional_call(caller, dict(own), (tree.map_tree(lambda leaf: leaf.unsqueeze(0), row),))
            return values[0]

        with torch.no_grad():
            values: Values = vmap(values_of_row)(perturbed, obs).float().numpy(force=True)
        return values

    def _direction(self, seed: int, size: int, device: torch.device) -> Tensor:
        """Return the direction [P] of a seed, which is drawn if it is not known."""
        known = self._directions.get(seed)
        if known is not None and known.device == device and len(known) == size:
            return known
        return torch.randn(size, generator=torch.Generator(device).manual_seed(seed), device=device)

    def _next_seeds(self, n_rows: int, env_ids: EnvIds, starts: Mask, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the seeds [K] of the directions of these environments, new ones where episodes start."""
        new = rng.integers(_LARGEST_SEED, size=n_rows)
        if env_ids is None and starts is None:
            return new
        rows = np.arange(n_rows) if env_ids is None else env_ids
        missing = np.full(max(int(rows.max()) + 1 - len(self._seeds), 0), -1)
        self._seeds = np.concatenate([self._seeds, missing])
        is_new = self._seeds[rows] < 0
        if starts is not None:
            is_new |= starts
        self._seeds[rows] = np.where(is_new, new, self._seeds[rows])
        return self._seeds[rows]

    def adapt_std(self, q: Values, perturbed: Values, step: int) -> None:
        """Adapt the standard deviation to values [K, A] without and with noise, -inf where illegal."""
        is_legal = np.isfinite(q)
        log_p, log_perturbed = (np.where(is_legal, _log_softmax(values), 0.0) for values in (q, perturbed))
        terms = np.where(is_legal, np.exp(log_p) * (log_p - log_perturbed), 0.0)
        epsilon = self.epsilon(step)
        wanted = -np.log(1.0 - epsilon + epsilon / is_legal.sum(axis=1))
        std = self.std * self.adapt if terms.sum(axis=1).mean() < wanted.mean() else self.std / self.adapt
        self.std = float(np.clip(std, *_STD_RANGE))

    def metrics(self, step: int) -> dict[str, float]:
        """Return epsilon at `step`, and the standard deviation."""
        return {"epsilon": self.epsilon(step), "parameter_std": self.std}

    def state_dict(self) -> dict[str, Any]:
        """Return the standard deviation, and the seeds of all directions in a tensor."""
        return {"std": self.std, "seeds": torch.from_numpy(self._seeds.copy())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with saved directions."""
        std, seeds = float(state["std"]), np.array(state["seeds"].numpy(), np.int64)
        if seeds.ndim != 1 or not _STD_RANGE[0] <= std <= _STD_RANGE[1]:
            raise ValueError(f"parameter noise has the standard deviation {std} and {seeds.ndim} axes of seeds")
        self.std, self._seeds = std, seeds


def _weights_of(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights and biases that are perturbed, by their names in the network; raise without any."""
    layers = {path: layer for path, layer in network.named_modules() if isinstance(layer, nn.Linear)}
    weights = {
        f"{path}.{name}": weight
        for path, layer in layers.items()
        for name, weight in layer.named_parameters(recurse=False)
    }
    if not weights:
        raise ConfigError(
            f"ParameterNoise perturbs layers of the class torch.nn.Linear, and {type(network).__name__} has none: "
            "use EpsilonGreedy or EZGreedy"
        )
    return weights


class _Caller(nn.Module):
    """A module that `functional_call` replaces the network's weights in while `q_values` is called."""

    def __init__(self, network: nn.Module, q_values: QValues) -> None:
        super().__init__()
        self.network, self._q_values = network, q_values

    def forward(self, obs: Any) -> Tensor:
        return self._q_values(obs)


def _log_softmax(q: Values) -> NDArray[np.float64]:
    """Return the logarithms of softmax(q), [K, A], -inf where q is."""
    below: NDArray[np.float64] = (q - q.max(axis=1, keepdims=True)).astype(np.float64)
    logarithms: NDArray[np.float64] = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    return logarithms

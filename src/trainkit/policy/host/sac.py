"""SAC of small networks in numpy: there, torch's calls cost as much again as the products they are made for.

The same update as `SACPolicy._learn` and its differentiation, equation by equation, which tests hold side by side to
float32's last digits. For images, CUDA, other dtypes and networks than those named here there is no such update, and
torch does it.
"""

import numpy as np
from torch import nn

from trainkit.data import TransitionBatch
from trainkit.policy.action_scale import ActionScale
from trainkit.policy.critics import ActorNetwork, CriticNetwork
from trainkit.policy.distributions import Distribution
from trainkit.policy.host.acting import is_plain
from trainkit.policy.host.passes import HostActorNetwork, HostCriticNetwork
from trainkit.policy.host.preprocess import HostPreprocess
from trainkit.policy.host.squashed import HostSquashed
from trainkit.policy.host.tape import Array, Tape
from trainkit.policy.squashed import SquashedGaussian
from trainkit.threads import OneThread

_MOST_ROWS = 512


class HostSAC:
    """Compute the losses of one batch and the gradients of a small `ActorNetwork` and `CriticNetwork`.

    Args:
        preprocess: turns observations into features.
        actor: learns.
        critics: learn.
        target: says what follows.
        distribution: of actions.
        action_scale: from actions to units.
    """

    def __init__(
        self,
        preprocess: HostPreprocess,
        actor: ActorNetwork,
        critics: CriticNetwork,
        target: CriticNetwork,
        distribution: SquashedGaussian,
        action_scale: ActionScale,
    ) -> None:
        self._scale = action_scale
        self._features, self._squashed = preprocess, HostSquashed(distribution)
        self._actor, self._critics, self._target = actor, critics, target
        self._distribution = distribution
        self._tape, self._aside = Tape(), Tape()  # of the passes that are differentiated, and of the others
        self._taken: tuple[HostActorNetwork, HostCriticNetwork, HostCriticNetwork] | None = None  # as they were

    @classmethod
    def for_parts(
        cls,
        preprocess: HostPreprocess | None,
        actor: nn.Module,
        critics: nn.Module,
        target: nn.Module,
        distribution: Distribution,
        action_scale: ActionScale,
    ) -> "HostSAC | None":
        """Return the learner for parts on the CPU that all have a twin here, None for others."""
        if preprocess is None or type(distribution) is not SquashedGaussian:
            return None
        if type(actor) is not ActorNetwork or type(critics) is not CriticNetwork or type(target) is not CriticNetwork:
            return None
        if not (is_plain(actor) and is_plain(critics)):
            return None
        return cls(preprocess, actor, critics, target, distribution, action_scale)

    def takes(self, batch: TransitionBatch, preprocess: object, *parts: object) -> bool:
        """Whether these are not too many rows, which become vectors; and the parts its own, and all weights learn.

        `preprocess` and `parts` are the policy's: its actor, critics, target and distribution.
        """
        if len(batch) > _MOST_ROWS or not self._features.takes(batch.obs, preprocess):
            return False
        own = self._actor, self._critics, self._target, self._distribution
        is_ours = all(part is mine for part, mine in zip(parts, own, strict=True))
        actor, critics, target = self._passes()
        return is_ours and actor.learns_whole and critics.learns_whole and target.passes_alone

    def teach_critics(
        self, batch: TransitionBatch, noise: Array, temperature: float
    ) -> tuple[float, tuple[Array, Array]]:
        """Write the critics' gradients and return (their loss, (td [C, B], their values [C, B]))."""
        actor, critics, target = self._passes()
        tape, aside = self._tape.rewind(), self._aside.rewind()
        with OneThread(), np.errstate(all="ignore"):  # what is not finite is refused by whoever takes the step
            next_obs = self._features(batch.next_obs)
            unit, log_prob = self._squashed.draw(actor.ask(next_obs, aside), noise, aside)
            after = np.minimum.reduce(target.ask(next_obs, unit, aside), axis=0) - temperature * log_prob
            goal = batch.reward + np.where(batch.discount > 0.0, batch.discount * after, np.float32(0.0))

            unit = self._scale.to_unit(batch.action).reshape(len(batch), -1).clip(-1.0, 1.0)
            q = critics.forward(self._features(batch.obs), unit, tape)
            td = q - goal
            critics.backward(td * _share(batch), tape)
            loss = 0.5 * np.add.reduce(td * td, axis=0)
        return float(batch.weight.dot(loss)) / len(batch), (td, q)

    def teach_actor(self, batch: TransitionBatch, noise: Array, temperature: float) -> tuple[float, Array]:
        """Write the actor's gradients and return (its loss, log pi [B])."""
        actor, critics, _ = self._passes()
        tape = self._tape.rewind()
        with OneThread(), np.errstate(all="ignore"):
            obs = self._features(batch.obs)
            unit, log_prob = self._squashed.draw(actor.forward(obs, tape), noise, tape)
            q = critics.forward(obs, unit, tape)
            least = np.minimum.reduce(q, axis=0)

            share = _share(batch)
            is_least = q == least
            of_q = is_least * (-share / np.add.reduce(is_least, axis=0, dtype=np.float32))  # equal ones share
            of_unit = critics.slope_of_rows(of_q, tape)[:, obs.shape[1] :]
            actor.backward(self._squashed.backward(of_unit, temperature * share, tape), tape)
            loss = temperature * log_prob - least
        return float(batch.weight.dot(loss)) / len(batch), log_prob

    def _passes(self) -> tuple[HostActorNetwork, HostCriticNetwork, HostCriticNetwork]:
        """Return the passes of all networks, taken anew where their weights are others or elsewhere."""
        if self._taken is None or not all(taken.is_live for taken in self._taken):
            networks = HostCriticNetwork(self._critics), HostCriticNetwork(self._target)
            self._taken = HostActorNetwork(self._actor), *networks
        return self._taken


def _share(batch: TransitionBatch) -> Array:
    """Return what each row [B] counts in the mean of all."""
    return batch.weight.astype(np.float32, copy=False) * np.float32(1.0 / len(batch))


def teach_temperature(logarithm: nn.Parameter, surplus: Array, weight: Array) -> tuple[float, tuple[()]]:
    """Write the gradient of a temperature's logarithm for the surplus [B] of entropy and return (the loss, ())."""
    assert logarithm.grad is not None, "there is room for gradients by now"
    slope = float(weight.dot(surplus)) / len(surplus)
    logarithm.grad.fill_(slope)
    return float(logarithm.detach()) * slope, ()

"""What a run says when it does not learn: rules on the metrics of its epochs, each with the remedy.

A rule is a function of the trainer at the end of an epoch. It reads `trainer.history`, whose last row is this epoch,
and returns what it found, in numbers, and the remedy after a colon; or None. `DIAGNOSIS_RULES` are all of them.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from trainkit.policy.exploration import EZGreedy

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

Rule = Callable[["Trainer"], str | None]

PATIENCE = 3  # epochs in a row that a state lasts which a healthy run may pass through
N_TESTS = 5  # evaluations in a row, likewise
N_EPISODES = 20  # that are enough to call their returns constant


# ---- rules: is there anything to learn from? ----


def no_updates(trainer: "Trainer") -> str | None:
    """Report a learning run without an update in its first half, or with `learning_starts` beyond its end."""
    if trainer.info.updates_per_second is not None or getattr(trainer.policy, "policies_to_train", None) == ():
        return None
    n_steps, starts = trainer.max_epoch * trainer.step_per_epoch, getattr(trainer, "learning_starts", 0)
    if starts <= n_steps and trainer.clock < n_steps / 2:
        return None
    return (
        f"no update in {min(trainer.clock, n_steps):,} of {n_steps:,} {trainer.unit}s, learning_starts is {starts:,}: "
        "lower it, or raise max_epoch"
    )


def constant_returns(trainer: "Trainer") -> str | None:
    """Report a fifth of the run whose episodes all return the same, the least ever seen, unless that is solved."""
    history, n_epochs = trainer.history, math.ceil(trainer.max_epoch / 5)
    if trainer.train_collector is None or len(history) < n_epochs or _has_opponents(trainer):
        return None
    n_episodes = sum(np.nansum(history.newest(f"{group}/n_episode", n_epochs)) for group in ("train", "test"))
    low, high = _extremes(trainer, "returns", n_epochs)
    if n_episodes < N_EPISODES or low != high or low > _extremes(trainer, "returns")[0] or _is_solved(trainer, low):
        return None
    return (
        f"all {n_episodes:,.0f} episodes since epoch {trainer.epoch - n_epochs + 1} returned {low:g}, and none ever "
        f"less: {_how_to_explore(trainer)}, or shape the reward"
    )


def zero_sum_returns(trainer: "Trainer") -> str | None:
    """Report three epochs of games whose agents share one policy and whose returns are all 0, whatever is learned."""
    history = trainer.history
    if len(history) == 0 or any(tag.startswith("train/policies/") for tag in history[-1]):
        return None
    n_games = np.nansum(history.newest("train/n_episode", PATIENCE))
    if n_games < N_EPISODES or not _has_opponents(trainer) or _extremes(trainer, "returns", PATIENCE) != (0.0, 0.0):
        return None
    return (
        f"all {n_games:,.0f} games returned 0, as one policy plays all sides: play against copies of it, and score it "
        "against random actions (self_play=True, OpponentPool)"
    )


def no_progress(trainer: "Trainer") -> str | None:
    """Report the last quarter of a run if its returns are no better than those of the first epoch, unless solved."""
    trained, tested = (_newest(trainer, f"{group}/returns/mean") for group in ("train", "test"))
    first, spread = _first(trainer, "train/returns/mean"), _first(trainer, "train/returns/std")
    is_early = len(trainer.history) <= PATIENCE or 4 * trainer.epoch < 3 * trainer.max_epoch
    if (
        is_early
        or _has_opponents(trainer)
        or trained is None
        or first is None
        or spread is None
        or constant_returns(trainer) is not None
    ):
        return None
    if trained.mean() > first + spread / 4 or (tested is not None and tested.mean() > first + spread / 2):
        return None
    threshold = _threshold(trainer)
    if threshold is not None and trained.mean() >= threshold:
        return None
    remedy = _first_of_all(trainer, "train for longer", "try another lr", _higher_gamma(trainer) or "a lower gamma")
    return f"training returns {trained.mean():.3g}, in the first epoch {first:.3g}: {remedy}"


def worse_than_random(trainer: "Trainer") -> str | None:
    """Report evaluations in the second half of a run that return less than the first epoch of training."""
    recent, first = _newest(trainer, "test/returns/mean"), _first(trainer, "train/returns/mean")
    spread = _first(trainer, "train/returns/std")
    if (
        _has_opponents(trainer)
        or recent is None
        or first is None
        or spread is None
        or 2 * trainer.epoch < trainer.max_epoch
    ):
        return None
    if recent.max() >= first - max(spread, 0.01 * abs(first)):
        return None
    longer = "train for longer" if recent[-1] == recent.max() > recent[0] else None
    remedy = _first_of_all(trainer, longer, _higher_gamma(trainer), "lower lr")
    return f"evaluations return {recent[-1]:.4g}, the first epoch of training {first:.4g}: {remedy}"


# ---- rules: values ----


def clipped_targets(trainer: "Trainer") -> str | None:
    """Report a target of which more than 25 % lie beyond a given support, or for three epochs more than 5 %."""
    shares = trainer.history.newest("update/clipped_share", PATIENCE)
    if _newest(trainer, "update/v_min", 1) is not None:  # an automatic bound, which is widened; one may be given
        given = getattr(getattr(trainer.policy, "value", None), "given_bounds", {})
        below = trainer.history.newest("update/clipped_below", PATIENCE)
        is_below = given.get("v_min") is not None
        if not is_below and given.get("v_max") is None:
            return None
        shares = below if is_below else shares - below
    lasts = len(shares) == PATIENCE and shares.min() > 0.05
    if not len(shares) or not (shares[-1] > 0.25 or lasts):
        return None
    return f"{shares[-1]:.0%} of the target lie beyond v_min..v_max, and are clipped: widen it, or scale the reward"


def constant_values(trainer: "Trainer") -> str | None:
    """Report values equal, to a hundredth, for all states and actions, for three epochs, unless returns are good."""
    highest, lowest = _newest(trainer, "update/q_max"), _newest(trainer, "update/q_min")
    if highest is None or lowest is None:
        return None
    differ = (highest - lowest > 0.01 * np.maximum(np.abs(highest), np.abs(lowest))).any()
    has_returns = _first(trainer, "train/returns/mean") is not None
    if differ or (has_returns and not _is_poor(trainer)):  # having learned all, it may see but equally good states
        return None
    return (
        f"Q is between {lowest[-1]:.5g} and {highest[-1]:.5g} for all states and actions: lower lr, scale "
        "observations (normalize_obs) and rewards, or seed another network"
    )


def wrong_values(trainer: "Trainer") -> str | None:
    """Report predictions that differ by a third from what greedy episodes return, for five evaluations, and stay so."""
    tags = ("start_values/mean", "discounted_returns/mean", "discounted_returns/std", "n_episode")
    columns = [column for tag in tags if (column := _newest(trainer, f"test/{tag}", N_TESTS)) is not None]
    if len(columns) < len(tags):
        return None
    predicted, returned, std, n_episodes = columns
    error, size = predicted - returned, np.maximum(np.abs(predicted), np.abs(returned))
    least = 0.1 * (np.abs(_present(trainer, "test/discounted_returns/mean")).max() or 1.0)
    tolerance = np.maximum(np.maximum(size / 3, 3 * std / np.sqrt(n_episodes)), least) + _entropy_bonus(trainer)
    is_over, is_under = (error > tolerance).all(), (error < -tolerance).all()
    if not (is_over or is_under) or abs(error[-1]) < 0.7 * abs(error[0]):
        return None
    if is_under and getattr(trainer.policy, "penalty", None) is not None:  # which is there to make it so
        return None
    if clipped_targets(trainer) is not None:  # which explains it
        return None
    is_huber = getattr(getattr(trainer.policy, "value", None), "kind", None) == "huber"
    too_low = "loss='mse', or more updates" if is_huber else "more updates"
    remedy = f"try {'double=True, a lower lr or a slower target' if is_over else too_low}"
    return f"Q predicts {predicted[-1]:.3g} where greedy episodes return {returned[-1]:.3g}, discounted: {remedy}"


# ---- rules: policies ----


def same_action(trainer: "Trainer") -> str | None:
    """Report one action that is taken in all steps of five evaluations, while their returns are poor."""
    shares = _newest(trainer, "test/top_action_share", N_TESTS)
    if shares is None or shares.min() < 1.0 or not _is_poor(trainer, "test"):
        return None
    return f"every step of {N_TESTS} evaluations took the same action: lower lr, or {_how_to_explore(trainer)}"


def collapsed_entropy(trainer: "Trainer") -> str | None:
    """Report an entropy below 15 % of the largest for three epochs, while returns are poor and stagnate."""
    recent, low = _newest(trainer, "update/entropy"), _low_entropy(trainer.policy.action_space)
    if recent is None or low is None or recent.max() > low or not _is_poor(trainer) or _improves(trainer):
        return None
    return f"entropy is {recent[-1]:.2g}, so that hardly anything is explored: {_how_to_explore(trainer)}, or lower lr"


def cold_softmax(trainer: "Trainer") -> str | None:
    """Report a temperature with which `SoftQ` takes the best action 999 times of 1,000, while returns are poor."""
    gaps, temperatures = _newest(trainer, "test/action_gaps/mean"), _newest(trainer, "explore/temperature")
    if gaps is None or temperatures is None or (gaps < 7 * temperatures).any() or not _is_poor(trainer):
        return None
    return (
        f"temperature {temperatures[-1]:.3g} is small for a gap of {gaps[-1]:.3g} between the two best values, so that "
        "nothing is explored: raise temperature"
    )


# ---- rules: gradients and steps ----


def zero_learning_rate(trainer: "Trainer") -> str | None:
    """Report a learning rate that is 0 in all updates of an epoch."""
    for tag, rate in trainer.history[-1].items():
        if rate == 0.0 and (tag == "update/lr" or (tag.startswith("update/") and tag.endswith("_lr"))):
            return f"{tag} is 0, and a schedule keeps its last value: give lr= one that ends above 0"
    return None


def exploding_gradients(trainer: "Trainer") -> str | None:
    """Report a gradient norm of a thousand times its median in five or more epochs before."""
    for tag in _norm_tags(trainer):
        norms = _present(trainer, tag)[-101:]
        usual = float(np.median(norms[:-1])) if len(norms) > 5 else math.inf
        if norms[-1] > 1e3 * usual > 0:
            return f"{tag} is {norms[-1]:.3g}, before {usual:.3g}: lower lr, give max_grad_norm, or clip the reward"
    return None


def clipped_gradients(trainer: "Trainer") -> str | None:
    """Report a mean gradient norm of a thousand times the limit of its clip, for three epochs."""
    steps = trainer.policy.gradient_steps if hasattr(trainer.policy, "gradient_steps") else {}
    for name, step in steps.items():
        tag = f"update/{name}_grad_norm" if len(steps) > 1 else "update/grad_norm"
        norms = _newest(trainer, tag)
        if norms is not None and step.clip is not None and norms.min() > 1e3 * step.clip.limit:
            remedy = "scale the reward, as by reward='return_scale'"
            return f"{tag} is {norms[-1]:.3g}, clipped to {step.clip.limit:g}: {remedy}"
    return None


DIAGNOSIS_RULES: tuple[Rule, ...] = (
    no_updates,
    constant_returns,
    zero_sum_returns,
    no_progress,
    worse_than_random,
    clipped_targets,
    constant_values,
    wrong_values,
    same_action,
    collapsed_entropy,
    cold_softmax,
    zero_learning_rate,
    exploding_gradients,
    clipped_gradients,
)


# ---- what rules have in common ----


def _has_opponents(trainer: "Trainer") -> bool:
    """Return whether policies, or agents of one policy, play each other, so that returns of games show no progress.

    Agents of one policy do in games that all return the same while some agent's returns differ, as zero-sum games do.
    """
    if len(trainer.history) == 0:
        return False
    newest = trainer.history[-1]
    if any(tag.startswith("train/policies/") for tag in newest):
        return True
    low, high = _extremes(trainer, "returns", 1)
    agents = [tag for tag in newest if tag.startswith("train/agents/") and tag.endswith("/returns/min")]
    return low == high and any(newest[tag] < newest[tag.removesuffix("min") + "max"] for tag in agents)


def _present(trainer: "Trainer", tag: str) -> NDArray[np.float64]:
    """Return all numbers of a tag, oldest first."""
    values = trainer.history.newest(tag)
    return values[~np.isnan(values)]


def _newest(trainer: "Trainer", tag: str, n: int = PATIENCE) -> NDArray[np.float64] | None:
    """Return the last n numbers of a tag [n], None if there are fewer."""
    values = _present(trainer, tag)
    return values[-n:] if len(values) >= n else None


def _first(trainer: "Trainer", tag: str) -> float | None:
    values = _present(trainer, tag)
    return float(values[0]) if len(values) else None


def _extremes(trainer: "Trainer", summary: str, n_epochs: int | None = None) -> tuple[float, float]:
    """Return the least and the largest of training and evaluation in the last epochs, or in all; nan for none."""
    lows, highs = (
        np.concatenate([trainer.history.newest(f"{group}/{summary}/{end}", n_epochs) for group in ("train", "test")])
        for end in ("min", "max")
    )
    return (math.nan, math.nan) if np.isnan(lows).all() else (float(np.nanmin(lows)), float(np.nanmax(highs)))


def _norm_tags(trainer: "Trainer") -> list[str]:
    return [tag for tag in trainer.history[-1] if tag.startswith("update/") and tag.endswith("grad_norm")]


def _threshold(trainer: "Trainer") -> float | None:
    """Return the return at which the environment counts as solved, if it was registered with one."""
    collector = trainer.train_collector
    spec = None if collector is None else gym.registry.get(collector.envs.name.rpartition(":")[2])
    return None if spec is None else spec.reward_threshold


def _is_solved(trainer: "Trainer", constant: float) -> bool:
    """Return whether episodes that all return a constant are solved.

    They reach the environment's threshold, or are paid for every step and as long as its limit allows.
    """
    threshold = _threshold(trainer)
    if threshold is not None:
        return constant >= threshold
    limit = getattr(getattr(trainer.train_collector, "envs", None), "max_episode_steps", None)
    return constant > 0 and limit is not None and _extremes(trainer, "lengths", 1) == (limit, limit)


def _is_poor(trainer: "Trainer", *groups: str) -> bool:
    """Return whether returns are clearly below the environment's threshold, or not clearly above the first epoch's.

    They are those of training and evaluation, whichever are better, or of the given one.
    """
    recent = [_newest(trainer, f"{group}/returns/mean") for group in groups or ("train", "test")]
    means = [values.mean() for values in recent if values is not None]
    first, spread = _first(trainer, "train/returns/mean"), _first(trainer, "train/returns/std")
    if not means or first is None or spread is None:
        return False
    threshold = _threshold(trainer)
    return bool(max(means) < (first + spread if threshold is None else threshold - 0.1 * abs(threshold - first)))


def _improves(trainer: "Trainer") -> bool:
    """Return whether a training return of the last three epochs is the best of all."""
    means = _present(trainer, "train/returns/mean")
    return len(means) > PATIENCE and bool(means[-PATIENCE:].max() > means[:-PATIENCE].max())


def _low_entropy(space: object) -> float | None:
    """Return the entropy in nats below which a policy hardly explores: 15 % of the largest, or std 0.02 of -1..1."""
    if isinstance(space, spaces.Discrete):
        return 0.15 * math.log(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return 0.15 * float(np.log(space.nvec).sum())
    if isinstance(space, spaces.MultiBinary):
        return 0.15 * math.log(2) * math.prod(space.shape)
    if isinstance(space, spaces.Box):
        return math.prod(space.shape) * (math.log(0.02) + 0.5 * math.log(2 * math.pi * math.e))
    return None


def _entropy_bonus(trainer: "Trainer") -> float:
    """Return the largest size of the entropy bonuses in SAC's values, which returns do not have."""
    temperature, entropy = _newest(trainer, "update/temperature", 1), _newest(trainer, "update/entropy", 1)
    if temperature is None or entropy is None:
        return 0.0
    gamma: float = trainer.policy.horizon.gamma
    return abs(float(temperature[0] * entropy[0])) * gamma / max(1.0 - gamma, 1e-3)


def _first_of_all(trainer: "Trainer", *remedies: str | None) -> str:
    """Return a list of remedies: those given, then those for any policy that are not in use yet."""
    policy = trainer.policy
    scaling = "scale the reward" if getattr(getattr(policy, "horizon", None), "reward", None) is None else None
    is_normalized = getattr(getattr(policy, "preprocess", None), "observes", False)
    normalizing = None if is_normalized else "normalize_obs=True"
    known = [one for one in (*remedies, scaling, normalizing) if one is not None]
    return f"{', '.join(known)}, or {_how_to_explore(trainer)}"


def _higher_gamma(trainer: "Trainer") -> str | None:
    """Return the remedy for a discount factor that sees few steps ahead, None for another."""
    gamma = getattr(trainer.policy, "gamma", None)
    return f"a higher gamma than {gamma:g}" if isinstance(gamma, float | int) and gamma < 0.9 else None


def _how_to_explore(trainer: "Trainer") -> str:
    """Return what makes a policy of this kind explore more."""
    if hasattr(trainer.policy, "entropy_weight"):
        return "raise entropy_weight"
    if getattr(trainer.policy, "target_entropy", None) is not None:
        return "give exploration=ColoredNoise(), or raise target_entropy"
    if getattr(getattr(trainer.policy, "distribution", None), "noise_std", None) is not None:
        return "give exploration=ColoredNoise(), or a larger noise_std"
    if hasattr(trainer.policy, "action_values"):
        repeats = isinstance(getattr(trainer.policy, "exploration", None), EZGreedy)
        how = "by a higher epsilon" if repeats else "and in longer stretches (EZGreedy)"
        return f"explore for longer {how}, raise n_step"
    return "explore more"

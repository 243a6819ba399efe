"""Fragments: the bits do not depend on their length, versions are true, no row is lost, a resumed run is exact."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.extensions.actors.local_actors import Counting, Here, check_rows, runner_of
from tests.helpers.doubles import Still
from tests.helpers.padded import Flicker, assert_same_rows, by_gymnasium, collected
from tests.trainer.toys import everything


def make_run(
    *, exploration: Any = None, normalize_obs: bool = False, seed: int = 3, envs: Any = None, **options: Any
) -> tk.OffpolicyTrainer[Any]:
    """Return a small run of DQN with four environments in two actors."""
    own = dict(envs or {})
    how = {name: own.pop(name) for name in ("fragment", "lag", "where") if name in own}
    made = tk.make_envs("CartPole-v1", 4, seed=seed, backend=tk.envs.Actors(2, **how), **own)
    policy = tk.DQNPolicy.for_envs(
        made,
        hidden=(8,),
        seed=1,
        exploration=exploration or tk.EpsilonGreedy(0.2),
        normalize_obs=normalize_obs,
        optimizer=tk.Adam(lr=0.01),
    )
    collector = tk.Collector(policy, made, tk.ReplayBuffer(1_000))
    given = {"max_epoch": 2, "step_per_epoch": 160, "batch_size": 8, "update_per_step": 0.5, "learning_starts": 32}
    return tk.OffpolicyTrainer(policy, collector, seed=5, verbose=False, **{**given, **options})


def bits(trainer: tk.OffpolicyTrainer[Any]) -> dict[str, Any]:
    with trainer:
        trainer.run()
    return everything(trainer)


@pytest.mark.usefixtures("here")
def test_the_length_of_a_fragment_changes_no_bit_where_no_update_comes_between() -> None:
    eight_steps = {"step_per_collect": 32}
    expected = bits(make_run(envs={"fragment": 8}, **eight_steps))
    for fragment in (2, 3, 100):
        assert bits(make_run(envs={"fragment": fragment}, **eight_steps)) == expected
    assert bits(make_run(envs={"fragment": 8}, seed=4, **eight_steps)) != expected


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("lag", "step_per_collect", "oldest"), [(0, 4, 0), (0, 16, 0), (5, 4, 4), (14, 16, 8), (40, 4, 14), (40, 16, 8)]
)
def test_a_row_has_the_version_of_its_weights_and_is_never_older_than_lag(
    lag: int, step_per_collect: int, oldest: int
) -> None:
    trainer = make_run(
        envs={"fragment": 4, "lag": lag}, exploration=tk.Greedy(), step_per_collect=step_per_collect, max_epoch=1
    )
    policy, buffer = trainer.policy, trainer.buffer
    weights, rows, ages = {0: policy.get_weights()}, [], []
    update, add = policy.update, buffer.add

    def noted_update(*given: Any, **options: Any) -> Any:
        result = update(*given, **options)
        weights[policy.n_updates] = policy.get_weights()
        return result

    def noted_add(transition: tk.Transition) -> Any:
        versions = transition.extras["policy_version"]
        ages.extend(policy.n_updates - versions)
        rows.extend(zip(transition.obs.copy(), transition.action.copy(), versions, strict=True))
        return add(transition)

    policy.update, buffer.add = noted_update, noted_add  # type: ignore[method-assign]
    with trainer:
        weights[0] = policy.get_weights()  # drawn by the trainer's seed
        info = trainer.run()
    assert info.gradient_step == (160 - 32 + step_per_collect) // 2, "the exact ratio, from the collect that reaches 32"
    assert (min(ages), max(ages)) == (0, max(ages))
    assert oldest <= max(ages) <= lag
    copied = tk.DQNPolicy.for_envs(trainer.train_collector.envs, hidden=(8,), seed=9)  # type: ignore[union-attr]
    for version in {version for _, _, version in rows}:
        copied.set_weights(weights[int(version)])
        of_it = [(obs, action) for obs, action, its in rows if its == version]
        chosen = copied.act(np.stack([obs for obs, _ in of_it])).action
        np.testing.assert_array_equal(chosen, [action for _, action in of_it])


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("lag", "step_per_collect"), [(0, 32), (40, 4), (40, 16)])
def test_a_run_that_is_saved_within_a_fragment_continues_with_the_same_bits(
    tmp_path: Path, lag: int, step_per_collect: int
) -> None:
    def run(*, breaks_at: list[int] | None = None, **options: Any) -> tk.OffpolicyTrainer[Any]:
        def on_step(trainer: Any, *given: Any) -> None:
            if breaks_at and trainer.train_collector.env_step == breaks_at[0]:
                breaks_at.clear()
                raise RuntimeError("enough")

        return make_run(
            envs={"fragment": 5, "lag": lag, "stack": 2},
            normalize_obs=True,
            step_per_collect=step_per_collect,
            callbacks=tk.on(episode_step=on_step),
            **options,
        )

    expected = bits(run())
    first = run(breaks_at=[88])
    with first:
        with pytest.raises(RuntimeError, match="enough"):
            first.run()
        first.save(tmp_path)
        assert first.train_collector is not None
        assert [actor.n_ahead > 0 for actor in runner_of(first.train_collector).actors] == [True, True]
        first.run()
    assert everything(first) == expected
    again = run(resume_from=tmp_path)
    assert again.clock < 160
    assert bits(again) == expected


class Picky:
    """Explores not at all, and raises in one state."""

    def choose(self, q: Any, legal: Any, *, step: int, **options: Any) -> Any:
        if step == 8 * 4:
            raise RuntimeError("not this step")
        return q.argmax(axis=1)

    def metrics(self, step: int) -> dict[str, float]:
        return {}


@pytest.mark.usefixtures("here")
def test_a_policys_error_in_an_actor_is_raised_after_the_steps_before_it() -> None:
    envs = tk.make_envs(Counting, 4, seed=1, backend=tk.envs.Actors(2, fragment=5))
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), seed=1, exploration=Picky())
    collector = tk.Collector(policy, envs, tk.ReplayBuffer(1_000))
    with pytest.raises(RuntimeError, match="not this step") as caught:
        collector.collect(n_step=4 * 20)
    assert "in an actor of environments" in "".join(caught.value.__notes__)
    assert collector.env_step == 8 * 4
    with pytest.raises(RuntimeError, match="not this step"):
        collector.resume()
    collector.reset()
    policy.exploration = tk.Greedy()
    assert collector.collect(n_episode=2).n_episode == 2
    check_rows(collector)


@pytest.mark.usefixtures("here")
def test_weights_that_are_not_finite_are_rejected_by_the_copies() -> None:
    trainer = make_run(envs={"fragment": 4}, step_per_collect=16)
    weights = trainer.policy.get_weights()
    trainer.policy.get_weights = lambda: {name: weight * np.nan for name, weight in weights.items()}
    with pytest.raises(tk.errors.CheckpointError) as caught:
        trainer.run()
    assert "in an actor of environments" in "".join(caught.value.__notes__)


def test_other_collects_play_here(here: list[Here]) -> None:
    trainer = make_run(envs={"fragment": 4, "lag": 100})
    collector = trainer.train_collector
    assert collector is not None
    next(trainer)
    assert runner_of(collector).actors[0].n_ahead > 0
    with pytest.raises(tk.errors.BusyError, match="have played ahead, up to"):
        collector.collect(n_step=8, random=True)
    assert collector.collect(n_episode=3).n_episode == 3, "it begins with a reset"
    collector.reset()
    assert collector.collect(n_step=8, random=True).n_step == 8
    assert collector.collect(n_step=8).n_step == 8
    others = tk.make_envs("CartPole-v1", 2, seed=1, backend=tk.envs.Actors(2, fragment=3))
    evaluated = tk.Collector(trainer.policy, others)
    assert evaluated.acts_here
    assert evaluated.collect(n_episode=2).n_episode == 2


def test_a_rollout_of_fragments_has_the_current_weights_and_their_log_probabilities(
    here: list[Here], monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = tk.make_envs("CartPole-v1", 4, seed=1, backend=tk.envs.Actors(2, fragment=6))
    policy = tk.PPOPolicy.for_envs(envs, hidden=(8,), seed=1, optimizer=tk.Adam(lr=0.1))
    buffer = tk.RolloutBuffer()
    collector = tk.Collector(policy, envs, buffer)
    trainer = tk.OnpolicyTrainer(
        policy, collector, max_epoch=1, step_per_epoch=256, step_per_collect=128, batch_size=64, verbose=False
    )
    learn, versions = tk.PPOPolicy.learn, []

    def checked(own: Any, *given: Any, **options: Any) -> Any:
        rows = buffer.read(policy.horizon, ("log_prob", "policy_version"))
        probability = policy.action_probability(rows.obs.reshape(128, 4), explore=True)
        chosen = probability[np.arange(128), rows.action.ravel()]
        np.testing.assert_allclose(np.exp(rows.extras["log_prob"].ravel()), chosen, rtol=1e-5)
        versions.append({*rows.extras["policy_version"].ravel().tolist()})
        return learn(own, *given, **options)

    monkeypatch.setattr(tk.PPOPolicy, "learn", checked)
    with trainer:
        trainer.run()
    assert versions == [{0}, {policy.n_updates // 2}]


def rejected(**options: Any) -> str:
    with pytest.raises(tk.ConfigError) as caught:
        make_run(**options)
    return str(caught.value)


def test_what_cannot_work_is_rejected(here: list[Here]) -> None:
    stateful = {"exploration": tk.EZGreedy(0.1), "envs": {"fragment": 2}}
    assert "has a state from step to step, or its exploration has, which copies in actors do not share" in rejected(
        **stateful
    )
    assert "OffpolicyTrainer.overlap needs a policy that acts here" in rejected(envs={"lag": 2}, overlap=True)
    envs = tk.make_envs("CartPole-v1", 4, backend=tk.envs.Actors(2, fragment=2))

    class Own(Still):
        """A policy that cannot be copied."""

    with pytest.raises(tk.ConfigError, match=r"Own cannot be copied to actors, without get_weights and on_cpu"):
        tk.Collector(Own(), envs, tk.ReplayBuffer(10))  # type: ignore[arg-type]
    late = tk.make_envs("CartPole-v1", 4, backend=tk.envs.Actors(2, lag=2))
    policy = tk.PPOPolicy.for_envs(late, hidden=(8,))
    collector = tk.Collector(policy, late, tk.RolloutBuffer())
    with pytest.raises(tk.ConfigError, match="up to 2 updates old, and only rows of the current"):
        tk.OnpolicyTrainer(policy, collector, max_epoch=1, step_per_epoch=64, step_per_collect=32)


def digest(trainer: tk.OffpolicyTrainer[Any]) -> str:
    """Return a digest of a run's rows and weights."""
    with trainer:
        trainer.run()
    rows = trainer.buffer.sample(None, horizon=trainer.policy.horizon, step=0)
    parts = [rows.obs, rows.action, rows.reward, *trainer.policy.get_weights().values()]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 40])
def test_processes_have_the_bits_of_actors_in_this_process(monkeypatch: pytest.MonkeyPatch, lag: int) -> None:
    def run() -> str:
        return digest(make_run(envs={"fragment": 3, "lag": lag}, step_per_collect=16))

    by_processes = run()
    monkeypatch.setattr("trainkit.extensions.actors.actor_runner.actor_process", Here)
    assert run() == by_processes


@pytest.mark.slow
@pytest.mark.global_rng  # Ray draws from that of random
@pytest.mark.timeout(600)
def test_ray_has_the_bits_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init(num_cpus=3, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        options: dict[str, Any] = {"fragment": 3, "lag": 40}
        by_ray = digest(make_run(envs={**options, "where": "ray"}, step_per_collect=16))
    finally:
        ray.shutdown()
    assert by_ray == digest(make_run(envs=options, step_per_collect=16))


@pytest.mark.usefixtures("here")
def test_stacks_that_are_padded_with_zeros_are_the_same_in_fragments() -> None:
    backend = tk.envs.Actors(2, fragment=3)
    envs = tk.make_envs(Flicker, 2, seed=3, backend=backend, stack=4, pad="zero")
    assert_same_rows(collected(envs, 7, 1, 150), by_gymnasium(7, 1, 150))

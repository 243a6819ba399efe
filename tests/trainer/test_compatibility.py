"""The parts of a run: those that do not fit are refused, and one seed reaches every stream of those without one."""

from typing import Any

import pytest

import trainkit as tk
from tests.trainer.toys import Walk, everything, make_policy, make_trainer
from trainkit.core.observations import ObservationReader

# ---- fitting ----


def refused(policy: Any, collector: Any, **options: Any) -> str:
    with pytest.raises(tk.ConfigError) as caught:
        tk.OffpolicyTrainer(policy, collector, max_epoch=1, step_per_epoch=1, batch_size=1, **options)
    return str(caught.value)


def test_parts_that_do_not_fit_are_refused() -> None:
    envs = tk.make_envs(Walk, 2)
    policy, other, random = make_policy(envs), make_policy(envs), tk.RandomPolicy(envs.action_space)
    train = tk.Collector(policy, envs, tk.ReplayBuffer(10))

    def test(policy: Any, envs: tk.Envs) -> tk.Collector:
        return tk.Collector(policy, envs)

    class Longer(Walk):
        observation_space = type(Walk.observation_space)(-99, 99, (2,))

    assert "train_collector must be a Collector, got Envs" in refused(policy, envs)
    assert "train_collector has no buffer to learn from" in refused(policy, test(policy, tk.make_envs(Walk)))
    assert "train_collector acts with another policy than the trainer's" in refused(other, train)
    theirs = test(other, tk.make_envs(Walk))
    assert "test_collector acts with another policy" in refused(policy, train, test_collector=theirs)
    with pytest.raises(tk.ConfigError, match="already belong to a Collector"):
        test(policy, envs)
    untold = make_policy(envs, observation_space=None)
    train = tk.Collector(untold, tk.make_envs(Walk), tk.ReplayBuffer(10))
    untold._observations = ObservationReader(None)
    assert "training environments have spaces" in refused(
        untold, train, test_collector=test(untold, tk.make_envs(Longer))
    )
    idle = tk.Collector(random, tk.make_envs(Walk), tk.ReplayBuffer(10))
    assert "OffpolicyTrainer.policy must learn, but RandomPolicy has no update" in refused(random, idle)


# ---- seeds ----

STREAMS = {
    "initial weights": "/policy/weights/network.encoder.body.layers.0.weight",
    "noise": "/policy/streams/noise/state",
    "exploration": "/policy/streams/rng/state/state",
    "draws": "/buffer/rng/state/state",
    "episodes": "/collector/envs/root",
    "random actions": "/collector/rng/state/state",
    "evaluation": "/trainer/evaluation/evaluation/root",
}


@pytest.mark.parametrize("stream", STREAMS)
def test_another_seed_changes_every_stream(stream: str) -> None:
    streams = {everything(make_trainer(test=True, seed=seed))[STREAMS[stream]] for seed in range(5)}
    assert len(streams) == 5


def test_all_streams_of_one_seed_differ_from_each_other() -> None:
    state = everything(make_trainer(test=True))
    numbers = [value for stream, path in STREAMS.items() if isinstance(value := state[path], int)]
    assert len(set(numbers)) == len(numbers) == 5


def test_training_and_evaluation_never_play_the_same_episodes() -> None:
    trainer = make_trainer(test=True)
    test = trainer.evaluation_schedule.evaluation
    roots = {trainer.train_collector.envs.root, test.collector.envs.root, test.root}
    assert len(roots) == 3


def test_without_a_seed_no_two_runs_are_alike() -> None:
    one, two = (everything(make_trainer(test=True, seed=None)) for _ in range(2))
    for path in STREAMS.values():
        assert one[path] != two[path]


def test_a_part_with_a_seed_of_its_own_keeps_it() -> None:
    def run(seed: int) -> dict[str, Any]:
        envs, test_envs = tk.make_envs(Walk, 2, seed=11), tk.make_envs(Walk, 2)
        policy = make_policy(envs, seed=12)
        train = tk.Collector(policy, envs, tk.ReplayBuffer(50, seed=13))
        evaluation = tk.Evaluation(tk.Collector(policy, test_envs), seed=14)
        return everything(
            tk.OffpolicyTrainer(
                policy, train, max_epoch=1, step_per_epoch=1, batch_size=1, evaluation=evaluation, seed=seed
            )
        )

    one, two = run(1), run(2)
    changed = {name for name, path in STREAMS.items() if one[path] != two[path]}
    assert changed == {"random actions"}  # the collector's own, which has no seed to be given
    assert one[STREAMS["episodes"]] == 11
    assert one[STREAMS["evaluation"]] == 14


def test_steps_made_before_the_trainers_seed_reached_the_environments_are_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warm_up(seed: int | None) -> None:
        envs = tk.make_envs(Walk, 2, seed=seed)
        train = tk.Collector(make_policy(envs), envs, tk.ReplayBuffer(50))
        train.collect(n_step=6, random=True)
        tk.OffpolicyTrainer(train.policy, train, max_epoch=1, step_per_epoch=1, batch_size=1, seed=1)

    warm_up(seed=3)
    assert caplog.records == []
    warm_up(seed=None)
    assert "made 6 steps before the trainer's seed could reach its environments" in caplog.text

"""Ready processors: exact mappings, what each kind of action looks like when there was none, whole runs with them."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.tagged import legal
from tests.helpers.told import ToldEnv, answer
from tests.helpers.truth import tagged_envs
from trainkit.core.data import ACTION_MASK
from trainkit.core.errors import ConfigError, SpaceMismatchError
from trainkit.envs import DiscretizeActions, Flatten, MapObs, PreviousStep, TimeFeature, make_envs

F32 = np.float32


def taken(space: gym.Space[Any], *processors: Any, actions: list[int]) -> list[Any]:
    """Return what an environment with these actions got for the policy's."""
    envs = make_envs(partial(ToldEnv, action_space=space), processors=processors)
    envs.reset()
    for action in actions:
        envs.step(np.array([action]), envs.all_ids)
    (env,) = envs._backend._backend.envs  # type: ignore[attr-defined]  # Processed, SyncBackend
    return [np.asarray(one).tolist() for one in env.actions]


class TestDiscretizeActions:
    def test_values_are_evenly_spaced_between_bounds_that_are_met_exactly(self) -> None:
        box = gym.spaces.Box(-2, 2, (1,), F32)
        assert taken(box, DiscretizeActions(5), actions=[0, 1, 2, 3, 4]) == [[-2], [-1], [0], [1], [2]]
        narrow = gym.spaces.Box(-0.1, 0.7, (1,), F32)
        first, *_, last = taken(narrow, DiscretizeActions(7), actions=list(range(7)))
        assert (first, last) == ([float(F32(-0.1))], [float(F32(0.7))])

    def test_every_combination_of_axes_is_an_action_the_last_varying_fastest(self) -> None:
        box = gym.spaces.Box(np.array([-1, 0], F32), np.array([1, 4], F32))
        expected = [[-1, 0], [-1, 2], [-1, 4], [1, 0], [1, 2], [1, 4]]
        assert taken(box, DiscretizeActions([2, 3]), actions=list(range(6))) == expected

    def test_a_box_keeps_its_shape_and_dtype(self) -> None:
        box = gym.spaces.Box(-1, 1, (2, 1), np.float64)
        envs = make_envs(partial(ToldEnv, action_space=box), 3, processors=[DiscretizeActions(2)])
        assert envs.action_space == gym.spaces.Discrete(4)
        envs.reset()
        envs.step(np.array([0, 1, 3]), envs.all_ids)
        got = [env.actions[0] for env in envs._backend._backend.envs]  # type: ignore[attr-defined]  # as above
        assert [one.tolist() for one in got] == [[[-1], [-1]], [[-1], [1]], [[1], [1]]]
        assert {one.dtype for one in got} == {np.dtype(np.float64)}

    @pytest.mark.parametrize(
        ("space", "bins", "message"),
        [
            (gym.spaces.Discrete(2), 3, r"needs a Box of real numbers to act in, got Discrete\(2\)"),
            (gym.spaces.Box(0, 9, (1,), np.int32), 3, "needs a Box of real numbers"),
            (gym.spaces.Box(-np.inf, 1, (1,)), 3, "needs bounds to space its values between, got Box"),
            (gym.spaces.Box(-1, 1, (2,)), [3], r"bins must be one number per axis of Box.*got \[3\]"),
            (gym.spaces.Box(-1, 1, (8,)), 5, "makes 390,625 actions of .*, more than 65,536: use fewer bins"),
        ],
    )
    def test_an_unsupported_space_or_number_of_bins_is_rejected(self, space: Any, bins: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=rf"processors\[0\] \(DiscretizeActions\): DiscretizeActions.*{message}"):
            make_envs(partial(ToldEnv, action_space=space), processors=[DiscretizeActions(bins)])

    @pytest.mark.parametrize("bins", [1, 2.5, [3, 1], True])
    def test_bins_are_whole_numbers_from_two_on(self, bins: Any) -> None:
        with pytest.raises(ConfigError, match=r"DiscretizeActions.bins must be a whole number >= 2"):
            DiscretizeActions(bins)


class TestPreviousStep:
    @pytest.mark.parametrize(
        ("space", "action", "seen", "none", "before"),
        [
            (gym.spaces.Discrete(3, start=4), 2, gym.spaces.Discrete(4, start=4), 7, 6),
            (
                gym.spaces.MultiDiscrete([2, 3], start=[1, 5]),
                [2, 7],
                gym.spaces.MultiDiscrete([3, 4], start=[1, 5]),
                [3, 8],
                [2, 7],
            ),
            (gym.spaces.MultiBinary(2), [0, 1], gym.spaces.MultiDiscrete([3, 3]), [2, 2], [0, 1]),
            (gym.spaces.Box(1, 3, (1,), F32), [9.0], gym.spaces.Box(0, 3, (1,), F32), [0.0], [3.0]),
        ],
        ids=["Discrete", "MultiDiscrete", "MultiBinary", "Box"],
    )
    def test_each_kind_of_action_has_one_that_is_none(
        self, space: Any, action: Any, seen: Any, none: Any, before: Any
    ) -> None:
        envs = make_envs(partial(ToldEnv, action_space=space, steps=[answer(reward=2.5)]), processors=[PreviousStep()])
        assert envs.observation_space["prev_action"] == seen
        first = envs.reset()
        assert first["prev_action"][0].tolist() == none
        assert first["prev_reward"].tolist() == [[0.0]]
        outcome = envs.step(np.array([action]), envs.all_ids)
        assert outcome.next_obs["prev_action"][0].tolist() == before
        assert outcome.next_obs["prev_reward"].tolist() == [[2.5]]
        for obs in (first, outcome.next_obs):
            assert envs.observation_space.contains({key: leaf[0] for key, leaf in obs.items()})

    def test_either_half_may_be_left_out_but_not_both(self) -> None:
        one, other = (
            make_envs(ToldEnv, processors=[half]) for half in (PreviousStep(reward=False), PreviousStep(action=False))
        )
        assert sorted(one.reset()) == ["obs", "prev_action"]
        assert sorted(other.reset()) == ["obs", "prev_reward"]
        with pytest.raises(ConfigError, match="shows neither action nor reward: leave it out"):
            PreviousStep(action=False, reward=False)

    def test_a_policy_sees_one_number_per_action_and_one_for_none(self) -> None:
        envs = make_envs(ToldEnv, 2, processors=[PreviousStep()], stack=2)
        policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu", seed=0)
        obs = envs.reset()
        features = policy.features(obs)
        assert features["prev_action"].tolist() == [[0, 0, 1, 0, 0, 1]] * 2  # two frames of three numbers
        obs = envs.step(np.array([0, 1]), envs.all_ids).next_obs
        features = policy.features(obs)
        assert features["prev_action"].tolist() == [[0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 1, 0]]
        assert features["prev_reward"].tolist() == [[0, 1], [0, 1]]


def test_time_runs_from_0_to_1_and_stays_there() -> None:
    envs = make_envs(ToldEnv, processors=[TimeFeature(2)])
    seen = [envs.reset()["time"].tolist()]
    seen += [envs.step(np.array([0]), envs.all_ids).next_obs["time"].tolist() for _ in range(3)]
    assert seen == [[[0.0]], [[0.5]], [[1.0]], [[1.0]]]
    with pytest.raises(ConfigError, match=r"TimeFeature.limit must be a whole number >= 1, got 0"):
        TimeFeature(0)


def test_a_method_that_an_object_chose_when_it_was_bound_is_called() -> None:
    class Tenfold(tk.envs.Processor):
        def bind(self, observation_space: Any, action_space: Any, n: int) -> Any:
            self.begin = lambda obs, env_ids: 10 * obs  # type: ignore[method-assign]
            return observation_space, action_space

    plain, tenfold = (tk.make_envs("CartPole-v1", 2, seed=1, processors=own) for own in ((), (Tenfold(),)))
    np.testing.assert_array_equal(tenfold.reset(), 10 * plain.reset())


class TestFlatten:
    SPACE = gym.spaces.Dict(
        {
            "b": gym.spaces.Tuple((gym.spaces.Discrete(3, start=5), gym.spaces.MultiBinary(2))),
            "a": gym.spaces.Box(-1, 9, (2, 2), np.int32),
            "c": gym.spaces.MultiDiscrete([[2], [3]], start=[[1], [4]]),
        }
    )
    OBS: ClassVar = {"b": (6, np.array([0, 1], np.int8)), "a": np.array([[1, 2], [3, -1]]), "c": np.array([[2], [4]])}
    FLAT: ClassVar = [1, 2, 3, -1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0]  # a, both of b, c: by the names of their keys

    def test_every_leaf_becomes_numbers_in_the_order_of_its_key(self) -> None:
        told = partial(ToldEnv, observation_space=self.SPACE, resets=[(self.OBS, {})], steps=[answer(obs=self.OBS)])
        envs = make_envs(told, 2, processors=[Flatten()])
        first = envs.reset()
        assert first.tolist() == [self.FLAT] * 2
        assert first.dtype == F32
        assert envs.step(np.array([0, 1]), envs.all_ids).next_obs.tolist() == [self.FLAT] * 2
        space = envs.observation_space
        assert isinstance(space, gym.spaces.Box)
        assert (space.low[:5].tolist(), space.high[:5].tolist()) == ([-1, -1, -1, -1, 0], [9, 9, 9, 9, 1])
        assert space.contains(first[0])

    def test_a_mask_stays_a_leaf_of_its_own(self) -> None:
        envs = tagged_envs("sync", 2, "masked", processors=[PreviousStep(action=False), Flatten()])
        obs = envs.reset()
        assert sorted(obs) == [ACTION_MASK, "obs"]
        assert obs["obs"].tolist() == [[0, 0, 0, -1, 0], [1, 0, 0, -1, 0]]
        np.testing.assert_array_equal(obs[ACTION_MASK], legal(np.arange(2), 0, 0))

    def test_a_policy_makes_the_same_of_it_as_of_the_tree(self) -> None:
        chain = [PreviousStep(), TimeFeature(9)]
        nested, flat = (make_envs(ToldEnv, 2, processors=own) for own in (chain, [*chain, Flatten()]))
        features = tk.nets.Preprocess(nested.observation_space)
        for envs in (nested, flat):
            envs.reset()
            envs.step(np.array([0, 1]), envs.all_ids)
        obs = {key: torch.as_tensor(leaf) for key, leaf in nested.obs.items()}
        joined = torch.cat([leaf for _, leaf in sorted(features(obs).items())], dim=1)
        np.testing.assert_array_equal(joined, flat.obs)


@pytest.mark.parametrize("kind", [MapObs, tk.envs.MapActions])
def test_a_function_and_its_space_are_required(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"fn must be callable, got 3"):
        kind(3, gym.spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"space must be a Space, got 'Box'"):
        kind(lambda rows: rows, "Box")


# ---- whole runs ----


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_q_learner_drives_the_pendulum(backend: Any) -> None:
    options: dict[str, Any] = {"processors": [PreviousStep(), DiscretizeActions(5)]}
    envs = make_envs("Pendulum-v1", 2, backend=backend, **options)
    policy = tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu")
    buffer = tk.ReplayBuffer(300)
    with tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, buffer),
        max_epoch=1,
        step_per_epoch=300,
        batch_size=8,
        update_per_step=0.1,
        seed=1,
        verbose=False,
    ) as trainer:
        trainer.run()
    batch = buffer.sample(200, horizon=tk.Horizon())
    assert batch.action.dtype == np.int64
    assert set(batch.action.tolist()) == {0, 1, 2, 3, 4}
    np.testing.assert_array_equal(
        batch.next_obs["prev_action"][:, 0], [-2.0, -1.0, 0.0, 1.0, 2.0] @ np.eye(5)[batch.action].T
    )
    assert tk.evaluate(policy, "Pendulum-v1", n_episode=2, seed=1, **options).n_episode == 2


def test_a_preset_takes_them_for_training_and_evaluation() -> None:
    options = {"processors": [TimeFeature(200), DiscretizeActions(3)]}
    trainer = tk.presets.dqn(
        "Pendulum-v1", seed=1, env_options=options, max_epoch=1, step_per_epoch=424, learning_starts=400, verbose=False,
        n_envs=2, n_test_envs=2, episode_per_test=2, hidden=(8,), device="cpu",
    )  # fmt: skip
    with trainer:
        assert trainer.run().env_step == 424


@pytest.mark.parametrize("kind", ["off-policy", "on-policy"])
def test_a_run_with_processors_that_was_saved_is_the_run_that_never_stopped(kind: str, tmp_path: Path) -> None:
    def trainer(**more: Any) -> Any:
        options = {"processors": [PreviousStep(), TimeFeature(100)], "stack": 2}
        common: dict[str, Any] = {"seed": 1, "verbose": False, "hidden": (8,), "device": "cpu", "step_per_epoch": 64}
        preset = tk.presets.dqn if kind == "off-policy" else tk.presets.ppo
        own: dict[str, Any] = {"learning_starts": 32} if kind == "off-policy" else {"step_per_collect": 64}
        return preset("CartPole-v1", env_options=options, max_epoch=3, episode_per_test=2, **common, **own, **more)

    with trainer() as straight:
        next(straight)
        straight.save(tmp_path / "run")
        straight.run()
    with trainer(resume_from=tmp_path / "run") as again:
        assert again.run().epoch == 3
    weights = [torch.cat([own.detach().flatten() for own in one.policy.parameters()]) for one in (straight, again)]
    assert torch.equal(*weights)  # the episodes that were open went on where they were


def test_a_policy_for_other_processors_is_rejected() -> None:
    policy = tk.DQNPolicy.for_envs(make_envs("CartPole-v1"), device="cpu")
    with pytest.raises(SpaceMismatchError, match="observation_space is Box"):
        tk.evaluate(policy, "CartPole-v1", n_episode=1, processors=[PreviousStep()])

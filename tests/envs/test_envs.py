"""N environments as one: stacks, masks, seeds, and and data that must not be learned from rejected."""

import itertools
import random
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from tests.helpers.scripted_env import OBS, STEP, ScriptedEnv, ScriptedVectorEnv, answer
from tests.helpers.tagged import N_ACTIONS, TaggedEnv, decode
from tests.helpers.truth import tagged_envs
from trainkit.core.data import ACTION_MASK
from trainkit.core.errors import BadEnvDataError, EnvError
from trainkit.core.extensions import present
from trainkit.core.seeding import episode_seed
from trainkit.envs import Envs, make_envs
from trainkit.envs.validation import ActionValidator

ZEROS = np.zeros(2, np.int64)


def scripted_envs(*steps: Any, **options: Any) -> Envs:
    """Make a faultless environment 0 and an environment 1 that answers these steps."""
    return make_envs([partial(ScriptedEnv, **options), partial(ScriptedEnv, steps=steps or (STEP,), **options)], seed=7)


def play(envs: Envs, *actions: Any) -> list[Any]:
    """Reset and step all environments, with zeros unless actions are given."""
    envs.reset()
    return [envs.step(np.asarray(action), envs.all_ids) for action in actions or (ZEROS,)]


# ---- stacks ----


def test_a_stack_begins_with_copies_of_the_first_frame_and_slides() -> None:
    envs = tagged_envs("sync", 2, stack=3)
    assert envs.observation_space.shape == (3, 4)
    assert envs.frame_space.shape == (4,)
    seen = [decode(envs.reset())[1, :, 2].tolist()]
    for _ in range(4):
        outcome = envs.step(ZEROS, envs.all_ids)
        np.testing.assert_array_equal(outcome.next_obs, envs.obs)
        ended = outcome.terminated | outcome.truncated
        seen.append(decode(outcome.next_obs)[1, :, 2].tolist())
        envs.begin(np.flatnonzero(ended))
    assert seen == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_a_new_episodes_stack_holds_nothing_of_the_last_one() -> None:
    envs = tagged_envs("sync", 1, stack=3)  # its first episode has one step
    envs.reset()
    outcome = envs.step(ZEROS[:1], envs.all_ids)
    assert decode(outcome.next_obs)[0, :, 1:3].tolist() == [[0, 0], [0, 0], [0, 1]]
    envs.begin(envs.all_ids)
    assert decode(envs.obs)[0, :, 1:3].tolist() == [[1, 0], [1, 0], [1, 0]]


@pytest.mark.parametrize("way", ["sync", "SyncVectorEnv SAME_STEP"])
@pytest.mark.parametrize("stack", [1, 3])
def test_beginning_an_episode_leaves_the_last_steps_outcome_alone(way: str, stack: int) -> None:
    envs = tagged_envs(way, 3, stack=stack)
    envs.reset()
    outcome = envs.step(np.zeros(3, np.int64), envs.all_ids)
    kept = outcome.next_obs.copy()
    envs.begin(np.array([0]))
    np.testing.assert_array_equal(outcome.next_obs, kept)
    assert (envs.obs[0] != kept[0]).any()
    np.testing.assert_array_equal(envs.obs[1:], kept[1:])


def test_every_leaf_is_stacked_but_the_mask() -> None:
    envs = tagged_envs("sync", 2, "dict", stack=2, mask_key="legal")
    obs = envs.reset()
    shapes = {"where": obs["where"].shape, "last": obs["last"].shape, ACTION_MASK: obs[ACTION_MASK].shape}
    assert shapes == {"where": (2, 2, 2), "last": (2, 2, 1), ACTION_MASK: (2, N_ACTIONS)}
    assert [leaf.shape for leaf in obs["when"]] == [(2, 2), (2, 2, 2, 2)]
    one = {"where": obs["where"][0], "when": tuple(leaf[0] for leaf in obs["when"]), "last": obs["last"][0]}
    assert envs.observation_space.contains({**one, ACTION_MASK: obs[ACTION_MASK][0]})


# ---- masks ----


def test_a_mask_from_info_is_put_alongside_an_array() -> None:
    envs = tagged_envs("sync", 3, mask_key="legal")
    obs = envs.reset()
    assert sorted(obs) == [ACTION_MASK, "obs"]
    decode(obs)  # checks the mask against the rule
    decode(envs.step(np.zeros(3, np.int64), envs.all_ids).next_obs)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_mask_is_lifted_for_each_side_of_an_episodes_end(mode: AutoresetMode) -> None:
    envs = tagged_envs(f"SyncVectorEnv {mode.name}", 3, mask_key="legal")
    envs.reset()
    for _ in range(60):
        outcome = envs.step(np.zeros(len(envs.ready), np.int64), ids := envs.ready)
        decode(outcome.next_obs)
        ended = ids[outcome.terminated | outcome.truncated]
        if len(ended):
            envs.begin(ended)
        decode(envs.obs)


def masked(*masks: Any) -> Envs:
    """Make an environment 1 whose info holds these masks, the first at the reset."""
    infos = [{} if mask is None else {"legal": mask} for mask in masks]
    fine = {"legal": np.ones(2, np.int8)}
    first = partial(ScriptedEnv, resets=[(OBS, fine)], steps=[answer(info=fine)])
    second = partial(ScriptedEnv, resets=[(OBS, infos[0])], steps=[answer(info=info) for info in infos[1:]])
    return make_envs([first, second], mask_key="legal")


@pytest.mark.parametrize("mask", [[True, False], np.array([1, 0], np.uint8), np.array([7, 0]), (1, 0)])
def test_a_mask_may_be_bools_or_whole_numbers(mask: Any) -> None:
    (outcome,) = play(masked(mask, mask))
    np.testing.assert_array_equal(outcome.next_obs[ACTION_MASK], [[1, 1], [1, 0]])
    assert outcome.next_obs[ACTION_MASK].dtype == np.int8


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (None, r"object \(\)"),
        (np.ones(3, np.int8), r"int8 \(3,\)"),
        (np.ones((2, 1), np.int8), r"int8 \(2, 1\)"),
        (np.ones(2, np.float32), r"float32 \(2,\)"),
        (["yes", "no"], r"<U3 \(2,\)"),
    ],
)
def test_a_mask_that_is_invalid_is_rejected_by_the_name_of_its_environment(mask: Any, got: str) -> None:
    message = rf"env 1: info\['legal'\] must be 2 bools, one per action, in every reset and step, got {got}"
    with pytest.raises(BadEnvDataError, match=f"{message} at episode 0 step 0"):
        masked(mask).reset()
    with pytest.raises(BadEnvDataError, match=f"{message} at episode 0 step 1"):
        play(masked([1, 1], mask))


# ---- seeds ----


def resets_of(envs: Envs) -> list[list[int]]:
    """Return the seeds each environment was reset with."""
    return [list(seeds) for seeds in envs.call("seeds")]


def play_episodes(envs: Envs, n_vector_step: int = 60) -> None:
    envs.reset()
    for _ in range(n_vector_step):
        ids = envs.ready
        outcome = envs.step(np.zeros(len(ids), np.int64), ids)
        ended = ids[outcome.terminated | outcome.truncated]
        if len(ended):
            envs.begin(ended)


def test_each_episode_is_seeded_by_root_environment_and_episode() -> None:
    envs = tagged_envs("sync", 3, seed=5)
    play_episodes(envs)
    for env, seeds in enumerate(resets_of(envs)):
        assert len(seeds) > 5
        assert seeds == [episode_seed(5, env, episode) for episode in range(len(seeds))]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_other_processes_are_seeded_as_this_one() -> None:
    here, there = (tagged_envs(way, 2, seed=5) for way in ("sync", "async"))
    play_episodes(here)
    play_episodes(there)
    assert resets_of(here) == resets_of(there)
    there.close()


def test_no_two_environments_and_no_two_episodes_share_a_seed() -> None:
    envs = tagged_envs("sync", 8, seed=0)
    play_episodes(envs, 200)
    seeds = [seed for one in resets_of(envs) for seed in one]
    assert len(seeds) > 200
    assert len(set(seeds)) == len(seeds)


def test_another_root_gives_other_episodes() -> None:
    one, same, other = (tagged_envs("sync", 2, seed=seed) for seed in (5, 5, 6))
    for envs in (one, same, other):
        play_episodes(envs)
    assert resets_of(one) == resets_of(same)
    assert not set(itertools.chain(*resets_of(one))) & set(itertools.chain(*resets_of(other)))


def test_without_a_seed_no_two_runs_are_alike() -> None:
    one, other = (tagged_envs("sync", 2) for _ in range(2))
    assert not one.is_seeded
    assert [envs.reset() is None for envs in (one, other)] == [False, False]
    assert resets_of(one) != resets_of(other)


def test_a_seed_given_to_reset_begins_the_same_episodes_again() -> None:
    envs = tagged_envs("sync", 2, seed=1)
    play_episodes(envs, 10)
    envs.reset(seed=9)
    n_before = [len(seeds) for seeds in resets_of(envs)]
    envs.reset()
    envs.reset(seed=9)
    envs.reset()
    for env, (seeds, n) in enumerate(zip(resets_of(envs), n_before, strict=True)):
        assert seeds[n - 1 :] == [episode_seed(9, env, episode) for episode in (0, 1, 0, 1)]


def test_saved_environments_continue_with_the_next_episodes() -> None:
    one, other = tagged_envs("sync", 2, seed=3), tagged_envs("sync", 2)
    play_episodes(one, 20)
    other.load_state_dict(one.state_dict())
    one.reset()
    other.reset()
    assert [seeds[-1] for seeds in resets_of(one)] == [seeds[-1] for seeds in resets_of(other)]
    assert other.is_seeded


def test_an_adapted_environment_is_seeded_at_each_full_reset() -> None:
    vector_env = ScriptedVectorEnv(AutoresetMode.NEXT_STEP)
    envs = make_envs(vector_env)
    for root in range(20):
        envs.reset(seed=root)
        envs.reset()
    assert len(set(vector_env.seeds)) == 40
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 - 2 for seed in vector_env.seeds)  # ale-py counts up from it


def test_sub_environments_of_an_adapted_one_never_share_a_seed() -> None:
    envs = tagged_envs("SyncVectorEnv NEXT_STEP", 4, seed=2)
    envs.reset()
    assert len({seed for seeds in resets_of(envs) for seed in seeds}) == 4


def test_options_reach_every_environment() -> None:
    envs = tagged_envs("sync", 2)
    envs.reset(options={"level": 3})
    assert envs.call("options") == [[{"level": 3}], [{"level": 3}]]


class Chaotic(ScriptedEnv):
    """Draw from numbers of its own, as gymnasium has it."""

    def step(self, action: Any) -> Any:
        return answer(obs=self.np_random.random(3).astype(np.float32))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        gym.Env.reset(self, seed=seed)
        return self.np_random.random(3).astype(np.float32), {}


def test_the_same_root_gives_the_same_bits_and_no_global_generator_moves() -> None:
    def run(seed: int) -> NDArray[Any]:
        envs = make_envs(Chaotic, 3, seed=seed)
        return np.stack([outcome.next_obs for outcome in play(envs, *[np.zeros(3, np.int64)] * 5)])

    before = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index]  # noqa: NPY002 - only read
    np.testing.assert_array_equal(run(4), run(4))
    assert (run(4) != run(5)).all()
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before  # type: ignore[index]  # noqa: NPY002


# ---- actions ----


def test_a_discrete_space_starts_at_zero_for_the_policy_alone() -> None:
    space = gym.spaces.Discrete(3, start=5)
    envs = make_envs(partial(ScriptedEnv, action_space=space), 2)
    assert envs.action_space == gym.spaces.Discrete(3)
    play(envs, [0, 2])
    assert envs.call("actions") == [[5], [7]]


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (gym.spaces.Discrete(2), [0, 2], r"env 1: .* outside Discrete\(2\): 2, at episode 0 step 1"),
        (gym.spaces.Discrete(2), [-1, 0], r"env 0: .* outside Discrete\(2\): -1"),
        (gym.spaces.Discrete(3, start=5), [0, 5], r"env 1: .* outside Discrete\(3\): 5"),
        (gym.spaces.Discrete(2), [0.0, 1.0], r"float64 actions for Discrete\(2\): make them whole numbers"),
        (gym.spaces.Discrete(2), [[0], [1]], r"shape \(2, 1\) for 2 environments of Discrete\(2\): it must be \(2,\)"),
        (gym.spaces.Discrete(2), [0], r"shape \(1,\) for 2 environments"),
        (gym.spaces.MultiDiscrete([2, 3]), [[1, 2], [1, 3]], r"env 1: .* outside MultiDiscrete.*: 3 at index \(1,\)"),
        (gym.spaces.MultiDiscrete([2], start=[4]), [[4], [3]], "env 1: .* outside MultiDiscrete.*: 3"),
        (gym.spaces.MultiBinary(2), [[0, 1], [0, 2]], r"env 1: .* outside MultiBinary\(2\): 2"),
        (gym.spaces.Box(-1, 1, (2,)), [[0, 0], [0, np.nan]], r"env 1: the policy produced action nan at index \(1,\)"),
        (gym.spaces.Box(-1, 1, (2,)), [[-np.inf, 0], [0, 0]], "env 0: the policy produced action -inf"),
    ],
)
def test_an_action_no_environment_can_take_is_rejected_before_one_sees_it(
    space: Any, action: Any, message: str
) -> None:
    envs = make_envs(partial(ScriptedEnv, action_space=space), 2)
    with pytest.raises(EnvError, match=message):
        play(envs, action)
    assert envs.call("actions") == [[], []]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_actions_are_counted_from_their_start_whatever_their_dtype(dtype: Any) -> None:
    space = gym.spaces.MultiDiscrete([3, 3], dtype=dtype, start=np.array([1, 1], dtype))
    actions, ids = ActionValidator(space), np.arange(9)
    actions.convert(np.array([[i, j] for i in (1, 2, 3) for j in (1, 2, 3)], dtype), ids, str)
    for outside in ([1, 4], [0, 1]):
        with pytest.raises(EnvError, match="outside"):
            actions.convert(np.array([outside], dtype), ids[:1], str)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (gym.spaces.Box(-1, 1, (1,)), np.float32([[1], [-0.5]])),
        (gym.spaces.Box(-np.inf, np.inf, (2,)), np.full((2, 2), 3e38, np.float32)),  # its square overflows
        (gym.spaces.MultiDiscrete([2, 3], start=[1, 5]), np.array([[2, 7], [1, 5]])),
        (gym.spaces.MultiBinary(2), np.array([[0, 1], [1, 1]], np.int8)),
    ],
)
def test_actions_are_passed_on_as_they_are(space: Any, action: NDArray[Any]) -> None:
    envs = make_envs(partial(ScriptedEnv, action_space=space), 2)
    play(envs, action)
    for env, (given,) in enumerate(envs.call("actions")):
        np.testing.assert_array_equal(given, action[env])


# ---- what environments must not return ----


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_rejected(reward: float) -> None:
    envs = scripted_envs(STEP, STEP, answer(reward=reward))
    message = rf"^env 1: returned reward {reward}, at episode 0 step 3 \(action 1\), episode seed \d+: look for"
    with pytest.raises(BadEnvDataError, match=message):
        play(envs, [0, 0], [0, 0], [0, 1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_observation_that_is_not_finite_is_rejected_by_its_index(value: float) -> None:
    bad = np.array([0.0, value, -value], np.float32)
    with pytest.raises(
        BadEnvDataError, match=rf"^env 1: returned observation {value} at index \(1,\), at episode 0 step 1"
    ):
        play(scripted_envs(answer(obs=bad)))


def test_a_dict_observation_that_is_not_finite_is_rejected_by_its_key() -> None:
    space = gym.spaces.Dict(a=gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2, 2)))))
    obs = {"a": (0, np.zeros((2, 2), np.float32))}
    bad = {"a": (0, np.array([[0, 0], [np.nan, 0]], np.float32))}
    envs = scripted_envs(answer(obs=bad), observation_space=space, resets=[(obs, {})])
    envs.runner.envs[0].steps = [answer(obs=obs)]  # type: ignore[union-attr]  # it is a SyncRunner
    with pytest.raises(BadEnvDataError, match=r"^env 1: returned observation\[a.1\] nan at index \(1, 0\)"):
        play(envs)


def test_a_first_observation_that_is_not_finite_is_rejected() -> None:
    bad = (np.full(3, np.nan, np.float32), {})
    envs = make_envs([ScriptedEnv, partial(ScriptedEnv, resets=[bad])])
    with pytest.raises(BadEnvDataError, match=r"^env 1: returned observation nan at index \(0,\), at episode 0 step 0"):
        envs.reset()


def test_finite_numbers_whose_squares_overflow_are_fine() -> None:
    space = gym.spaces.Box(-np.inf, np.inf, (3,))
    large = np.full(3, 3e38, np.float32)
    (outcome,) = play(scripted_envs(answer(obs=large, reward=1e300), observation_space=space))
    np.testing.assert_array_equal(outcome.next_obs[1], large)
    assert outcome.reward[1] == 1e300


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (answer(obs=np.zeros(4, np.float32)), r"returned observation of shape \(4,\), the space says \(3,\)"),
        (answer(obs=np.array(["a", "b", "c"])), "returned observation of dtype <U1"),
        (answer(obs=None), r"returned observation of shape \(\)"),
        (answer(reward=None), "returned reward None, which is not a number"),
        (answer(reward="1.0"), "returned reward '1.0', which is not a number"),
        (answer(reward=np.ones(2)), r"returned reward array\(\[1., 1.\]\), which is not a number"),
        (answer(terminated=None), "returned terminated = None, which is not a bool"),
        (answer(terminated=2), "returned terminated = 2, which is not a bool"),
        (answer(truncated=np.nan), "returned truncated = nan, which is not a bool"),
        (STEP[:4], "returned 4 values from step"),
    ],
)
def test_an_answer_that_breaks_the_contract_is_rejected_saying_who_when_and_after_what(step: Any, message: str) -> None:
    where = rf"at episode 0 step 2 \(action 1\), episode seed {episode_seed(7, 1, 0)}$"
    with pytest.raises(BadEnvDataError, match=f"^env 1 {message}.*{where}"):
        play(scripted_envs(STEP, step), [0, 0], [0, 1])


def test_an_observation_whose_shape_drifts_is_rejected_at_that_step() -> None:
    steps = [STEP] * 5 + [answer(obs=np.zeros((1, 3), np.float32))]
    with pytest.raises(BadEnvDataError, match=r"env 1 returned observation of shape \(1, 3\).* at episode 0 step 6"):
        play(scripted_envs(*steps), *[ZEROS] * 6)


def test_a_reset_without_info_is_rejected() -> None:
    envs = make_envs([ScriptedEnv, partial(ScriptedEnv, resets=[OBS])], seed=7)
    with pytest.raises(
        BadEnvDataError, match=r"^env 1 returned ndarray from reset, not \(obs, info\).*, at episode 0 step 0"
    ):
        envs.reset()


def test_an_environment_may_write_into_its_own_array_again_and_again() -> None:
    class Frugal(ScriptedEnv):
        buffer = np.zeros(3, np.float32)

        def step(self, action: Any) -> Any:
            self.buffer += 0.1
            return answer(obs=self.buffer)

    one, two = play(make_envs(Frugal, 1), ZEROS[:1], ZEROS[:1])
    np.testing.assert_allclose(one.next_obs, [[0.1] * 3])
    np.testing.assert_allclose(two.next_obs, [[0.2] * 3])


def test_nan_in_an_info_is_the_users_affair() -> None:
    (outcome,) = play(scripted_envs(answer(info={"score": np.nan})))
    assert np.isnan(outcome.infos.row(1)["score"])


def test_infos_keep_the_type_each_environment_gave() -> None:
    first = partial(ScriptedEnv, steps=[answer(info={"score": 1})])
    second = partial(ScriptedEnv, steps=[answer(info={"score": 1.5})])  # gymnasium's merging makes this 1
    (outcome,) = play(make_envs([first, second]))
    assert [outcome.infos.row(row)["score"] for row in range(2)] == [1, 1.5]


# ---- environments that raise ----


REMEDY = ': fix it, or give make_envs on_error="restart"' if "restarts" in present() else ""


def test_an_environment_that_raises_in_a_step_is_reported_with_everything_to_repeat_it() -> None:
    fault = ZeroDivisionError("no wheels")
    envs = scripted_envs(STEP, fault)
    where = rf"at episode 0 step 2 \(action 1\), episode seed {episode_seed(7, 1, 0)}"
    with pytest.raises(
        EnvError, match=f"^env 1 raised ZeroDivisionError in step: no wheels, {where}{REMEDY}$"
    ) as caught:
        play(envs, [0, 0], [0, 1])
    assert caught.value.__cause__ is fault
    assert not isinstance(caught.value, BadEnvDataError)


def test_an_environment_that_raises_in_a_reset_is_reported_with_its_seed() -> None:
    fault = OSError("no map")
    envs = make_envs([ScriptedEnv, partial(ScriptedEnv, resets=[(OBS, {}), fault])], seed=7)
    envs.reset()
    where = f"at episode 1 step 0, episode seed {episode_seed(7, 1, 1)}"
    with pytest.raises(EnvError, match=f"^env 1 raised OSError in reset: no map, {where}{REMEDY}$") as caught:
        envs.begin(np.array([1]))
    assert caught.value.__cause__ is fault


def test_a_vector_environment_that_raises_keeps_its_cause() -> None:
    fault = OSError("gone")
    vector_env = SyncVectorEnv(
        [ScriptedEnv, partial(ScriptedEnv, steps=[fault])], autoreset_mode=AutoresetMode.DISABLED
    )
    with pytest.raises(EnvError, match=r"^SyncVectorEnv: raised OSError in step: gone$") as caught:
        play(make_envs(vector_env))
    assert caught.value.__cause__ is fault


def test_closing_twice_closes_once() -> None:
    envs = tagged_envs("sync", 2)
    inside = envs.call("unwrapped")
    envs.close()
    envs.close()
    assert [env.n_closed for env in inside] == [1, 1]


def test_envs_say_what_they_are() -> None:
    envs = make_envs("CartPole-v1", 2)
    assert repr(envs).startswith("Envs('CartPole-v1', n=2, Box(")
    assert repr(make_envs([lambda: TaggedEnv(0)])).startswith("Envs('custom', n=1, ")
    envs.close()


def test_box_actions_reach_the_environments_clipped_and_the_buffer_as_they_were_drawn() -> None:
    taken: list[float] = []

    class Push(gym.Env[np.ndarray, np.ndarray]):
        observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        action_space = gym.spaces.Box(np.float32(-0.5), np.float32(0.25), (1,), np.float32)

        def reset(self, **requested: Any) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            taken.append(float(action[0]))
            return np.zeros(1, np.float32), 0.0, False, False, {}

    envs = make_envs(Push, 3)
    envs.reset()
    action = np.array([[-2.0], [0.125], [7.0]], np.float32)
    envs.step(action, envs.all_ids)
    assert taken == [-0.5, 0.125, 0.25]
    assert action.ravel().tolist() == [-2.0, 0.125, 7.0]

"""A kind of environments that an extension adds is named, made, driven and checked as Gymnasium's; rows form groups."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.doubles import Ledger
from trainkit.collector import Collector
from trainkit.core.errors import ConfigError
from trainkit.envs import check_env, kinds, make_envs
from trainkit.envs.backends import Begun, Fingerprint, HasEnvironments, Ids, ListInfos, Options, RawStep, Runner, Work
from trainkit.policy import RandomPolicy


class Couple:
    """Two rows that begin and end together, after three steps; each observes its place and the time."""

    observation_space = gym.spaces.Box(0, 9, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    time = 0

    def reset(self, seed: int | None = None, options: Any = None) -> NDArray[np.float32]:
        self.time = 0
        return self._obs()

    def step(self, actions: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.float64], bool]:
        self.time += 1
        return self._obs(), np.array([1.0, 10.0]), self.time == 3

    def close(self) -> None:
        """Keep nothing open."""

    def _obs(self) -> NDArray[np.float32]:
        return np.array([[0, self.time], [1, self.time]], np.float32)


class Couples(HasEnvironments):
    """The backend of couples."""

    agents = ("first", "second")
    takes_options = seeds_episodes = True
    in_flight = np.zeros(0, np.intp)
    made: ClassVar[list["Couples"]] = []

    def __init__(self, runner: Runner) -> None:
        self.runner, self.n = runner, 2 * len(runner.spaces)
        self.observation_space, self.action_space = runner.spaces[0].observation_space, runner.spaces[0].action_space
        self.seeds: list[list[int]] = []
        self.made.append(self)

    def reset(self, seeds: Sequence[int], options: Options) -> Begun:
        return self.begin(np.arange(self.n), seeds, options)

    def begin(self, env_ids: Ids, seeds: Sequence[int], options: Options) -> Begun:
        self.seeds.append(list(seeds))
        couples = env_ids[::2] // 2
        take = self.runner.reset(couples, list(seeds)[::2], options)
        obs = np.concatenate([take(row, couple) for row, couple in enumerate(couples.tolist())])
        return Begun(env_ids, obs, ListInfos([{}] * len(env_ids)))

    def step(self, action: NDArray[Any], env_ids: Ids, work: Work) -> RawStep:
        couples, take = self.runner.step(action.reshape(-1, 2), env_ids[::2] // 2, work)
        answers = [take(row, couple) for row, couple in enumerate(couples.tolist())]
        obs, reward = (np.concatenate([answer[place] for answer in answers]) for place in (0, 1))
        over = np.repeat([answer[2] for answer in answers], 2)
        return RawStep(env_ids, obs, reward, over, np.zeros_like(over), over, ListInfos([{}] * len(env_ids)), None)

    def rebuild(self, env_id: int) -> None:
        self.runner.rebuild(env_id // 2)

    def call(self, name: str, args: tuple[Any, ...], env_ids: Ids) -> list[Any]:
        return self.runner.call(name, args, env_ids // 2)

    def fingerprints(self) -> list[Fingerprint]:
        return []

    def close(self) -> None:
        self.runner.close()

    def detach(self) -> None:
        self.runner.detach()


class CoupleKind(kinds.EnvKind):
    """Couples, by the name "couples/walk"."""

    what = "a couple"

    def is_name(self, spec: str) -> bool:
        return spec.startswith("couples/")

    def factory_of(self, name: str) -> Callable[..., Any]:
        if name != "couples/walk":
            raise ImportError(f"there is no {name}")
        return Couple

    def has(self, env: object) -> bool:
        return isinstance(env, Couple)

    def with_limit(self, env: Any, max_episode_steps: int) -> Any:
        raise ConfigError("couples have no limit")

    def with_spaces(self, env: Any, observation_space: Any, action_space: Any) -> Any:
        env.observation_space = observation_space
        return env

    def check_spaces(self, env: Any, name: str) -> None:
        """Accept any."""

    def driven(self, env: Any) -> Any:
        return env

    def backend(self, runner: Runner, kept_infos: Sequence[str]) -> Couples | None:
        return Couples(runner) if isinstance(runner.spaces[0], Couple) else None

    def check(self, env: Any, *, n_steps: int, seed: int, mask_key: str | None) -> Iterator[kinds.Found]:
        yield "warning", f"it was played for {n_steps} steps", "look at it"


@pytest.fixture(autouse=True)
def _couples_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "added_kinds", lambda: iter([CoupleKind()]))
    for module in ("factories", "envs_config"):
        monkeypatch.setattr(f"trainkit.envs.{module}.added_kinds", lambda: iter([CoupleKind()]))


@pytest.mark.parametrize("spec", ["couples/walk", Couple, lambda: Couple()])
def test_rows_of_a_group_begin_and_end_together_and_share_a_seed(spec: Any) -> None:
    ledger, envs = Ledger(), make_envs(spec, 3, seed=1)
    assert (envs.n, envs.group_size, envs.agents) == (6, 2, ("first", "second"))
    collector = Collector(RandomPolicy(envs.action_space, seed=1), envs, ledger)
    stats = collector.collect(n_episode=5)
    assert (stats.n_episode, stats.lengths.mean, stats.returns.mean) == (5, 3, (3 + 30) / 2)
    assert stats.n_step == len(ledger.rows().reward) == 30
    assert {name: (own.n_step, own.mean) for name, own in stats.agents.items()} == {
        "first": (15, 3),
        "second": (15, 30),
    }
    for seeds in Couples.made[-1].seeds:
        assert seeds[::2] == seeds[1::2]
        assert len(set(seeds)) == len(seeds) / 2


def test_steps_of_groups_are_counted_on_demand() -> None:
    envs = make_envs("couples/walk", 2, seed=1)
    policy = RandomPolicy(envs.action_space, seed=1)
    collector = Collector(policy, envs, count_steps_by="env_steps")
    assert (collector.collect(n_step=6).n_step, collector.env_step) == (12, 6)
    with pytest.raises(ConfigError, match="count_steps_by"):
        Collector(policy, make_envs("CartPole-v1"), count_steps_by="env_steps")


def test_what_a_kind_does_not_have_is_rejected_by_it() -> None:
    space = gym.spaces.Box(0, 5, (2,), np.float32)
    assert make_envs(Couple, observation_space=space).observation_space == space
    with pytest.raises(ConfigError, match="couples have no limit"):
        make_envs(Couple, max_episode_steps=3)
    with pytest.raises(ConfigError, match="soft_horizon"):
        make_envs(Couple, soft_horizon=3)
    with pytest.raises(ConfigError, match=r"must return a gymnasium\.Env, or a couple, got 5"):
        make_envs(lambda: 5)
    with pytest.raises(ConfigError, match=r"neither a registered id nor a couple .*: there is no couples/run"):
        make_envs("couples/run")


@pytest.mark.parametrize("env", [Couple, Couple()])
def test_a_kind_checks_its_environments_itself(env: Any) -> None:
    found = check_env(env, n_steps=7)
    assert "warning: it was played for 7 steps: look at it" in map(str, found)


def test_gymnasiums_environments_are_of_its_own_kind() -> None:
    assert kinds.kind_of(gym.make("CartPole-v1")) is kinds.GYMNASIUM
    assert isinstance(kinds.kind_of(Couple()), CoupleKind)
    assert kinds.kind_of(Couple) is kinds.kind_of(5) is None


class BareKind(kinds.EnvKind):
    """A kind of environments that supports nothing but to be stepped."""

    what = "a bare environment"

    def has(self, env: object) -> bool:
        return False

    def driven(self, env: Any) -> Any:
        return env

    def backend(self, runner: Runner, kept_infos: Sequence[str]) -> None:
        return None


def test_a_kind_rejects_the_options_that_it_does_not_support() -> None:
    kind = BareKind()
    with pytest.raises(ConfigError, match="max_episode_steps is not for a bare environment"):
        kind.with_limit(object(), 3)
    with pytest.raises(ConfigError, match="observation_space and action_space are not for a bare environment"):
        kind.with_spaces(object(), None, None)
    ((level, what, _),) = kind.check(object(), n_steps=1, seed=0, mask_key=None)
    assert (level, what) == ("note", "check_env does not play a bare environment")
    assert not kind.is_name("bare")
    with pytest.raises(ImportError, match="no name stands for a bare environment"):
        kind.factory_of("bare")


def test_a_kind_without_a_backend_cannot_be_made() -> None:
    class NoBackend(kinds.EnvKind):
        what = "nothing"

    with pytest.raises(TypeError, match="abstract"):
        NoBackend()  # type: ignore[abstract]  # as it is wrong

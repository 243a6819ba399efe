"""Games of several agents as users write them: misspelled agents, None for an observation, several policies as one."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces
from trainkit.errors import BadEnvDataError

SEEN = spaces.Box(0, 100, (1,), np.float32)
CHOICE = spaces.Discrete(2)
NONE: dict[str, Any] = {}


def at(count: float) -> Any:
    return np.full(1, count, np.float32)


class Parallel:
    """PettingZoo's parallel API: two agents, three steps; `change` edits what a step or a reset (0) returns."""

    metadata: Any = {}  # noqa: RUF012  # only read
    possible_agents = ["left", "right"]  # noqa: RUF012  # only read

    def __init__(self, change: Any = lambda step, columns: None) -> None:
        self.change = change
        self.agents = list(self.possible_agents)

    def observation_space(self, agent: str) -> Any:
        return SEEN

    def action_space(self, agent: str) -> Any:
        return CHOICE

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.count = list(self.possible_agents), 0
        columns = {agent: at(0) for agent in self.agents}, {agent: {} for agent in self.agents}
        self.change(0, columns)
        return columns

    def step(self, actions: Any) -> Any:
        self.count += 1
        is_over = self.count == 3
        columns = (
            {agent: at(self.count) for agent in actions},
            dict.fromkeys(actions, 1.0),
            dict.fromkeys(actions, is_over),
            dict.fromkeys(actions, False),
            {agent: {} for agent in actions},
        )
        if is_over:
            self.agents = []
        self.change(self.count, columns)
        return columns


class Turns:
    """PettingZoo's API of turns: two agents move twice each; `seen` is what the second move observes."""

    metadata: Any = {}  # noqa: RUF012  # only read
    possible_agents = ["left", "right"]  # noqa: RUF012  # only read

    def __init__(self, seen: Any) -> None:
        self.seen = seen

    def observation_space(self, agent: str) -> Any:
        return SEEN

    def action_space(self, agent: str) -> Any:
        return CHOICE

    def agent_iter(self) -> Any:
        raise NotImplementedError

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.agents, self.count = list(self.possible_agents), 0
        self.agent_selection = "left"

    def last(self) -> Any:
        return self.seen if self.count == 2 else at(self.count), 1.0, self.count >= 4, False, {}

    def step(self, action: Any) -> None:
        self.count += 1
        if action is None:
            self.agents.remove(self.agent_selection)
        self.agent_selection = self.possible_agents[self.count % 2]


def collect(factory: Any, backend: Any = "sync", n_step: int = 12) -> Any:
    envs = tk.make_envs([factory], backend=backend)
    try:
        buffer = tk.ReplayBuffer(100)
        tk.Collector(tk.RandomPolicy(envs.action_space, seed=0), envs, buffer).collect(n_step=n_step)
        return list(buffer.transitions())
    finally:
        envs.close()


# ---- observations ----


def without(step: int) -> Any:
    def change(count: int, columns: Any) -> None:
        if count == step:
            columns[0]["right"] = None

    return change


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("step", [0, 1, 3], ids=["first", "middle", "last"])
def test_none_is_no_observation_of_an_agent(step: int, backend: str) -> None:
    with pytest.raises(BadEnvDataError, match=r"env 1 returned the observation None for agent 'right'.*game 0"):
        collect(lambda: Parallel(without(step)), backend)


def test_none_is_no_observation_of_a_move() -> None:
    assert collect(lambda: Turns(at(2)))[0].reward.any()
    with pytest.raises(BadEnvDataError, match="env 0 returned the observation None for agent 'left'"):
        collect(lambda: Turns(None))


@pytest.mark.parametrize(
    ("column", "what"), [(0, "an observation"), (1, "a reward"), (2, "terminated"), (3, "truncated")]
)
def test_a_misspelled_agent_is_named(column: int, what: str) -> None:
    def change(count: int, columns: Any) -> None:
        if count == 2:
            columns[column]["rihgt"] = columns[column]["right"]

    with pytest.raises(BadEnvDataError, match=f"returned {what} for 'rihgt', not one of its possible_agents.*'right'"):
        collect(lambda: Parallel(change))


def test_a_misspelled_agent_of_a_reset_is_named() -> None:
    with pytest.raises(BadEnvDataError, match="returned an observation for 'rihgt'"):
        collect(lambda: Parallel(lambda count, columns: columns[0].update(rihgt=at(0)) if count == 0 else None))


def test_a_reward_before_the_first_move_is_reported_as_such(caplog: pytest.LogCaptureFixture) -> None:
    game = ByDict([({"a": at(1)}, {"a": 1.0, "b": 5.0}, NONE, NONE), ({"b": at(2)}, NONE, NONE, ALL)])
    with caplog.at_level(logging.WARNING, "trainkit"):
        collect(lambda: game, n_step=2)
    assert "agent 'b' of game 0 got reward 5 in a step in which it did not act: it has made no move yet" in caplog.text


# ---- RLlib's API ----

ALL = {"__all__": True}


class ByDict:
    """RLlib's API: agents "a" and "b"; a reset observes those of `first`, steps are given."""

    possible_agents = ["a", "b"]  # noqa: RUF012  # only read
    observation_spaces = {"a": SEEN, "b": SEEN}  # noqa: RUF012  # only read
    action_spaces = {"a": CHOICE, "b": CHOICE}  # noqa: RUF012  # only read

    def __init__(self, steps: Any, first: tuple[str, ...] = ("a",)) -> None:
        self.steps, self.first = steps, first

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.left = list(self.steps)
        return {agent: at(0) for agent in self.first}, {}

    def step(self, actions: Any) -> Any:
        return (*self.left.pop(0), {})


@pytest.mark.parametrize("observed", [{}, {"b": at(1)}], ids=["nobody", "another agent"])
@pytest.mark.parametrize(
    ("flag", "end", "expected"),
    [("truncated", "terminated", (False, True)), ("terminated", "truncated", (True, False))],
)
def test_an_agents_own_end_is_not_changed_by_a_later_end_of_the_game(
    observed: Any, flag: str, end: str, expected: tuple[bool, bool]
) -> None:
    def flags(name: str, own: Any) -> tuple[Any, Any]:
        return (own, NONE) if name == "terminated" else (NONE, own)

    first = (observed, {"a": 1.0}, *flags(flag, {"a": True}))
    last = ({"b": at(2)}, {}, *flags(end, ALL))
    (rows,) = collect(lambda: ByDict([first, last], ("a", "b")), n_step=2)
    assert (bool(rows.terminated[0]), bool(rows.truncated[0])) == expected


# ---- spaces, names ----


def test_a_space_that_raises_is_an_error_with_its_agent() -> None:
    class NoSpace(Parallel):
        def action_space(self, agent: str) -> Any:
            raise KeyError(agent)

    with pytest.raises(tk.ConfigError, match=r"action_space\('left'\) raised KeyError: 'left'"):
        tk.make_envs(NoSpace, 1)


class SeenApart(Parallel):
    """A game whose agents have different spaces of observations."""

    others: Any = SEEN

    def observation_space(self, agent: str) -> Any:
        return SEEN if agent == "left" else self.others


class SeenApartInTurns(Turns):
    """The same in turns."""

    others: Any = SEEN

    def __init__(self) -> None:
        super().__init__(at(1))

    def observation_space(self, agent: str) -> Any:
        return SEEN if agent == "left" else self.others


OTHERS = {
    "wider": spaces.Box(0, 100, (2,), np.float32),
    "discrete": spaces.Discrete(4),
    "dict": spaces.Dict({"x": SEEN}),
    "image": spaces.Box(0, 255, (36, 36), np.uint8),
}


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("game", [SeenApart, SeenApartInTurns])
@pytest.mark.parametrize("memory", [None, "gru"])
def test_one_policy_for_agents_with_different_observation_spaces_is_an_error_with_both(
    others: str, game: Any, memory: Any
) -> None:
    factory = type("Game", (game,), {"others": OTHERS[others]})
    learner = tk.DQNPolicy.for_envs(Spaces(SEEN, CHOICE), hidden=(4,), recurrent=memory)
    shared = tk.MultiAgentPolicy({"one": learner}, dict.fromkeys(Parallel.possible_agents, "one"))
    for policy in (learner, shared):
        with pytest.raises(tk.SpaceMismatchError) as raised:
            tk.Collector(policy, tk.make_envs(factory, 1))
        with pytest.raises(tk.SpaceMismatchError):
            tk.evaluate(policy, factory, n_episode=1)
        shown = str(raised.value)
        assert "Box(0.0, 100.0, (1,), float32)" in shown
        assert f"'left': {SEEN}, 'right': {OTHERS[others]}" in shown


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a/b", "", "a\nb"])
def test_a_policys_name_is_printable(name: str) -> None:
    with pytest.raises(tk.ConfigError, match="printable characters"):
        tk.MultiAgentPolicy({name: tk.RandomPolicy(CHOICE)})


# ---- several policies as one ----


def duel() -> Any:
    learner = tk.DQNPolicy.for_envs(Spaces(FOUR_NUMBERS, CHOICE), hidden=(8,), device="cpu", seed=0)
    policies = {"main": learner, "random": tk.RandomPolicy(spaces.Discrete(2, start=5), seed=0)}
    return tk.MultiAgentPolicy(policies, {"left": "main", "right": "random"})


@pytest.mark.parametrize("lead", [(), (3,)], ids=["one", "three"])
def test_a_learner_against_random_predicts_for_both(lead: Any) -> None:
    obs = np.zeros((*lead, 4), np.float32)
    actions = duel().predict({"left": obs, "right": obs})
    assert np.shape(actions["left"]) == np.shape(actions["right"]) == lead
    assert np.isin(actions["right"], [5, 6]).all()


def test_a_random_policy_predicts_where_it_knows_its_observations() -> None:
    policy = tk.RandomPolicy(CHOICE, observation_space=FOUR_NUMBERS, seed=0)
    assert policy.predict([0.0] * 4) in (0, 1)
    assert policy.predict([[0.0] * 4] * 5).shape == (5,)
    with pytest.raises(tk.ConfigError, match="needs an observation space, which no policy of these agents has"):
        tk.MultiAgentPolicy({"a": tk.RandomPolicy(CHOICE)}).predict({"a": 1})


def test_weights_and_exports_of_several_policies_are_those_of_each(tmp_path: Path) -> None:
    policy, other = duel(), duel()
    with pytest.raises(tk.ConfigError, match="no policy 'maim'"):
        other.set_weights({"maim": {}})
    weights = policy.get_weights()
    for name, values in weights["main"].items():
        values += 1.0 if name.endswith("bias") else 0.0
    other.set_weights(weights)
    for name, values in other["main"].get_weights().items():
        np.testing.assert_array_equal(values, weights["main"][name])
    assert tk.export(policy, tmp_path / "duel.pt2") == [tmp_path / "duel-main.pt2"]
    assert tk.export(policy, tmp_path / "both", ["torch"]) == [tmp_path / "both-main.pt2"]

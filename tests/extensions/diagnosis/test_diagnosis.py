"""What a run says when it does not learn: each rule by crafted epochs, and where the findings are shown."""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import gymnasium as gym
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trainkit as tk
from tests.trainer import toys
from tests.trainer.runs import make_run
from tests.trainer.toys import Walk
from trainkit.extensions.diagnosis import rules
from trainkit.extensions.diagnosis.rules import DIAGNOSIS_RULES, Rule
from trainkit.policy.exploration import EZGreedy
from trainkit.trainer.progress import epoch_line
from trainkit.trainer.run_warnings import RunWarnings

PAGE = Path(__file__).parents[3] / "docs" / "diagnosis.md"

# Four actions, no registered threshold, a limit of 200 steps.
LAKE, CART = "FrozenLake-v1", "CartPole-v1"  # solved at 0.7 and at 475


def run_of(
    n_epochs: int = 10, *, env: str = "custom", max_epoch: int = 20, policy: dict[str, Any] | None = None, **run: Any
) -> Any:
    """Return what a rule reads of a trainer; a column is a number per epoch, or one number for all of them."""
    columns = run.pop("columns", {})
    history = tk.callbacks.History()
    as_list = {tag: column if isinstance(column, list) else [column] * n_epochs for tag, column in columns.items()}
    counts = [{"epoch": t + 1, "env_step": 100 * (t + 1), "gradient_step": t, "seconds": t} for t in range(n_epochs)]
    rows = [count | {tag: column[t] for tag, column in as_list.items()} for t, count in enumerate(counts)]
    tags = list(dict.fromkeys(tag for row in rows for tag in row))
    values = [[row.get(tag, 0.0) for tag in tags] for row in rows]
    is_there = [[tag in row for tag in tags] for row in rows]
    history.load_state_dict({"rows": {"tags": tags, "values": values, "is_there": is_there}})
    own = {"action_space": gym.spaces.Discrete(4), "horizon": tk.Horizon()} | (policy or {})
    envs = SimpleNamespace(name=env, max_episode_steps=200)
    parts = {"history": history, "policy": SimpleNamespace(**own), "train_collector": SimpleNamespace(envs=envs)}
    parts |= {"epoch": n_epochs, "max_epoch": max_epoch, "step_per_epoch": 100, "clock": 100 * n_epochs, "unit": "step"}
    return SimpleNamespace(**parts | {"info": SimpleNamespace(updates_per_second=1.0)} | run)


HALF_GIVEN = {"update/clipped_share": 0.3, "update/clipped_below": 0.04, "update/v_min": -1.0, "update/v_max": 1.0}


def bounds(**given: float) -> dict[str, Any]:
    """Return a policy whose support has bounds that were given; the others widen by themselves."""
    return {"value": SimpleNamespace(given_bounds={"v_min": None, "v_max": None} | given)}


def returns(train: Any, *, test: Any = None, low: Any = None, std: float = 1.0, n_episode: int = 10) -> dict[str, Any]:
    """Return the columns of episodes whose returns lie between `low` and their mean."""
    low = train if low is None else low
    columns = {"train/returns/mean": train, "train/returns/std": std, "train/n_episode": n_episode}
    columns |= {
        "train/returns/min": low,
        "train/returns/max": train,
        "train/lengths/min": 200,
        "train/lengths/max": 200,
    }
    if test is not None:
        columns |= {f"test/returns/{name}": test for name in ("mean", "min", "max")} | {"test/n_episode": n_episode}
    return columns


def values(predicted: Any, returned: Any, std: float = 0.0) -> dict[str, Any]:
    means = {"test/start_values/mean": predicted, "test/discounted_returns/mean": returned}
    return means | {"test/discounted_returns/std": std, "test/n_episode": 9}


NO_UPDATE = {"info": SimpleNamespace(updates_per_second=None)}
CLIPPED = {"network": SimpleNamespace(clip=tk.Clip(0.5))}
POOR = returns(0.2, std=0.1)
FROZEN = {"update/entropy": 0.13}  # of at most log 4 = 1.39
SOFT = {"test/action_gaps/mean": 1.0}
ZERO_SUM = returns(0.0, std=0.0) | {"train/agents/x/returns/min": -1.0, "train/agents/x/returns/max": 1.0}

# {rule: (what it finds, runs in which it finds that, healthy neighbors)}
CASES: dict[str, tuple[str, list[Any], list[Any]]] = {
    "no_updates": (
        r"no update in 1,000 of 2,000 steps, learning_starts is 1,200: lower it",
        [run_of(**NO_UPDATE, learning_starts=1_200)],
        [run_of(9, **NO_UPDATE, learning_starts=1_200), run_of(learning_starts=0)],
    ),
    "constant_returns": (
        r"all 40 episodes since epoch 7 returned (-200|0), and none ever less: explore more, or shape",
        [
            run_of(columns=returns(-200.0)),
            run_of(columns=returns([-150.0] * 6 + [-200.0] * 4)),  # lost again
            run_of(env=LAKE, columns=returns(0.0)),
        ],
        [
            run_of(3, columns=returns(-200.0)),  # too early
            run_of(columns=returns(-200.0, n_episode=4)),  # too few
            run_of(columns=returns(-199.0, low=-200.0)),
            run_of(columns=returns(-200.0, test=-150.0)),
            run_of(columns=returns([20.0] * 6 + [200.0] * 4)),  # learned
            run_of(env=CART, columns=returns(500.0)),  # solved from the start
            run_of(columns=returns(200.0)),  # paid for every step up to the limit
            run_of(columns=returns(-200.0), train_collector=None),
            run_of(columns=ZERO_SUM),
        ],
    ),
    "zero_sum_returns": (
        r"all 30 games returned 0, as one policy plays all sides: .*self_play=True",
        [run_of(columns=ZERO_SUM)],
        [
            run_of(columns=returns(0.0)),  # of one agent
            run_of(columns=ZERO_SUM | {"train/policies/main/returns/mean": 0.0}),
            run_of(columns=ZERO_SUM | {"train/n_episode": 4}),
            run_of(columns=ZERO_SUM | {"train/returns/max": 1.0}),
        ],
    ),
    "no_progress": (
        r"training returns (0\.02|-1.2e\+03), in the first epoch (0\.015|-1.25e\+03): train for longer",
        [
            run_of(max_epoch=12, columns=returns([0.015] + [0.02] * 9, test=0.05, std=0.12)),
            run_of(max_epoch=10, columns=returns([-1250.0] + [-1200.0] * 9, low=-1600.0, std=300.0)),
        ],
        [
            run_of(max_epoch=14, columns=returns([0.015] + [0.02] * 9, test=0.05, std=0.12)),  # not the last quarter
            run_of(3, max_epoch=3, columns=returns([0.015, 0.01, 0.02], std=0.12)),
            run_of(max_epoch=12, columns=returns([0.015] + [0.02] * 9, test=0.7, std=0.12)),
            run_of(max_epoch=12, columns=returns([0.015] + [0.2] * 9, test=0.05, std=0.12)),
            run_of(max_epoch=12, env=CART, columns=returns([490.0] * 9 + [480.0])),  # solved from the start
            run_of(max_epoch=12, columns=returns(-200.0, std=0.0)),  # constant_returns says so
            run_of(max_epoch=12, columns=ZERO_SUM),
        ],
    ),
    "worse_than_random": (
        r"evaluations return -500, the first epoch of training -430: lower lr",
        [run_of(columns=returns([-430.0] + [-480.0] * 9, test=-500.0, std=40.0))],
        [
            run_of(9, columns=returns([-430.0] + [-480.0] * 8, test=-500.0, std=40.0)),  # in the first half
            run_of(columns=returns(-430.0, test=-460.0, std=40.0)),
            run_of(columns=returns(-430.0, test=[-500.0] * 9 + [-80.0], std=40.0)),
            run_of(columns=returns(-200.0, test=-200.0, std=0.0)),
        ],
    ),
    "clipped_targets": (
        r"(26|6)% of the target lie beyond v_min..v_max, and are clipped: widen it, or scale the reward",
        [
            run_of(1, columns={"update/clipped_share": 0.26}),
            run_of(columns={"update/clipped_share": 0.06}),
            run_of(columns=HALF_GIVEN, policy=bounds(v_max=1.0)),
        ],
        [
            run_of(columns=HALF_GIVEN, policy=bounds(v_min=0.0)),
            run_of(columns=HALF_GIVEN, policy=bounds()),
            run_of(2, columns={"update/clipped_share": 0.06}),
            run_of(columns={"update/clipped_share": [0.4] * 9 + [0.04]}),  # the support was widened
            run_of(),
        ],
    ),
    "constant_values": (
        r"Q is between -75.23 and -75.06 for all states and actions: lower lr",
        [
            run_of(columns={"update/q_max": -75.06, "update/q_min": -75.23}),
            run_of(env=CART, columns=returns(9.4) | {"update/q_max": -75.06, "update/q_min": -75.23}),
        ],
        [
            run_of(columns={"update/q_max": -74.0, "update/q_min": -75.23}),
            run_of(2, columns={"update/q_max": -75.06, "update/q_min": -75.23}),
            run_of(columns={"update/q_max": 0.001, "update/q_min": -0.001}),
            run_of(env=CART, columns=returns(500.0) | {"update/q_max": 100.0, "update/q_min": 99.5}),  # solved
        ],
    ),
    "wrong_values": (
        r"Q predicts (-66|90|0\.6) where greedy episodes return (-33|50|0), discounted: try",
        [
            run_of(columns=values(-66.0, -33.0)),
            run_of(columns=values(90.0, 50.0, std=10.0)),
            run_of(columns=values(0.6, [0.5] + [0.0] * 9)),
        ],
        [
            run_of(columns=values(51.0, 50.0)),
            run_of(columns=values(60.0, 50.0)),
            run_of(4, columns=values(-66.0, -33.0)),
            run_of(columns=values(90.0, 50.0, std=50.0)),  # 9 episodes are too few to say
            run_of(columns=values(list(range(1, 11)), 30.0) | {"test/start_values/mean": [*range(0, 20, 2)]}),  # rises
            run_of(columns=values(0.05, 0.0)),  # no return was ever seen
            run_of(columns=values([90.0, 10.0] * 5, 50.0)),
            run_of(columns=values(90.0, 50.0) | {"update/clipped_share": 1.0}),  # clipped_targets says why
            run_of(columns=values(20.0, 50.0), policy={"penalty": tk.ConservativePenalty(1.0)}),
            run_of(columns=values(80.0, 50.0) | {"update/temperature": 0.5, "update/entropy": 2.0}),  # SAC's bonus
        ],
    ),
    "same_action": (
        "every step of 5 evaluations took the same action: lower lr, or explore more",
        [run_of(env=CART, columns=returns(train, test=9.4) | {"test/top_action_share": 1.0}) for train in (9.4, 480.0)],
        [
            run_of(env=CART, columns=returns(9.4, test=9.4) | {"test/top_action_share": [1.0] * 9 + [0.99]}),
            run_of(4, env=CART, columns=returns(9.4, test=9.4) | {"test/top_action_share": 1.0}),
            run_of(columns=returns(1.0, test=[1.0] * 5 + [9.0] * 5) | {"test/top_action_share": 1.0}),  # it is the best
        ],
    ),
    "collapsed_entropy": (
        r"entropy is (0\.13|-5), so that hardly anything is explored: raise entropy_weight, or lower lr",
        [
            run_of(env=LAKE, columns=POOR | FROZEN, policy={"entropy_weight": 0.0}),
            run_of(
                columns=returns(-1200.0, std=100.0) | {"update/entropy": -5.0},
                policy={"entropy_weight": 0.0, "action_space": gym.spaces.Box(-1, 1, (2,))},
            ),
        ],
        [
            run_of(env=LAKE, columns=POOR | {"update/entropy": 0.3}),
            run_of(env=LAKE, columns=returns(0.72, std=0.1) | FROZEN),  # solved
            run_of(env=LAKE, columns=returns([0.1 + t / 40 for t in range(10)]) | FROZEN),  # improves
            run_of(2, env=LAKE, columns=POOR | FROZEN),
            run_of(columns=returns([0.0] * 5 + [9.0] * 5) | FROZEN),  # better than random
            run_of(columns=POOR | FROZEN, policy={"action_space": gym.spaces.Text(3)}),
            run_of(columns=FROZEN),  # an imitation, without episodes
        ],
    ),
    "cold_softmax": (
        "temperature 0.1 is small for a gap of 1 between the two best values",
        [run_of(columns=POOR | SOFT | {"explore/temperature": 0.1})],
        [
            run_of(columns=POOR | SOFT | {"explore/temperature": 0.2}),
            run_of(columns=POOR | SOFT),
            run_of(env=LAKE, columns=returns(0.72) | SOFT | {"explore/temperature": 0.1}),
        ],
    ),
    "zero_learning_rate": (
        "update/(actor_)?lr is 0, and a schedule keeps its last value: give lr= one that ends above 0",
        [run_of(columns={"update/lr": [0.1] * 9 + [0.0]}), run_of(columns={"update/actor_lr": 0.0})],
        [run_of(columns={"update/lr": 1e-9}), run_of(columns={"explore/lr": 0.0}), run_of()],
    ),
    "exploding_gradients": (
        "update/grad_norm is 2e\\+03, before 2: lower lr, give max_grad_norm",
        [run_of(6, columns={"update/grad_norm": [1.0, 2.0, 3.0, 2.0, 1.0, 2_001.0]})],
        [
            run_of(6, columns={"update/grad_norm": [1.0, 2.0, 3.0, 2.0, 1.0, 1_999.0]}),
            run_of(2, columns={"update/grad_norm": [1.0, 5_000.0]}),
            run_of(7, columns={"update/grad_norm": [0.0] * 6 + [1.0]}),
        ],
    ),
    "clipped_gradients": (
        "update/grad_norm is 600, clipped to 0.5: scale the reward, as by reward='return_scale'",
        [run_of(columns={"update/grad_norm": 600.0}, policy={"gradient_steps": CLIPPED})],
        [
            run_of(columns={"update/grad_norm": 100.0}, policy={"gradient_steps": CLIPPED}),
            run_of(columns={"update/grad_norm": 600.0}, policy={"gradient_steps": {"a": SimpleNamespace(clip=None)}}),
            run_of(columns={"update/grad_norm": 600.0}),
        ],
    ),
}


@pytest.mark.parametrize("rule", DIAGNOSIS_RULES)
def test_a_rule_finds_what_it_is_for_and_nothing_in_healthy_neighbors(rule: Rule) -> None:
    message, ill, healthy = CASES[rule.__name__]
    for run in ill:
        assert re.match(message, rule(run) or "nothing"), rule(run)
        assert len(rule(run) or "") <= 160
    assert [rule(run) for run in healthy] == [None] * len(healthy)


def test_the_page_lists_the_rules_as_they_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    assert [(name, f"Report {condition}.") for name, condition, _ in rows] == [
        (rule.__name__, rule.__doc__) for rule in DIAGNOSIS_RULES
    ]
    assert sorted(CASES) == sorted(rule.__name__ for rule in DIAGNOSIS_RULES)


@pytest.mark.parametrize(("policy", "remedy"), [
    ({"entropy_weight": 0.0}, "raise entropy_weight"),
    ({"target_entropy": -1.0}, "give exploration=ColoredNoise(), or raise target_entropy"),
    (
        {"target_entropy": None, "distribution": SimpleNamespace(noise_std=0.1)},
        "give exploration=ColoredNoise(), or a larger noise_std",
    ),
    ({"action_values": print}, "explore for longer and in longer stretches (EZGreedy), raise n_step"),
    ({"action_values": print, "exploration": EZGreedy(0.1)}, "explore for longer by a higher epsilon, raise n_step"),
])  # fmt: skip
def test_the_remedy_is_that_of_the_policy(policy: dict[str, Any], remedy: str) -> None:
    assert remedy in (rules.constant_returns(run_of(columns=returns(0.0), policy=policy)) or "")


# ---- where the findings are shown ----


def make_trainer(
    *, rules: Sequence[Rule] | None = DIAGNOSIS_RULES, callbacks: Sequence[tk.Callback] = (), **options: Any
) -> tk.OffpolicyTrainer:
    return toys.make_trainer(**options, callbacks=[tk.callbacks.Diagnosis(rules), *callbacks])


class Nothing(Walk):
    """Pay 0 for every step, for 4 steps."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, _, _, info = super().step(action)
        return obs, 0.0, False, self._clock >= 4, info


def test_a_finding_is_printed_in_full_when_it_starts_and_by_name_afterwards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folders = tmp_path / "lines", tmp_path / "events"
    loggers = [tk.JsonlLogger(folders[0]), tk.loggers.TensorboardLogger(folders[1])]
    seen: list[list[str]] = []
    options = {"env": Nothing, "max_epoch": 5, "step_per_epoch": 100, "update_per_step": 0.1}
    end = {"callbacks": [tk.on(epoch_end=lambda trainer, result: seen.append(list(result.stats.warnings)))]}
    with make_trainer(**options, verbose=True, logger=loggers, **end) as trainer:
        results = list(trainer)
    message = "all 24 episodes since epoch 1 returned 0, and none ever less: explore for longer"
    first, second, *_, last, _ = capfd.readouterr().out.splitlines()
    assert f" | ! constant_returns: {message}" in first
    assert " | ! constant_returns since epoch 1" in second
    assert last.startswith("! constant_returns, epochs 1 to 5: all 24 episodes")
    assert seen == [["constant_returns"]] * 5
    _, stats, info = results[-1]
    assert stats.warnings["constant_returns"].message == info.warnings["constant_returns"].message
    assert (info.warnings["constant_returns"].first_epoch, info.warnings["constant_returns"].last_epoch) == (1, 5)
    for record in (stats, info):
        assert "warning constant_returns, epochs 1 to 5: all 24 episodes" in str(record)
        assert "<td>warning: constant_returns</td><td>all 24 episodes" in record._repr_html_()
    assert not [tag for tag in tk.scalars(stats) if "warnings" in tag]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    texts = [
        line for line in map(json.loads, (folders[0] / "numbers.jsonl").read_text().splitlines()) if "texts" in line
    ]
    assert [(line["at_step"], list(line["texts"])) for line in texts] == [(100, ["warnings/constant_returns"])]
    assert tk.loggers.RunFolder.read(folders[0]).rows[-1]["step"] == 500
    reader = EventAccumulator(str(folders[1]))
    reader.Reload()
    (event,) = reader.Tensors("warnings/constant_returns")
    assert (event.step, event.tensor_proto.string_val[0].decode()[: len(message)]) == (100, message)


def test_without_lines_it_is_logged_once_and_a_reset_forgets_it(caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(policy={"value": tk.CategoricalValue(5, -0.1, 0.1)}, log_every=10)
    for _ in range(2):
        trainer.run()
        (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert re.match(r"clipped_targets: \d\d% of the target lie beyond v_min..v_max", message)
        caplog.clear()
        trainer.reset()
        assert trainer.info.warnings == {}


@pytest.mark.parametrize("value", [tk.CategoricalValue(51, -20.0, 20.0), tk.ExpectedValue()])
def test_a_wide_support_and_a_value_without_one_are_fine(value: Any, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(policy={"value": value})
    trainer.run()
    assert trainer.info.warnings == {}
    assert caplog.records == []


def test_warnings_are_saved_and_a_pause_makes_them_new_again(tmp_path: Path) -> None:
    run, found = RunWarnings(), []
    for epoch in range(1, 11):
        odd = {"odd": "wrong: fix it"} if epoch in (1, 2, 4, 10) else {}
        found += [(one.first_epoch, one.last_epoch) for one in run.add(epoch, odd).values()]
    assert found == [(1, 1), (1, 2), (1, 4), (10, 10)]
    made = {"env": Nothing, "step_per_epoch": 100, "update_per_step": 0.1}
    stopped = make_trainer(**made, max_epoch=1)
    stopped.run()
    stopped.save(tmp_path / "saved")
    resumed = make_trainer(**made, max_epoch=2, resume_from=tmp_path / "saved")
    assert resumed.info.warnings == stopped.info.warnings
    result = next(resumed)
    assert result.stats.warnings["constant_returns"].first_epoch == 1
    assert epoch_line(result).endswith("| ! constant_returns since epoch 1")


def test_rules_of_your_own_are_added_and_none_switches_all_off() -> None:
    def long_run(trainer: tk.Trainer) -> str | None:
        return f"epoch {trainer.epoch}: stop" if trainer.history[-1]["env_step"] > 30 else None

    def broken(trainer: tk.Trainer) -> str | None:
        raise ValueError("no such number")

    own = make_trainer(env=Nothing, rules=[*DIAGNOSIS_RULES, long_run])
    assert [list(stats.warnings) for _, stats, _ in own] == [[], ["long_run"], ["long_run"]]
    off = make_trainer(policy={"value": tk.CategoricalValue(5, -0.1, 0.1)}, rules=None)
    assert [stats.warnings for _, stats, _ in off] == [{}] * 3
    with pytest.raises(ValueError, match="no such number") as caught:
        make_trainer(rules=[broken]).run()
    assert caught.value.__notes__ == ["raised by the rule broken of Diagnosis"]
    for wrong, message in {
        (3,): r"must be a sequence of named functions trainer -> str or None, .* got \(3,\)",
        (long_run, long_run): "has two rules of one name, long_run: rename one",
    }.items():
        with pytest.raises(tk.ConfigError, match=f"Diagnosis.rules {message}"):
            tk.callbacks.Diagnosis(wrong)


def test_an_exception_of_a_rule_keeps_no_callback_from_the_end_of_the_epoch() -> None:
    def fail_in_epoch_2(trainer: tk.Trainer) -> str | None:
        if trainer.epoch == 2:
            raise ValueError("mine")
        return None

    ended: list[int] = []
    reported: list[int] = []
    trainer = make_trainer(
        rules=[fail_in_epoch_2],
        callbacks=[
            tk.on(
                epoch_end=lambda trainer, result: ended.append(result.epoch),
                epoch_reported=lambda trainer, result: reported.append(result.epoch),
            )
        ],
    )
    with pytest.raises(ValueError, match="mine"):
        trainer.run()
    assert [result.epoch for result in trainer] == [2, 3]
    assert ended == reported == [1, 2, 3]


def test_a_run_without_updates_is_named() -> None:
    result = next(make_trainer(learning_starts=100))
    assert result.stats.warnings["no_updates"].message.startswith(
        "no update in 24 of 72 steps, learning_starts is 100: lower it"
    )


@pytest.mark.parametrize(
    ("loss", "remedy"), [("huber", "try loss='mse', or more updates"), ("mse", "try more updates")]
)
def test_a_loss_that_is_used_already_is_no_remedy(loss: Literal["huber", "mse"], remedy: str) -> None:
    run = run_of(columns=values(50.0, 90.0, std=10.0), policy={"value": tk.ExpectedValue(loss)})
    assert (rules.wrong_values(run) or "").endswith(remedy)


def test_presets_add_the_rules_unless_callbacks_have_others(caplog: pytest.LogCaptureFixture) -> None:
    def always(trainer: tk.Trainer) -> str:
        return "wrong: fix it"

    short = {"seed": 1, "max_epoch": 1, "step_per_epoch": 200, "step_per_collect": 50, "verbose": False}
    found = []
    for given in ((), tk.callbacks.Diagnosis([always]), [tk.callbacks.Diagnosis(None)], [tk.callbacks.Diagnosis]):
        with tk.presets.a2c(Nothing, **short, callbacks=given, evaluation=None) as trainer:
            found.append([*next(trainer).stats.warnings])
    assert found == [["constant_returns"], ["always"], [], ["constant_returns"]]


def test_a_learning_rate_that_has_ended_at_0_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_run("ppo", max_epoch=1)
    trainer.run()
    assert caplog.text == ""
    ended = tk.presets.ppo("CartPole-v1", seed=1, max_epoch=1, step_per_epoch=256, step_per_collect=128, n_envs=2,
                           evaluation=None, verbose=False, hidden=(8,))  # fmt: skip
    ended.run()
    with caplog.at_level(logging.WARNING):
        weights = ended.policy.get_weights()
        ended.run(epochs=1)
    assert all((weights[name] == own).all() for name, own in ended.policy.get_weights().items())
    assert "update/lr is 0" in caplog.text


@pytest.mark.parametrize(("gamma", "advice"), [(0.0, "a higher gamma than 0"), (0.99, "a lower gamma")])
def test_a_run_without_progress_is_advised_by_its_gamma(gamma: float, advice: str) -> None:
    columns = returns([0.015] + [0.02] * 9, test=0.05, std=0.12)
    message = rules.no_progress(run_of(max_epoch=12, policy={"gamma": gamma}, columns=columns))
    assert message is not None
    assert f"train for longer, try another lr, {advice}, scale the reward, normalize_obs=True, or " in message


def test_remedies_that_are_in_use_are_left_out() -> None:
    columns = {**returns([-3000.0] * 10, std=100.0), "test/returns/mean": [-6300.0] * 9 + [-6200.0]}
    plain = rules.worse_than_random(run_of(max_epoch=12, policy={"gamma": 0.5}, columns=columns))
    in_use = {"horizon": tk.Horizon(reward="return_scale"), "preprocess": SimpleNamespace(observes=True)}
    scaled = rules.worse_than_random(run_of(max_epoch=12, policy=in_use, columns=columns))
    assert plain is not None
    assert scaled is not None
    first = "train for longer, a higher gamma than 0.5, lower lr, scale the reward, normalize_obs=True, or "
    assert first in plain
    assert "train for longer, lower lr, or " in scaled

"""Several ranks: the averaged gradient is that of one process, weights stay equal, and a resumed run is exact."""

from pathlib import Path
from typing import Any

import pytest
import torch.distributed

import trainkit as tk
from tests.extensions.ranks.torchrun import run_ranks
from tests.pretend import PretendDevice
from tests.trainer.toys import everything
from trainkit.core.checkpoint import find_checkpoints, open_checkpoint
from trainkit.engine.parameter_storage import ParameterGroup, group_of
from trainkit.engine.process_group import ProcessGroup
from trainkit.extensions.ranks.ranks import Ranks


def make_run(name: str = "dqn", **options: Any) -> tk.Trainer:
    """Return a run of 3 epochs."""
    of_kind: dict[str, Any] = {"step_per_collect": 64} if name == "ppo" else {"learning_starts": 32, "batch_size": 16}
    given = {"seed": 3, "hidden": (8,), "zoo": False, "max_epoch": 3, "verbose": False, "step_per_epoch": 64}
    preset: Any = getattr(tk.presets, name)
    trainer: tk.Trainer = preset("CartPole-v1", **{**given, **of_kind, **options})
    return trainer


def test_one_process_takes_part_in_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as schedulers set it
    own = make_run().process_group
    assert type(own) is ProcessGroup
    assert (own.rank, own.n) == (0, 1)


@pytest.mark.parametrize(("name", "normalize"), [("rainbow", False), ("ppo", True), ("dqn", True)])
def test_a_group_of_one_rank_has_the_bits_of_one_process(
    name: str, normalize: bool, single_rank: Ranks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    how = {"evaluation": tk.Evaluation(duration=2), "normalize_obs": normalize}
    own = make_run(name, **how)
    assert own.process_group is single_rank
    own.run()
    monkeypatch.setenv("WORLD_SIZE", "1")  # as torchrun does
    monkeypatch.setattr(Ranks, "launched", classmethod(lambda cls: None))
    plain = make_run(name, **how)
    plain.run()
    assert everything(own) == everything(plain)
    with pytest.raises(tk.errors.CheckpointError, match="was saved with n_ranks 1, this run has None"):
        make_run(name, **how).load(own.save(tmp_path / "save"))


def test_a_loss_that_is_not_finite_stops_the_step_of_every_rank(single_rank: Ranks) -> None:
    def group(n: int) -> ParameterGroup:
        made = group_of([("weight", torch.nn.Parameter(torch.zeros(n)))], [0])
        made.gradients[0].fill_(1)
        return made

    groups = [group(3), group(2)]
    single_rank.average(groups, float("inf"))
    assert [bool(one.gradients[0].isfinite().all()) for one in groups] == [False, False]
    single_rank.average(groups := [group(3)], 1e30)
    assert groups[0].gradients[0].tolist() == [1, 1, 1]


def test_the_separate_gradients_of_a_device_are_averaged_as_one(
    single_rank: Ranks, pretend: PretendDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(single_rank, "n", 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda flat: sizes.append(len(flat)) or flat.add_(3.0))
    names = {"one": (2, 3), "other": (4,)}
    named = [(name, torch.nn.Parameter(torch.zeros(shape, device=pretend.device))) for name, shape in names.items()]
    group = group_of(named, [0, 1])
    single_rank.average([group], 1.0)
    assert sizes == [10]
    assert [one.cpu().unique().tolist() for one in group.gradients] == [[1.5], [1.5]]
    single_rank.average([group], float("nan"))
    assert not bool(group.gradients[0].isfinite().all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_epoch_seconds": 1.0}, "max_epoch_seconds ends an epoch of one rank alone"),
        ({"checkpoint": tk.Checkpoint("x", unit="seconds")}, "saves ranks at different steps"),
        (
            {"episode_per_collect": 2, "step_per_collect": None},
            ".episode_per_collect has as many steps as its episodes",
        ),
        ({"reward": "return_scale"}, "whose running statistics the ranks of torchrun do not share"),
    ],
)
def test_options_by_which_ranks_would_take_different_numbers_of_updates_are_rejected(
    options: dict[str, Any], message: str, single_rank: Ranks
) -> None:
    with pytest.raises(tk.ConfigError) as caught:
        make_run(**options)
    assert message in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["dqn", "rainbow", "ppo", "sac"])
def test_the_averaged_gradient_is_that_of_one_process_for_the_rows_of_all_ranks(name: str, tmp_path: Path) -> None:
    """At each of 1,000 updates, to 1e-6 relative; before each update both ranks have the same bits of all weights."""
    found, output = run_ranks("gradients", tmp_path, name, "1000")
    assert len(found) == 2, output
    assert found[0]["n_updates"] >= 1_000
    assert found[0]["n_compared"] >= found[0]["n_updates"] - 10
    assert found[0]["largest"] < 1e-6
    assert found[0]["n_different"] == found[1]["n_different"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["rainbow", "ppo"])
def test_a_resumed_run_of_two_ranks_is_exact_and_another_number_is_rejected(name: str, tmp_path: Path) -> None:
    run_ranks("train", tmp_path, name, str(tmp_path / "whole"), "10000")
    found, output = run_ranks("train", tmp_path, name, str(tmp_path / "parts"), "100")
    assert [one["stop_reason"] for one in found] == ["max_env_step"] * 2, output
    assert find_checkpoints(tmp_path / "parts")[0].name == "save-000001"
    found, output = run_ranks("train", tmp_path, name, str(tmp_path / "parts"), "10000")
    assert len(found) == 2, output
    assert find_checkpoints(tmp_path / "whole")[0].name == "save-000003"
    whole, parts = find_checkpoints(tmp_path / "whole")[0], find_checkpoints(tmp_path / "parts")[0]
    for part in ("", "rank1"):
        assert states_of(whole / part) == states_of(parts / part), part
    assert states_of(whole)["policy"] != states_of(whole / "rank1")["policy"], "streams differ"
    assert states_of(whole)["buffer"] != states_of(whole / "rank1")["buffer"]
    found, output = run_ranks("train", tmp_path, name, str(tmp_path / "parts"), "10000", n=1)
    assert found == []
    assert "was saved with n_ranks 2, this run has None: make it as it was" in output


def states_of(folder: Path) -> dict[str, Any]:
    """Return the components of a checkpoint in bits, without times."""
    with open_checkpoint(folder, ["policy", "buffer", "collector", "trainer"]) as states:
        trainer = {name: states["trainer"][name] for name in ("epoch", "stop_reason", "seed")}
        found = {name: repr(_plain(states[name])) for name in ("policy", "buffer", "collector")}
    return found | {"trainer": trainer}


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items() if "seconds" not in str(name) and name != "tally"}
    if isinstance(state, (list, tuple)):
        return [_plain(value) for value in state]
    if isinstance(state, torch.Tensor):
        return state.numpy().tobytes()
    return state.tobytes() if hasattr(state, "tobytes") else state

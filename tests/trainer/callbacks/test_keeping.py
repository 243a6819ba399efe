"""Policies saved for acting alone: the best, confirmed on fresh seeds, and periodic ones."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import make_policy, make_trainer


def told(trainer: tk.Trainer, scores: list[float]) -> None:
    """Have the evaluations of a trainer find these mean returns, first and second looks alike."""
    evaluation = trainer.evaluation_schedule.evaluation
    assert evaluation is not None
    run, left = evaluation.run, iter(scores)

    def found(*arguments: Any, **options: Any) -> tk.CollectStats:
        stats = run(*arguments, **options)
        return dataclasses.replace(stats, returns=dataclasses.replace(stats.returns, mean=next(left)))

    evaluation.run = found  # type: ignore[method-assign]  # as if it had played so


def loaded(path: Path, like: tk.Trainer) -> Any:
    assert like.train_collector is not None
    return tk.load_policy(path, policy=make_policy(like.train_collector.envs))


def test_the_policy_that_is_kept_is_the_best_on_fresh_seeds(tmp_path: Path) -> None:
    best = tk.callbacks.SaveBest(tmp_path / "best")
    trainer = make_trainer(test=True, max_epoch=4, callbacks=[best])
    # first looks 1, 5, 9, 7; second looks 3 (kept), 2 (luck), 4 (kept), none: 7 is no best
    told(trainer, [1.0, 3.0, 5.0, 2.0, 9.0, 4.0, 7.0])
    policy: Any = trainer.policy
    weights = [{name: leaf.clone() for name, leaf in policy.state_dict().items()} for _ in trainer]
    assert best.score == 4.0
    kept = loaded(tmp_path / "best", trainer).state_dict()
    assert all(np.array_equal(kept[name], weights[2][name]) for name in kept)
    assert not all(np.array_equal(kept[name], weights[3][name]) for name in kept)


def test_save_best_is_deprecated_and_names_its_replacement(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match=r"SaveBest is deprecated: use Checkpoint\(folder\)"):
        tk.callbacks.SaveBest(tmp_path / "best")


def test_the_best_score_outlives_a_run(tmp_path: Path) -> None:
    trainer = make_trainer(test=True, callbacks=[tk.callbacks.SaveBest(tmp_path / "best")])
    told(trainer, [1.0, 8.0])
    next(trainer)
    trainer.save(tmp_path / "run")
    again = tk.callbacks.SaveBest(tmp_path / "best")
    resumed = make_trainer(test=True, callbacks=[again], resume_from=tmp_path / "run")
    assert again.score == 8.0
    told(resumed, [2.0, 7.0])  # a best, which its second look does not confirm
    next(resumed)
    assert again.score == 8.0


@pytest.mark.parametrize(
    ("unit", "every", "steps"),
    [("epochs", 2, [48]), ("env_steps", 20, [20, 40, 60]), ("updates", 10, [20, 40, 60])],
)
def test_policies_are_kept_now_and_then(tmp_path: Path, unit: Any, every: int, steps: list[int]) -> None:
    trainer = make_trainer(callbacks=[tk.callbacks.SaveEvery(tmp_path, every=every, unit=unit)], step_per_collect=4)
    trainer.run()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:09d}" for step in steps]
    first = loaded(tmp_path / f"step-{steps[0]:09d}", trainer)
    assert first.last_step <= steps[0]
    obs = np.zeros((3, 2), np.float32)
    assert first.predict(obs).shape == (3,)


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(tk.ConfigError, match=r"SaveBest.folder .* is a file: name a folder"):
        tk.callbacks.SaveBest(tmp_path / "file")
    with pytest.raises(tk.ConfigError, match=r"SaveEvery.unit must be one of .*, got 'steps'"):
        tk.callbacks.SaveEvery(tmp_path, unit="steps")  # type: ignore[arg-type]  # refused
    with pytest.raises(tk.ConfigError, match="SaveBest needs evaluations: give a test_collector or an evaluation"):
        make_trainer(callbacks=[tk.callbacks.SaveBest(tmp_path)])


def test_a_second_look_is_told_to_nobody(tmp_path: Path) -> None:
    class Count(tk.Callback):
        n_told = 0

        def on_episode_end(self, trainer: tk.Trainer, episode: tk.collector.Episode) -> None:
            self.n_told += episode.in_evaluation

    count = Count()
    make_trainer(test=True, max_epoch=2, callbacks=[tk.callbacks.SaveBest(tmp_path / "best"), count]).run()
    assert count.n_told == 2 * 3


def test_a_checkpoint_saves_the_others_states_wherever_it_stands(tmp_path: Path) -> None:
    class Epochs(tk.Callback):
        n_heard = 0

        def on_epoch_end(self, trainer: tk.Trainer, result: Any) -> None:
            self.n_heard += 1

        def state_dict(self) -> dict[str, Any]:
            return {"n_heard": self.n_heard}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.n_heard = state["n_heard"]

    next(make_trainer(callbacks=[tk.Checkpoint(tmp_path), Epochs()]))
    again = Epochs()
    make_trainer(callbacks=[tk.Checkpoint(tmp_path), again], resume_from="auto")
    assert again.n_heard == 1


@pytest.mark.parametrize("tag", ["train/returns", "train/nosuch", "test/returns/middle", "time", "update", "loss", ""])
def test_a_tag_that_is_no_number_is_refused_when_the_checkpoint_is_made(tag: str, tmp_path: Path) -> None:
    with pytest.raises(tk.ConfigError, match=r"Checkpoint.keep_best must be the tag of a number, such as"):
        tk.Checkpoint(tmp_path, keep_best=tag)


@pytest.mark.parametrize(
    "tag",
    ["train/returns/mean", "test/lengths/max", "time/steps_per_second", "update/loss", "custom/a/b", "test/n_step"],
)
def test_a_tag_of_a_number_is_taken(tag: str, tmp_path: Path) -> None:
    tk.Checkpoint(tmp_path, keep_best=tag)

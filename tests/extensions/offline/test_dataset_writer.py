"""The dataset writer: every step of a collector in files of whole episodes, however they ended."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import trainkit as tk
from tests.helpers.doubles import Ledger, Player, Still
from tests.helpers.padded import Flicker
from tests.helpers.small_envs import Lamp
from tests.helpers.tagged import TaggedEnv, decode, is_terminated, is_truncated, length, reward
from tests.helpers.truth import IN_PROCESS, tagged_envs
from tests.trainer.toys import Walk, make_trainer
from trainkit import (
    Collector,
    ConfigError,
    DQNPolicy,
    EpsilonGreedy,
    OffpolicyTrainer,
    OnpolicyTrainer,
    PPOPolicy,
    ReplayBuffer,
    RolloutBuffer,
    load_dataset,
    make_envs,
)
from trainkit.callbacks import DatasetWriter
from trainkit.core import tree
from trainkit.core.data import RecordedEpisode
from trainkit.errors import CheckpointError
from trainkit.extensions.offline.format import read_shard


def recorded(folder: Path) -> list[RecordedEpisode]:
    return list(load_dataset(folder).episodes())


def received(episode: RecordedEpisode) -> tuple[int, int, int, bool, bool]:
    """Check that an episode is one of its environment from the start, step by step; return what it says it is."""
    tags = decode(episode.obs)
    tags = tags[:, -1] if tags.ndim == 3 else tags
    env, number = map(int, tags[0, :2])
    t = np.arange(len(episode))
    assert_array_equal(tags[:, :2], np.tile([env, number], (len(tags), 1)))
    assert_array_equal(tags[:, 2], np.arange(len(tags)))
    assert_array_equal(tags[1:, 3], episode.action)
    assert_array_equal(episode.reward, reward(env, number, t))
    return env, number, len(episode), episode.terminated, episode.truncated


def rule(env: int, number: int) -> tuple[int, int, int, bool, bool]:
    return env, number, length(env, number), is_terminated(env, number), is_truncated(env, number)


@pytest.mark.one_of_each
@pytest.mark.parametrize("way", IN_PROCESS)
@pytest.mark.parametrize("form", ["array", "dict", "masked"])
def test_every_episode_of_every_environment_is_written_whole(way: str, form: Any, tmp_path: Path) -> None:
    collector = Collector(Player(), tagged_envs(way, 3, form))
    with DatasetWriter(tmp_path, open_episodes="drop").record(collector):
        collector.collect(n_step=100)
    seen = [received(one) for one in recorded(tmp_path)]

    assert sorted(seen) == sorted(rule(*one[:2]) for one in seen)
    for env in range(3):
        numbers = sorted(one[1] for one in seen if one[0] == env)
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= 3


@pytest.mark.parametrize("form", ["array", "masked"])
def test_frame_stacks_come_back_as_they_were_acted_on(form: Any, tmp_path: Path) -> None:
    collector = Collector(Player(), tagged_envs("sync", 2, form, stack=3), ledger := Ledger())
    with DatasetWriter(tmp_path).record(collector):
        collector.collect(n_step=40)
    rows = ledger.rows()
    by_tag = {tuple(tag): k for k, tag in enumerate(decode(rows.obs)[:, -1, :3].tolist())}
    seen = 0
    for episode in recorded(tmp_path):
        env, number, n_steps, *_ = received(episode)
        order = [by_tag[env, number, t] for t in range(n_steps)]
        for here, acted, after in zip(
            tree.leaves(episode.obs), tree.leaves(rows.obs), tree.leaves(rows.next_obs), strict=True
        ):
            assert_array_equal(here[:-1], acted[order])
            assert_array_equal(here[-1], after[order[-1]])
        seen += n_steps
    assert seen == len(rows.reward) == 40


def test_stacks_that_are_padded_with_zeros_come_back_so(tmp_path: Path) -> None:
    envs = make_envs(Flicker, 2, seed=3, stack=4, pad="zero")
    collector = Collector(tk.RandomPolicy(envs.action_space, seed=1), envs, buffer := tk.ReplayBuffer(100, seed=1))
    with DatasetWriter(tmp_path).record(collector):
        collector.collect(n_episode=8)
    loaded = tk.load_dataset(tmp_path)
    both = [sorted(np.asarray(rows.sample(None, horizon=tk.Horizon()).obs).tolist()) for rows in (loaded, buffer)]
    assert both[0] == both[1]


def test_what_runs_at_the_end_is_cut_or_dropped(tmp_path: Path) -> None:
    env = partial(TaggedEnv, 0, length_of=lambda *_: 4)
    for name, lengths in (("cut", [4, 4, 2]), ("drop", [4, 4])):
        collector = Collector(Player(), make_envs(env, 1))
        with DatasetWriter(tmp_path / name, open_episodes=name).record(collector):  # type: ignore[arg-type]  # one of both
            collector.collect(n_step=10)
        episodes = recorded(tmp_path / name)
        assert [len(one) for one in episodes] == lengths
        assert [one.terminated or one.truncated for one in episodes] == [True, True, False][: len(lengths)]


def test_a_reset_cuts_and_the_next_episode_is_whole(tmp_path: Path) -> None:
    collector = Collector(Player(), make_envs([partial(TaggedEnv, env, length_of=lambda *_: 4) for env in range(2)]))
    with DatasetWriter(tmp_path).record(collector):
        collector.collect(n_step=6)  # 3 each
        collector.collect(n_episode=2)
    ends = [(received(one)[:3], one.terminated or one.truncated) for one in recorded(tmp_path)]

    assert ends == [((0, 0, 3), False), ((1, 0, 3), False), ((0, 1, 4), True), ((1, 1, 4), True)]


def test_an_episode_that_runs_when_recording_begins_is_left_out(tmp_path: Path) -> None:
    collector = Collector(Player(), tagged_envs("sync", 3))
    collector.collect(n_step=7)
    begun = {env: int(collector.envs.episodes[env]) + (env in collector.open_ids) for env in range(3)}
    with DatasetWriter(tmp_path, open_episodes="drop").record(collector):
        collector.collect(n_step=60)
    firsts: dict[int, int] = {}
    for env, number, *_ in sorted(received(one) for one in recorded(tmp_path)):
        firsts.setdefault(env, number)

    assert firsts == begun


def test_recording_may_stop_and_start_again(tmp_path: Path) -> None:
    collector, writer = Collector(Player(), tagged_envs("sync", 2)), DatasetWriter(tmp_path)
    for _ in range(3):
        with writer.record(collector):
            collector.collect(n_step=30)
        collector.collect(n_step=7)
    assert collector.recorders == []
    seen = [received(one)[:2] for one in recorded(tmp_path)]

    assert len(seen) == len(set(seen))  # none is written twice
    assert [path.name for path in writer.files] == [f"episodes-00000{number}.npz" for number in range(3)]


def test_files_stay_below_their_limit_unless_one_episode_is_larger(tmp_path: Path) -> None:
    env = partial(TaggedEnv, 0, length_of=lambda env, number: 4 if number % 5 else 40)
    per_step = 16 + 8 + 8  # observation, action, reward; and one more observation per episode
    writer = DatasetWriter(tmp_path, max_bytes=2 * (4 * per_step + 16))
    collector = Collector(Player(), make_envs(env, 1))
    with writer.record(collector):
        collector.collect(n_episode=10)
    lengths = [read_shard(path).length.tolist() for path in writer.files]

    assert lengths == [[40], [4, 4], [4, 4], [40], [4, 4], [4, 4]]


def test_a_second_writer_continues_the_numbering_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "episodes-000007.npz").write_bytes(b"mine")
    (tmp_path / "notes.txt").write_text("mine, too")
    collector = Collector(Player(), tagged_envs("sync", 1))
    first, second = DatasetWriter(tmp_path), DatasetWriter(tmp_path)
    with first.record(collector), second.record(collector):
        collector.collect(n_episode=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "episodes-000007.npz",
        "episodes-000008.npz",
        "episodes-000009.npz",
        "notes.txt",
    ]
    assert (tmp_path / "episodes-000007.npz").read_bytes() == b"mine"


def test_another_writer_that_is_quicker_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = DatasetWriter(tmp_path)
    monkeypatch.setattr(writer._writer, "_next_number", lambda: 0)
    (tmp_path / "episodes-000000.npz").write_bytes(b"quicker")
    collector = Collector(Player(), tagged_envs("sync", 1))
    with writer.record(collector):
        collector.collect(n_episode=1)

    assert (tmp_path / "episodes-000000.npz").read_bytes() == b"quicker"
    assert [path.name for path in writer.files] == ["episodes-000001.npz"]


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(file: Any, **arrays: Any) -> None:
        raise OSError(28, "No space left on device")

    collector, writer = Collector(Player(), tagged_envs("sync", 1)), DatasetWriter(tmp_path, max_bytes=1)
    with writer.record(collector), monkeypatch.context() as full:
        full.setattr(np, "savez", disk_full)
        with pytest.raises(CheckpointError, match=r"cannot write .*episodes-000000\.npz: .*its episodes are kept"):
            collector.collect(n_episode=3)
        assert list(tmp_path.iterdir()) == []
        full.undo()
        collector.collect(n_episode=1)
    seen = recorded(tmp_path)

    assert sum(map(len, seen)) == collector.env_step
    assert [received(one)[1] for one in seen] == list(range(len(seen)))


def test_close_tries_again_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(file: Any, **arrays: Any) -> None:
        raise OSError(28, "No space left on device")

    writer = DatasetWriter(tmp_path).record(collector := Collector(Player(), tagged_envs("sync", 1)))
    collector.collect(n_episode=3)
    with monkeypatch.context() as full:
        full.setattr(np, "savez", disk_full)
        with pytest.raises(CheckpointError, match="its episodes are kept"):
            writer.close()
    writer.close()
    writer.close()

    assert len(recorded(tmp_path)) == 3
    assert len(writer.files) == 1


def test_no_episode_writes_no_file_and_no_folder(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "none").record(Collector(Player(), tagged_envs("sync", 1))):
        pass

    assert not (tmp_path / "none").exists()


def test_a_recorder_and_no_buffer_changes_no_step() -> None:
    def played(recorders: Sequence[Any]) -> Any:
        collector = Collector(Player(), tagged_envs("sync", 2), ledger := Ledger())
        collector.recorders.extend(recorders)
        collector.collect(n_step=50)
        return ledger.rows()

    for here, there in zip(tree.leaves(played([])[:4]), tree.leaves(played([Ledger()])[:4]), strict=True):
        assert_array_equal(here, there)


# ---- in a run ----


def test_a_run_records_its_training_collector_with_how_likely_actions_were(tmp_path: Path) -> None:
    envs = make_envs(Walk, 3)
    policy = DQNPolicy.for_envs(envs, hidden=(4,), exploration=EpsilonGreedy(0.2), device="cpu", store_action_prob=True)
    collector = Collector(policy, envs, ReplayBuffer(500))
    writer = DatasetWriter(tmp_path)
    trainer = OffpolicyTrainer(
        policy,
        collector,
        test_collector=Collector(policy, make_envs(Walk, 1)),
        max_epoch=2,
        step_per_epoch=99,
        batch_size=8,
        warmup="random",
        learning_starts=30,
        callbacks=[writer],
        verbose=False,
        seed=1,
    )
    trainer.run()
    loaded, own = load_dataset(tmp_path, envs=envs), collector.buffer
    assert isinstance(own, ReplayBuffer)
    whole = sorted((tuple(one.reward), one.obs.tobytes(), one.terminated, one.truncated) for one in own.episodes())
    again = sorted((tuple(one.reward), one.obs.tobytes(), one.terminated, one.truncated) for one in loaded.episodes())

    assert len(loaded) == collector.env_step == 198
    assert whole == again
    likely = np.concatenate([one.extras["action_prob"] for one in loaded.episodes()])
    assert set(np.round(likely, 9)) == {0.5, 0.1, 0.9}
    assert read_shard(writer.files[0]).header.env == envs.name
    assert collector.recorders == []


def test_an_on_policy_run_records_the_logarithms(tmp_path: Path) -> None:
    envs = make_envs(Walk, 2)
    policy = PPOPolicy.for_envs(envs, hidden=(4,), device="cpu")
    OnpolicyTrainer(
        policy,
        Collector(policy, envs, RolloutBuffer()),
        max_epoch=1,
        step_per_epoch=64,
        step_per_collect=16,
        callbacks=[DatasetWriter(tmp_path)],
        verbose=False,
        seed=1,
    ).run()
    episodes = recorded(tmp_path)

    assert sum(map(len, episodes)) == 64
    assert all((one.extras["log_prob"] < 0).all() for one in episodes)
    assert min(len(one) for one in episodes[:-2]) >= 2  # a rollout's end is no episode's


# ---- refusals ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_bytes": 0}, r"DatasetWriter\.max_bytes must be a whole number >= 1, got 0"),
        ({"open_episodes": "keep"}, r"DatasetWriter\.open_episodes must be one of \['cut', 'drop'\], got 'keep'"),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetWriter(tmp_path, **options)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file: name a folder"):
        DatasetWriter(tmp_path / "file")


def test_two_collectors_need_two_writers(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path)
    one, other = (Collector(Player(), tagged_envs("sync", 1)) for _ in range(2))
    writer.record(one).record(one)
    with pytest.raises(ConfigError, match="records another collector already: close it first, or make a second one"):
        writer.record(other)
    assert len(one.recorders) == 1


def test_every_epochs_whole_episodes_are_in_files_when_a_run_dies(tmp_path: Path) -> None:
    def train_fn(epoch: int, env_step: int) -> None:
        if env_step >= 60:
            raise RuntimeError("power cut")

    trainer = make_trainer(callbacks=[DatasetWriter(tmp_path / "data")], train_fn=train_fn)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.run()
    kept = load_dataset(tmp_path / "data")
    assert 24 <= len(kept) <= 48  # the whole episodes of two epochs of 24 steps


def test_recorded_episodes_have_extra_columns_and_bring_them_back(tmp_path: Path) -> None:
    train = Collector(Still(), make_envs(Lamp, 3), ReplayBuffer(100), extra_columns={"square": -1})
    with DatasetWriter(tmp_path).record(train):
        train.collect(n_step=15)
    again = load_dataset(tmp_path)

    assert sorted(again[:].extras["square"].tolist()) == sorted([-1, 4, 9, 16, 25] * 3)


def test_a_folder_that_cannot_be_written_is_rejected_at_construction(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "below", Path("/proc/here")):
        with pytest.raises(ConfigError, match=r"\.folder .* cannot be written \(.*\): name another folder"):
            DatasetWriter(folder)


def test_looking_whether_a_folder_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    DatasetWriter(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []

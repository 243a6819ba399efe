"""Threads: as many as given while a trainer runs, as before outside."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.trainer.runs import make_run
from tests.trainer.toys import make_trainer


class Listener(tk.Callback):
    """Write down on how many threads torch computes at every update."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def on_update_end(self, trainer: tk.Trainer) -> None:
        self.heard.append(torch.get_num_threads())


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class TestWithin:
    @pytest.mark.parametrize("kind", ["dqn", "ppo", "cql"])
    def test_torch_computes_on_as_many_as_asked_for_and_as_before_outside(self, kind: str) -> None:
        listener = Listener()
        trainer = make_run(kind, threads=1, callbacks=[listener])
        next(trainer)
        assert set(listener.heard) == {1}
        assert torch.get_num_threads() == 2

    def test_nothing_is_set_unasked(self) -> None:
        listener = Listener()
        next(make_trainer(callbacks=[listener]))
        assert set(listener.heard) == {2}

    def test_an_error_leaves_them_as_they_were(self) -> None:
        def fail(epoch: int, env_step: int) -> None:
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            next(make_trainer(threads=1, train_fn=fail))
        assert torch.get_num_threads() == 2

    def test_a_policy_without_n_threads_is_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        owner = next(kind for kind in tk.DQNPolicy.__mro__ if "n_threads" in vars(kind))
        monkeypatch.delattr(owner, "n_threads")
        with pytest.raises(tk.ConfigError, match="threads=1 needs a policy with n_threads, DQNPolicy has none"):
            make_trainer(threads=1)


def test_one_thread_gives_the_same_bits_as_torch_told_by_hand() -> None:
    asked = make_run("sac", threads=1)
    asked.run()
    torch.set_num_threads(1)
    by_hand = make_run("sac")
    by_hand.run()
    for mine, theirs in zip(asked.policy.parameters(), by_hand.policy.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), theirs.detach().numpy())


@pytest.mark.parametrize("count", [None, 2])
def test_a_checkpoint_with_the_state_of_a_measured_number_still_loads(count: int | None) -> None:
    trainer = make_trainer()
    next(trainer)
    state = trainer.state_dict()
    assert "threads" not in state
    resumed = make_trainer()
    resumed.load_state_dict(state | {"threads": {"count": count}})  # as saved with threads="auto"
    assert resumed.epoch == trainer.epoch

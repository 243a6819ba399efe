"""A reader of one's own: learn offline from any table of columns, `python examples/own_dataset.py`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import trainkit as tk


class Table:
    """Rows of single steps in any table of columns, such as arrays that numpy.load(mmap_mode="r") opened."""

    columns = ()  # names of further columns, which sample would return in extras
    prioritized = False
    is_seeded = False
    nbytes = 0  # in memory

    def __init__(self, **rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows["reward"])

    def seed(self, root: int) -> None:
        self.is_seeded, self.rng = True, np.random.default_rng(root)

    def read(self, chosen: Any) -> dict[str, Any]:
        return {name: column[chosen] for name, column in self.rows.items()}

    def sample(
        self, batch_size: int | None, *, horizon: tk.Horizon, step: int = 0, columns: Sequence[str] = ()
    ) -> tk.TransitionBatch:
        slots = np.arange(len(self)) if batch_size is None else self.rng.integers(len(self), size=batch_size)
        rows = self.read(slots)
        discount = np.where(rows.pop("terminated"), 0, horizon.gamma).astype(np.float32)
        del rows["truncated"]  # which keeps the bootstrap
        return tk.TransitionBatch(**rows, discount=discount, weight=np.ones(len(slots), np.float32), slots=slots)

    def update_priorities(self, slots: Any, priority: Any) -> None: ...

    def transitions(self, n_rows: int = 10_000) -> Iterator[tk.Transition]:
        for begin in range(0, len(self), n_rows):
            rows = self.read(slice(begin, begin + n_rows))
            yield tk.Transition(**rows, env_ids=np.arange(len(rows["reward"])), extras={})

    def episodes(self) -> Iterator[Any]:
        return iter(())  # for a memory, off-policy evaluation and mixing, which need whole episodes

    def metrics(self, step: int) -> dict[str, float]:
        return {"size": float(len(self))}

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]


def main(*, max_epoch: int = 2, update_per_epoch: int = 50) -> tk.trainer.RunInfo:
    """Learn from 500 random rows; yours are read from files."""
    rng = np.random.default_rng(1)
    obs, none = rng.random((501, 4), np.float32), np.zeros(500, bool)
    rows = {"obs": obs[:-1], "next_obs": obs[1:], "action": rng.integers(2, size=500)}
    table = Table(**rows, reward=rng.random(500, np.float32), terminated=none, truncated=none)
    policy = tk.DQNPolicy.for_envs(tk.make_envs("CartPole-v1"), hidden=(32,), seed=0)
    return tk.OfflineTrainer(
        policy, table, max_epoch=max_epoch, update_per_epoch=update_per_epoch, batch_size=32, seed=1
    ).run()


if __name__ == "__main__":
    print(main())

"""What a run's checkpoint holds, and how a run goes on from one."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainkit import checkpoint as checkpoints

if TYPE_CHECKING:
    from trainkit.trainer.base import Trainer

_SAME = ("trainer", "policy", "buffer", "env", "n_envs")  # settings a checkpoint must share with who goes on from it


def save(trainer: "Trainer", path: str | Path) -> Path:
    """Write every part of a run into a folder, whole or not at all."""
    components: dict[str, Any] = {
        "policy": trainer.policy.training_state(),
        "buffer": trainer.buffer.state_dict(),
        "trainer": trainer.state_dict(),
    }
    if trainer.train_collector is not None:
        components["collector"] = trainer.train_collector.state_dict()
    return checkpoints.save_checkpoint(path, components, trainer.settings())


def load(trainer: "Trainer", path: str | Path) -> None:
    """Give every part of a run back what `save` wrote."""
    components = checkpoints.load_checkpoint(path, {name: trainer.settings()[name] for name in _SAME})
    trainer.policy.load_training_state(components["policy"])
    trainer.buffer.load_state_dict(components["buffer"])
    if trainer.train_collector is not None:
        trainer.train_collector.load_state_dict(components["collector"])
    trainer.reset()
    trainer.load_state_dict(components["trainer"])

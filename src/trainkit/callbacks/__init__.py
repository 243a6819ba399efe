"""Callbacks: the base class for custom callbacks, and the ready-made ones."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "trainer.callbacks.base": "Callback on",
        "trainer.callbacks.checkpointing": "Checkpoint SaveBest SaveEvery",
        "trainer.callbacks.curriculum": "Curriculum",
        "trainer.callbacks.history": "History",
        "trainer.callbacks.logged_values": "Histograms LogEpisodes LogInfo",
        "trainer.callbacks.memory": "TrackMemory",
        "trainer.callbacks.stopping": "StopAt",
        "trainer.callbacks.video": "RecordVideo",
    },
)

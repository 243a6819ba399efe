"""Training: the iterators that drive collector, buffer and policy."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "core.checkpoint": "inspect_checkpoint",
        "core.data": "EpochResult",
        "core.protocols": "OffpolicyTrainee OnpolicyTrainee Trainee",
        "core.stats": "CollectStats EpochStats PlayerStats RunInfo RunResult RunWarning Summary TimeStats scalars",
        "trainer.base": "Trainer",
        "trainer.callbacks.base": "Callback",
        "trainer.callbacks.checkpointing": "Checkpoint SaveBest SaveEvery",
        "trainer.callbacks.curriculum": "Curriculum",
        "trainer.callbacks.history": "History",
        "trainer.callbacks.logged_values": "Histograms LogInfo",
        "trainer.callbacks.stopping": "StopAt",
        "trainer.callbacks.video": "RecordVideo",
        "trainer.evaluation": "Evaluation evaluate",
        "trainer.offline": "OfflineTrainer",
        "trainer.offpolicy": "OffpolicyTrainer",
        "trainer.onpolicy": "OnpolicyTrainer",
        "trainer.paired_comparison": "PairedComparison compare",
        "trainer.restarting": "run_with_restart",
    },
)

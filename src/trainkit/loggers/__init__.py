"""Loggers: where a run's statistics are written, and how they are read back."""

from trainkit.core.extensions import attach

__dir__, __getattr__ = attach(
    __name__,
    {
        "core.protocols": "HistogramLogger Logger PurgingLogger TextLogger VideoLogger",
        "loggers.csv_file": "CsvLogger",
        "loggers.logger": "JsonlLogger",
        "loggers.runs": "RunFolder find_runs",
        "loggers.tensorboard": "TensorboardLogger",
        "loggers.trackers": "MlflowLogger WandbLogger",
    },
)

"""Loggers of experiment trackers: Weights & Biases and MLflow, each by its own package."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainkit.core.extras import import_extra
from trainkit.core.signatures import checked
from trainkit.loggers.tensorboard import as_gif

_LONGEST_PARAMETER = 500  # characters, that every version of MLflow stores
_MOST_PARAMETERS = 100  # per request to MLflow
_MOST_METRICS = 1_000


@checked
class WandbLogger:
    """A logger to Weights & Biases: settings as the run's config, statistics, histograms and videos.

    The x-axis of every chart is `env_step`. Log in with `wandb login` first, or give `mode="offline"`.

    Args:
        project: to log to; None is wandb's own choice.
        options: of `wandb.init`, such as `name`, `group`, `tags`, `mode`, or `id` and `resume="allow"` to continue a
            run.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self, project: str | None = None, **options: Any) -> None:
        self._wandb = import_extra("WandbLogger", "wandb", "wandb")
        self._run = self._wandb.init(project=project, **{"reinit": "create_new", **options})
        self.folder: str | None = str(self._run.dir)
        self._run.define_metric("env_step")
        self._run.define_metric("*", step_metric="env_step")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log numbers at an environment step."""
        with _as_os_error(self._wandb.Error):
            self._run.log({"env_step": step, **numbers})

    def write_histograms(self, step: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Log the distribution of each array."""
        with _as_os_error(self._wandb.Error):
            self._run.log({"env_step": step, **{tag: self._wandb.Histogram(own) for tag, own in values.items()}})

    def write_video(self, step: int, tag: str, frames: NDArray[np.uint8], fps: float) -> None:
        """Log frames [T, H, W, 3] as an animated GIF."""
        with _as_os_error(self._wandb.Error):
            self._run.log({"env_step": step, tag: self._wandb.Video(as_gif(frames, fps), format="gif")})

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Set the run's config."""
        with _as_os_error(self._wandb.Error):
            self._run.config.update(dict(settings), allow_val_change=True)

    def close(self) -> None:
        """Finish the run: what is pending is uploaded."""
        self._run.finish()


@checked
class MlflowLogger:
    """A logger to MLflow: settings as parameters, statistics as metrics; MLflow's active run is not used.

    Args:
        experiment: its name; it is created if there is none.
        run_name: of the run; None is MLflow's own choice.
        tracking_uri: where to log; None is MLflow's own: `MLFLOW_TRACKING_URI`, else a local folder or file.
        run_id: of a run to continue.

    Raises:
        MissingExtraError: mlflow is not installed.
    """

    def __init__(
        self,
        experiment: str = "trainkit",
        *,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self._mlflow = import_extra("MlflowLogger", "mlflow", "mlflow")
        self._client = self._mlflow.MlflowClient(tracking_uri)
        if run_id is None:
            known = self._client.get_experiment_by_name(experiment)
            number = self._client.create_experiment(experiment) if known is None else known.experiment_id
            run_id = str(self._client.create_run(number, run_name=run_name).info.run_id)
        self.run_id = run_id
        self.folder: str | None = None
        self._described = dict(self._client.get_run(run_id).data.params)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log numbers at an environment step, those that are not finite left out."""
        now = time.time_ns() // 1_000_000
        finite = {tag: float(number) for tag, number in numbers.items() if math.isfinite(number)}
        metrics = [self._mlflow.entities.Metric(tag, number, now, step) for tag, number in finite.items()]
        with _as_os_error(self._mlflow.MlflowException):
            for start in range(0, len(metrics), _MOST_METRICS):
                self._client.log_batch(self.run_id, metrics=metrics[start : start + _MOST_METRICS])

    def describe(self, settings: Mapping[str, Any]) -> None:
        """Log the settings as parameters, `policy/lr` as `policy.lr`; MLflow keeps the first value of each."""
        texts = {name.replace("/", "."): str(value)[:_LONGEST_PARAMETER] for name, value in settings.items()}
        new = {name: text for name, text in texts.items() if name not in self._described}
        self._described |= new
        params = [self._mlflow.entities.Param(name, text) for name, text in new.items()]
        with _as_os_error(self._mlflow.MlflowException):
            for start in range(0, len(params), _MOST_PARAMETERS):
                self._client.log_batch(self.run_id, params=params[start : start + _MOST_PARAMETERS])

    def close(self) -> None:
        """Mark the run as finished."""
        with _as_os_error(self._mlflow.MlflowException):
            self._client.set_terminated(self.run_id)


@contextlib.contextmanager
def _as_os_error(error: type[Exception]) -> Iterator[None]:
    """Convert a tracker's error into an OSError, after which a run continues without the logger."""
    try:
        yield
    except error as problem:
        raise OSError(str(problem)) from problem

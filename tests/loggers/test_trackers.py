"""Loggers of Weights & Biases and MLflow call these packages as their documentation says; here with stand-ins.

`test_the_package_itself_...` use the packages, offline, where they are installed.
"""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import trainkit as tk
from tests.trainer.toys import make_trainer

FRAMES = np.zeros((2, 6, 4, 3), np.uint8)


class WandbRun:
    """What `wandb.init` returns."""

    def __init__(self) -> None:
        self.dir = "wandb/run/files"
        self.config: Any = SimpleNamespace(update=self._update)
        self.settings: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.metrics: dict[str, str | None] = {}
        self.is_finished = False

    def _update(self, settings: dict[str, Any], *, allow_val_change: bool) -> None:
        assert allow_val_change
        self.settings |= settings

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics[name] = step_metric

    def log(self, row: dict[str, Any]) -> None:
        if row.get("env_step") == -1:
            raise WandbError("the server is gone")
        self.rows.append(row)

    def finish(self) -> None:
        self.is_finished = True


class WandbError(Exception):
    pass


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a stand-in in wandb's place; it has the runs and the options of `init`."""
    found = SimpleNamespace(runs=[], options=[])

    def init(**options: Any) -> WandbRun:
        found.options.append(options)
        found.runs.append(WandbRun())
        run: WandbRun = found.runs[-1]
        return run

    module = ModuleType("wandb")
    vars(module).update(init=init, Error=WandbError, Histogram=np.asarray, Video=lambda gif, format: (gif, format))
    monkeypatch.setitem(sys.modules, "wandb", module)
    return found


def test_wandb_gets_settings_numbers_histograms_and_videos(wandb: SimpleNamespace) -> None:
    logger = tk.loggers.WandbLogger("balance", name="first", mode="offline")
    (run,), (options,) = wandb.runs, wandb.options
    assert options == {"project": "balance", "name": "first", "mode": "offline", "reinit": "create_new"}
    assert run.metrics == {"env_step": None, "*": "env_step"}
    assert logger.folder == "wandb/run/files"

    def log(trainer: tk.Trainer, *_: object) -> None:
        trainer.log("spread", np.arange(3), reduce="histogram")
        trainer.log_video("film", FRAMES, fps=10)

    with make_trainer(logger=logger, max_epoch=2, callbacks=tk.on(epoch_end=log)) as trainer:
        trainer.run()
    assert run.settings == trainer.describe()
    steps = [row["env_step"] for row in run.rows if "train/n_step" in row]
    assert steps == sorted(steps)
    assert steps[-1] == 48
    assert sum("custom/spread" in row for row in run.rows) == 2
    gif, kind = next(row["custom/film"] for row in run.rows if "custom/film" in row)
    assert (isinstance(gif, io.BytesIO), gif.read(3), kind) == (True, b"GIF", "gif")
    assert run.is_finished


def test_a_tracker_that_fails_costs_a_warning_and_not_the_run(wandb: SimpleNamespace) -> None:
    logger = tk.loggers.WandbLogger()
    with pytest.raises(OSError, match="the server is gone"):
        logger.write(-1, {"a": 1.0})


class MlflowError(Exception):
    pass


class MlflowClient:
    """MLflow's client, with one experiment."""

    made: "list[MlflowClient]"

    def __init__(self, uri: str | None) -> None:
        self.uri = uri
        self.experiments: list[str] = []
        self.params: dict[str, str] = {}
        self.metrics: list[tuple[str, float, int]] = []
        self.largest = 0
        self.ended: list[str] = []
        type(self).made.append(self)

    def get_experiment_by_name(self, name: str) -> Any:
        return None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return "7"

    def create_run(self, experiment_id: str, run_name: str | None) -> Any:
        assert experiment_id == "7"
        return SimpleNamespace(info=SimpleNamespace(run_id="one"))

    def get_run(self, run_id: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(params=self.params))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert run_id == "one"
        if any(metric[3] == -1 for metric in metrics):
            raise MlflowError("the server is gone")
        assert len(metrics) <= 1_000
        assert len(params) <= 100
        assert not {name for name, _ in params} & self.params.keys()  # they cannot change
        self.params |= dict(params)
        self.metrics += [(name, value, step) for name, value, _, step in metrics]

    def set_terminated(self, run_id: str) -> None:
        self.ended.append(run_id)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Callable[[], MlflowClient]:
    """Put a stand-in in MLflow's place; return its last client when called."""
    module = ModuleType("mlflow")
    entities = SimpleNamespace(Metric=lambda *given: given, Param=lambda *given: given)
    vars(module).update(MlflowClient=MlflowClient, MlflowException=MlflowError, entities=entities)
    MlflowClient.made = []
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return lambda: MlflowClient.made[-1]


def test_mlflow_gets_parameters_and_metrics(mlflow: Callable[[], MlflowClient]) -> None:
    logger = tk.loggers.MlflowLogger("balance", run_name="first", tracking_uri="here")
    client = mlflow()
    assert (client.uri, client.experiments, logger.run_id, logger.folder) == ("here", ["balance"], "one", None)
    with make_trainer(logger=logger, max_epoch=2) as trainer:
        trainer.run()
        trainer.reset()
        next(trainer)  # describes itself again
    record = trainer.describe()
    assert client.params.keys() == {name.replace("/", ".") for name in record}
    assert client.params["policy.lr"] == str(record["policy/lr"])
    assert max(map(len, client.params.values())) <= 500
    assert ("train/n_step", 24.0, 24) in client.metrics
    assert client.ended == ["one"]
    logger.write(5, {"a": float("nan"), "b": 1.0})
    assert client.metrics[-1] == ("b", 1.0, 5)
    with pytest.raises(OSError, match="the server is gone"):
        logger.write(-1, {"a": 1.0})


@pytest.mark.parametrize(("kind", "extra"), [("WandbLogger", "wandb"), ("MlflowLogger", "mlflow")])
def test_a_missing_package_is_named_with_its_extra(kind: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(tk.errors.MissingExtraError, match=rf"{kind} needs {extra} .*trainkit-rl\[{extra}\]"):
        getattr(tk.loggers, kind)()


@pytest.mark.slow
def test_the_package_itself_logs_to_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.chdir(tmp_path)
    logger = tk.loggers.WandbLogger("balance", mode="offline", dir=str(tmp_path))
    with make_trainer(logger=logger, max_epoch=1) as trainer:
        trainer.run()
        logger.write_histograms(24, {"spread": np.arange(5.0)})
        logger.write_video(24, "film", FRAMES, 10.0)
    assert list(tmp_path.rglob("run-*.wandb"))
    assert list(tmp_path.rglob("*.gif"))


@pytest.mark.slow
@pytest.mark.global_rng  # MLflow draws names
def test_the_package_itself_logs_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which needs no database
    uri = (tmp_path / "mlruns").as_uri()
    logger = tk.loggers.MlflowLogger("balance", tracking_uri=uri)
    with make_trainer(logger=logger, max_epoch=2) as trainer:
        trainer.run()
    run = mlflow.MlflowClient(uri).get_run(logger.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["policy.lr"] == str(trainer.describe()["policy/lr"])
    assert run.data.metrics["train/n_step"] == 24.0

"""Export of a policy to an ONNX file that maps raw observations to greedy actions without trainkit."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from trainkit.core import seeding, tree
from trainkit.core.data import ACTION_MASK, ActOutput, Obs
from trainkit.core.errors import ConfigError, DivergedError
from trainkit.core.extras import import_extra
from trainkit.core.files import write_whole
from trainkit.core.spaces import joint_actions, random_actions
from trainkit.engine.device import to_device

_N_ROWS = 256  # on which a file is compared with torch before it is written
_TOLERANCE = 1e-3  # of outputs, relative and absolute: kernels sum in another order
_MAX_WIDTH = 100.0  # of a Box to draw uniform observations from


@runtime_checkable
class Exportable(Protocol):
    """A policy whose greedy actions are a function of tensors."""

    observation_space: Space[Any] | None
    device: torch.device

    def greedy(self, obs: Any) -> Mapping[str, Tensor]:
        """Return "action" [B, ...] and what it was chosen by, for raw observations [B, ...] on the device."""
        ...

    def act(self, obs: Obs) -> ActOutput: ...

    def enter(self, *, training: bool) -> None: ...


def export_onnx(policy: object, path: str | Path) -> None:
    """Write a policy's greedy actions as an ONNX file for any number of rows, if onnxruntime agrees with `act`.

    Inputs are the leaves of an observation as the environment gives them, named by their path, "obs" where there is
    but one; preprocessing and mask are inside. Outputs are "action" and the others that `greedy` returns. Actions
    of a Dict or Tuple are flat rows [B, W], which `policy.action_space.structure.unpack` would nest.

    Raises:
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed.
        ConfigError: the policy has no `greedy`, no observation space yet, or a network that torch cannot write.
        DivergedError: onnxruntime does not give what the policy does; no file is written then.
    """
    subject = type(policy).__name__
    if not isinstance(policy, Exportable):
        raise ConfigError(
            f"{subject} cannot be exported: give it a method greedy(obs), from raw tensors to "
            '{"action": ..., and what it was chosen by}'
        )
    if policy.observation_space is None:
        raise ConfigError(f"{subject}.export needs an observation_space: give one at construction")
    onnxruntime = _runtime(subject)
    obs = random_rows(policy.observation_space, _N_ROWS, seeding.generator(0, "policy", "export"))
    graph = GreedyGraph(policy, obs)
    policy.enter(training=False)
    written = _written(subject, graph, to_device(obs, policy.device))
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    for n_rows in (_N_ROWS, 1):  # a batch, and a row alone
        rows = tree.map_tree(lambda leaf, n=n_rows: leaf[:n], obs)
        results = dict(zip(graph.outputs, session.run(graph.outputs, graph.named(rows)), strict=True))
        _check_same(subject, policy, rows, results)
    write_whole(Path(path), lambda file: file.write(written))


class GreedyGraph(nn.Module):
    """A policy's `greedy` as a function of the leaves of an observation that returns a tuple of `outputs`."""

    def __init__(self, policy: Exportable, obs: Obs) -> None:
        super().__init__()
        self.policy = policy
        names = {id(leaf): path or "obs" for path, leaf in tree.named_leaves(obs)}
        self._structure = tree.map_tree(lambda leaf: names[id(leaf)], obs)
        self.inputs = list(names.values())
        self.outputs: list[str] = []  # set by the first call

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, leaves, strict=True))
        outputs = self.policy.greedy(tree.map_tree(lambda name: named[name], self._structure))
        self.outputs = list(outputs)
        return tuple(outputs.values())

    def named(self, obs: Any) -> dict[str, Any]:
        """Return the leaves of an observation by their names."""
        return dict(zip(self.inputs, tree.leaves(obs), strict=True))


def random_rows(space: Space[Any], n_rows: int, rng: np.random.Generator) -> Any:
    """Sample K rows of a space; masks allow an action, and floats are of moderate size."""
    if isinstance(space, spaces.Dict):
        rows = {key: random_rows(child, n_rows, rng) for key, child in space.spaces.items()}
        if ACTION_MASK in rows:
            mask = rows[ACTION_MASK]
            mask[np.arange(n_rows), rng.integers(mask.shape[1], size=n_rows)] = 1
        return rows
    if isinstance(space, spaces.Tuple):
        return tuple(random_rows(child, n_rows, rng) for child in space.spaces)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        normal = rng.standard_normal((n_rows, *space.shape))
        near = space.high.astype(np.float64) - space.low <= _MAX_WIDTH
        inside = np.clip(normal, space.low, space.high)
        return np.where(near, random_actions(space, None, n_rows, rng), inside).astype(space.dtype)
    sampled = random_actions(space, None, n_rows, rng)
    return sampled + space.start if isinstance(space, spaces.Discrete) else sampled  # actions are counted from 0


def _runtime(subject: str) -> Any:
    """Return onnxruntime; raise if a package of the extra is missing."""
    for package in ("onnx", "onnxscript"):
        import_extra(f"{subject}.export", package, "onnx")
    return import_extra(f"{subject}.export", "onnxruntime", "onnx")


def _written(subject: str, graph: GreedyGraph, obs: Any) -> bytes:
    """Return a graph as the bytes of an ONNX file, its first axis of any length."""
    leaves = tuple(tree.leaves(obs))
    with _silence(), torch.no_grad():
        graph(*leaves)  # sets the names of the outputs
        rows = torch.export.Dim("rows", min=1)
        try:
            program = torch.onnx.export(
                graph,
                leaves,
                input_names=graph.inputs,
                output_names=graph.outputs,
                dynamic_shapes={"leaves": tuple({0: rows} for _ in leaves)},
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ConfigError(f"{subject}.export: torch cannot write its networks as ONNX: {error}") from error
    assert program is not None
    written: bytes = program.model_proto.SerializeToString()
    return written


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporter's log messages and warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _check_same(subject: str, policy: Exportable, obs: Any, results: Mapping[str, NDArray[Any]]) -> None:
    """Raise `DivergedError` if a file's actions differ from the policy's, except among actions of equal value."""
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        expected = {name: leaf.cpu().numpy() for name, leaf in policy.greedy(to_device(obs, policy.device)).items()}
    wrong = [name for name in results if name != "action" and not _are_close(results[name], expected[name])]
    action = policy.act(obs).action
    same = _same_rows(results["action"], action)
    scores = [leaf for name, leaf in expected.items() if name in ("q_values", "probability")]
    if scores and results["action"].shape == action.shape:
        rows, joint = np.arange(len(action)), joint_actions(subject, getattr(policy, "action_space", None))
        theirs, own = (one if joint is None else joint.numbers(one) for one in (results["action"], action))
        same |= np.isclose(scores[0][rows, theirs], scores[0][rows, own], _TOLERANCE, _TOLERANCE)
    if wrong or not same.all():
        raise DivergedError(
            f"{subject}.export: onnxruntime gives other actions in {int((~same).sum())} of {len(same)} rows, and other "
            f"numbers for {wrong or 'nothing'}; no file was written: look for parts of `greedy` that depend on the "
            "number of rows or on what `act` does not see"
        )


def _are_close(given: NDArray[Any], expected: NDArray[Any]) -> bool:
    return given.shape == expected.shape and np.allclose(given, expected, rtol=_TOLERANCE, atol=_TOLERANCE)


def _same_rows(given: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    """Return in which rows [K] two arrays of actions are equal, floats within the tolerance."""
    if given.shape != expected.shape or given.dtype != expected.dtype:
        return np.zeros(len(expected), np.bool_)
    tolerance = _TOLERANCE if given.dtype.kind == "f" else 0.0
    is_close = np.isclose(given, expected, rtol=tolerance, atol=tolerance)
    same: NDArray[np.bool_] = is_close.reshape(len(expected), -1).all(axis=1)
    return same

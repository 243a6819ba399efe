"""Export of a policy to files that map raw observations to greedy actions without trainkit: ONNX, torch.export."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium import Space, spaces
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export.passes import move_to_device_pass

from trainkit.core import seeding, tree
from trainkit.core.data import ACTION_MASK, ActOutput, Obs
from trainkit.core.errors import Checks, ConfigError, DivergedError
from trainkit.core.extras import import_extra
from trainkit.core.files import write_whole
from trainkit.core.signatures import checked
from trainkit.core.spaces import joint_actions, random_actions, space_to_plain
from trainkit.core.versions import versions
from trainkit.engine.device import to_device
from trainkit.policy.base import HasGreedy

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}  # {format: the end of its files' names}
METADATA_FILE = "metadata.json"  # in a file of torch.export

STATE_IN, STATE_OUT = "state_in", "state_out"  # the recurrent state before and after a step

_N_ROWS = 256  # on which a file is compared with the policy before it is written
_N_STEPS = 1_000  # over which the states of a recurrent policy are compared
_TOLERANCE = 1e-3  # of outputs, relative and absolute: kernels sum in another order
_MAX_WIDTH = 100.0  # of a Box to draw uniform observations from


@runtime_checkable
class Exportable(HasGreedy, Protocol):
    """A policy whose greedy actions are a function of tensors, and that says what it sees."""

    observation_space: Space[Any] | None
    device: torch.device

    @property
    def state_size(self) -> int: ...

    def act(self, obs: Obs, *, state: Any = None) -> ActOutput: ...

    def enter(self, *, training: bool) -> None: ...


@checked
def export(
    policy: Any, path: str | Path, formats: Sequence[str] | None = None, *, opset: int | None = None
) -> list[Path]:
    """Write a policy's greedy actions as files for any number of rows, if what they give is what `act` gives.

    Preprocessing and mask are inside. Each file holds the metadata of `describe_export`. Actions of a Discrete space
    that starts elsewhere are counted from 0, and those of a Dict or Tuple are flat rows [B, W];
    `policy.action_space.structure.unpack` returns the environment's.

    Args:
        policy: with a method `greedy`. Of one that consists of several, each that has it: "duel.onnx" becomes
            "duel-main.onnx" and so on.
        path: of the file, which ends in ".onnx" or ".pt2"; with `formats`, of each file but for its end.
        formats: "onnx", whose inputs are the leaves of an observation as the environment gives it, named by their
            path, "obs" where there is but one; "torch", a `torch.export` program on the CPU whose input is the
            observation. Outputs are "action" and the others that `greedy` returns. The states [B, S] of a recurrent
            policy are a further input, "state_in", 0 where an episode starts, and the output "state_out". Default: by
            the end of `path`.
        opset: version of the ONNX operator set, 18 or later; None is torch's default.

    Returns:
        The files, in the order of `formats`, each compared with `act` on random observations, of a recurrent policy
        over 1,000 steps.

    Raises:
        MissingExtraError: onnx, onnxscript or onnxruntime is not installed, for "onnx".
        ConfigError: a format is unknown; the policy has no `greedy`, no observation space yet, or a network that
            torch cannot write.
        DivergedError: a file does not give what the policy does; no file is written then.
    """
    path = Path(path)
    several: Mapping[str, object] = getattr(policy, "policies", {})
    if not several:
        return _export_one(policy, path, formats, opset)
    own = {name: one for name, one in several.items() if isinstance(one, Exportable)}
    if not own:
        raise ConfigError(f"export needs a policy with a method greedy, and {type(policy).__name__} has none: add one")
    files: list[Path] = []
    for name, one in own.items():
        named = path.with_name(f"{path.stem}-{name}{path.suffix}" if formats is None else f"{path.name}-{name}")
        files += _export_one(one, named, formats, opset)
    return files


def _export_one(policy: object, path: Path, formats: Sequence[str] | None, opset: int | None) -> list[Path]:
    """Write the files of one policy; see `export`."""
    subject = type(policy).__name__
    if not isinstance(policy, Exportable):
        raise ConfigError(
            f"{subject} cannot be exported: give it a method greedy(obs), from raw tensors to "
            '{"action": ..., and what it was chosen by}'
        )
    if policy.observation_space is None:
        raise ConfigError(f"export needs the observation_space of {subject}, and it has none: give one at construction")
    paths = _paths(path, formats)
    with Checks("export") as checks:
        if checks.integer("opset", opset, low=18, optional=True):
            checks.require(
                opset is None or "onnx" in paths, ".opset has no effect without the format onnx: leave it out"
            )
    obs = random_rows(policy.observation_space, _N_ROWS, seeding.generator(0, "policy", "export"))
    policy.enter(training=False)
    given = (obs, _zero_state(policy, _N_ROWS)) if policy.state_size else (obs,)
    on_device = to_device(given, policy.device)
    about = f"export of {subject}"
    writers: dict[str, Callable[..., tuple[bytes, Run]]] = {"onnx": partial(_write_onnx, opset), "torch": _write_torch}
    written = {wanted: writers[wanted](about, policy, *on_device) for wanted in paths}
    for wanted, (_, run) in written.items():
        for n_rows, n_steps in ((_N_ROWS, 1), (1, _N_STEPS if policy.state_size else 1)):  # a batch, and a row alone
            _check_steps(f"{about}: the {wanted} file", policy, obs, run, n_rows, n_steps)
    for wanted, file_path in paths.items():
        content = written[wanted][0]
        write_whole(file_path, partial(_put, content))
    return list(paths.values())


def _put(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def describe_export(policy: Exportable, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """Return an exported file's metadata, each value a text; all but "policy" and "env" are JSON.

    "policy" is the class; "env" the name of the environments that `for_envs` was given, if it had one;
    "observation_space" and "action_space" are as in a checkpoint's manifest; "inputs" and "outputs" the names of
    arrays, in order; "versions" those of trainkit, torch, numpy and gymnasium.
    """
    config = getattr(policy, "config", None) or {}
    shown = {
        "observation_space": _plain(policy.observation_space),
        "action_space": _plain(getattr(policy, "action_space", None)),
        "inputs": list(inputs),
        "outputs": list(outputs),
        "versions": versions(),
    }
    texts = {"policy": type(policy).__name__} | {name: json.dumps(value) for name, value in shown.items()}
    return texts | ({"env": config["env"]} if config.get("env") else {})


def _plain(space: Space[Any] | None) -> dict[str, Any] | None:
    return None if space is None else space_to_plain(space)


def _paths(path: Path, formats: Sequence[str] | None) -> dict[str, Path]:
    """Return {format: file}."""
    endings = {ending: name for name, ending in SUFFIXES.items()}
    if formats is None:
        if path.suffix not in endings:
            raise ConfigError(
                f"export: {str(path)!r} must end in .onnx or .pt2, which is its format: give such a name, "
                'or formats=("onnx", "torch")'
            )
        return {endings[path.suffix]: path}
    with Checks("export") as checks:
        is_list = isinstance(formats, Sequence) and not isinstance(formats, str) and len(formats) > 0
        checks.require(is_list, f'.formats must be a sequence such as ("onnx", "torch"), got {formats!r}')
        for name in formats if is_list else ():
            checks.one_of("formats", name, SUFFIXES)
    stem = path.with_suffix("") if path.suffix in endings else path
    return {name: stem.with_name(stem.name + SUFFIXES[name]) for name in formats}


# ---- formats ----

Run = Callable[..., dict[str, NDArray[Any]]]  # of a file that was read again: outputs of observations and states


def _write_onnx(opset: int | None, subject: str, policy: Exportable, *given: Any) -> tuple[bytes, Run]:
    """Return the bytes of an ONNX file and onnxruntime's outputs of it."""
    for package in ("onnx", "onnxscript"):
        import_extra(subject, package, "onnx")
    onnxruntime = import_extra(subject, "onnxruntime", "onnx")
    leaves = tuple(tree.leaves(given))
    graph = _OnLeaves(policy, *given)
    with _silence(), torch.no_grad():
        graph(*leaves)  # sets the names of the outputs
        try:
            program = torch.onnx.export(
                graph,
                leaves,
                input_names=graph.inputs,
                output_names=graph.outputs,
                dynamic_shapes={"leaves": tuple({0: _rows()} for _ in leaves)},
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ConfigError(f"{subject}: torch cannot write its networks as ONNX: {error}") from error
    assert program is not None
    model = program.model_proto
    written = next(one.version for one in model.opset_import if not one.domain)
    if opset not in (None, written):
        raise ConfigError(
            f"{subject}: torch {torch.__version__} cannot write opset {opset}, only {written}: leave opset "
            "out, or give one between 18 and the newest of the installed onnx"
        )
    for name, text in describe_export(policy, graph.inputs, graph.outputs).items():
        model.metadata_props.add(key=name, value=text)
    content: bytes = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(*given: Any) -> dict[str, NDArray[Any]]:
        inputs = dict(zip(graph.inputs, tree.leaves(given), strict=True))
        return dict(zip(graph.outputs, session.run(graph.outputs, inputs), strict=True))

    return content, run


def _write_torch(subject: str, policy: Exportable, *given: Any) -> tuple[bytes, Run]:
    """Return the bytes of a file of torch.export and the outputs of its program."""
    graph = _OnObservations(policy)
    with _silence(), torch.no_grad():
        outputs = graph(*given)
        shapes = tree.map_tree(lambda _: {0: _rows()}, given)
        try:
            program = torch.export.export(graph, given, dynamic_shapes=shapes)
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"{subject}: torch.export cannot trace its networks: {error}") from error
        if policy.device.type != "cpu":
            program = move_to_device_pass(program, "cpu")
        metadata = json.dumps(describe_export(policy, _names_of(*given), list(outputs)))
        file = io.BytesIO()
        torch.export.save(program, file, extra_files={METADATA_FILE: metadata})
        loaded = torch.export.load(io.BytesIO(file.getvalue())).module()

    def run(*given: Any) -> dict[str, NDArray[Any]]:
        with torch.no_grad():
            return {name: leaf.numpy() for name, leaf in loaded(*tree.map_tree(torch.from_numpy, given)).items()}

    return file.getvalue(), run


class _OnObservations(nn.Module):
    """A policy's `greedy` as a function of an observation, and of a recurrent state."""

    def __init__(self, policy: Exportable) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Any, state: Tensor | None = None) -> dict[str, Tensor]:
        return dict(self.policy.greedy(obs) if state is None else self.policy.greedy(obs, state))


class _OnLeaves(nn.Module):
    """A policy's `greedy` as a function of the leaves of its arguments that returns a tuple of `outputs`."""

    def __init__(self, policy: Exportable, *given: Any) -> None:
        super().__init__()
        self.policy = policy
        self.inputs = _names_of(*given)
        names = iter(self.inputs)
        self._structure = tree.map_tree(lambda _: next(names), given)
        self.outputs: list[str] = []  # set by the first call

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, leaves, strict=True))
        outputs = self.policy.greedy(*tree.map_tree(lambda name: named[name], self._structure))
        self.outputs = list(outputs)
        return tuple(outputs.values())


def names_of(obs: Obs) -> list[str]:
    """Return the names of an observation's leaves: their paths, "obs" where there is but one."""
    return [path or "obs" for path, _ in tree.named_leaves(obs)]


def _names_of(obs: Obs, *state: Any) -> list[str]:
    """Return the names of the inputs."""
    return [*names_of(obs), *([STATE_IN] if state else [])]


def _rows() -> Any:
    """Return the first axis, of any length."""
    return torch.export.Dim("rows", min=1)


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


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the exporters' log messages and warnings."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _zero_state(policy: Exportable, n_rows: int) -> NDArray[np.float32]:
    return np.zeros((n_rows, policy.state_size), np.float32)


def _check_steps(subject: str, policy: Exportable, obs: Any, run: Run, n_rows: int, n_steps: int) -> None:
    """Compare a file with the policy over some steps, where each carries its own states."""
    own = theirs = _zero_state(policy, n_rows)
    for step in range(n_steps):
        first = step * n_rows % _N_ROWS
        rows = tree.map_tree(lambda leaf, first=first: leaf[first : first + n_rows], obs)
        if not policy.state_size:
            _check_same(subject, policy, (rows,), policy.act(rows).action, run(rows))
            continue
        output, results = policy.act(rows, state=own), run(rows, theirs)
        _check_same(subject, policy, (rows, own), output.action, results)
        own, theirs = output.state, results[STATE_OUT]


def _check_same(
    subject: str, policy: Exportable, given: Any, action: NDArray[Any], results: Mapping[str, NDArray[Any]]
) -> None:
    """Raise `DivergedError` if a file's actions differ from the policy's, except among actions of equal value."""
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        expected = {name: leaf.cpu().numpy() for name, leaf in policy.greedy(*to_device(given, policy.device)).items()}
    wrong = [name for name in results if name != "action" and not _are_close(results[name], expected[name])]
    same = _same_rows(results["action"], action)
    scores = [leaf for name, leaf in expected.items() if name in ("q_values", "probability")]
    if scores and results["action"].shape == action.shape:
        rows, joint = (
            np.arange(len(action)),
            joint_actions(type(policy).__name__, getattr(policy, "action_space", None)),
        )
        theirs, own = (one if joint is None else joint.numbers(one) for one in (results["action"], action))
        same |= np.isclose(scores[0][rows, theirs], scores[0][rows, own], _TOLERANCE, _TOLERANCE)
    if wrong or not same.all():
        raise DivergedError(
            f"{subject} gives other actions in {int((~same).sum())} of {len(same)} rows, and other "
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

"""`trainkit serve`: the actions of a saved policy over HTTP, with JSON in and out.

    GET  /health     {"status": "ok", "policy", "observation_space", "action_space"}
    POST /predict    {"obs": an observation}         ->  {"action": its greedy action}
    POST /batch      {"obs": [observations]}         ->  {"actions": [their greedy actions]}

Observations are those of the environment: arrays as nested lists, a Dict as an object by its keys with the action mask
among them, a Tuple as a list. A recurrent policy also answers with "state", in a batch with "states", which is sent
with the next observation of the same episode; null or nothing where an episode starts. A mistake is answered with a
status of 400 to 499 and {"error": its text}.
"""

import argparse
import json
import logging
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from trainkit.cli.output import Parser, print_line
from trainkit.cli.saved import SavedPolicy
from trainkit.core import tree
from trainkit.core.errors import Checks, ConfigError, TrainkitError
from trainkit.core.files import parse_json
from trainkit.policy import load_policy
from trainkit.policy.base import Policy

_log = logging.getLogger(__name__)

_EXAMPLES = """\
  trainkit serve runs/dqn-CartPole-v1/seed1 --port 8000
  curl localhost:8000/health
  curl localhost:8000/predict -d '{"obs": [0.01, 0.2, -0.03, 0.1]}'
  curl localhost:8000/batch -d '{"obs": [[0.01, 0.2, -0.03, 0.1], [0.0, -0.2, 0.03, 0.0]]}'

Actions are greedy. There is no password: it listens on this machine only, unless --host names another address."""

_MAX_MEGABYTES = 32
_TIMEOUT_S = 20.0  # of a client that stops in the middle of a request, or says nothing more
_ROUTES = {"/health": "GET", "/predict": "POST", "/batch": "POST"}


class RequestError(TrainkitError):
    """A request that is answered with a status of 400 to 499."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PolicyServer:
    """An HTTP server of a policy's greedy actions; `with` starts it in a thread and closes it.

        with PolicyServer(tk.load_policy("runs/a/checkpoint")) as server:
            print(server.url)

    Args:
        policy: has an observation space; one request at a time uses it.
        host: address to listen on.
        port: 0 is any free one.
        max_megabytes: largest body of a request.

    Attributes:
        url: where it listens.
    """

    def __init__(
        self, policy: Policy, *, host: str = "127.0.0.1", port: int = 0, max_megabytes: float = _MAX_MEGABYTES
    ) -> None:
        with Checks("serve") as checks:
            checks.integer("port", port, low=0)
            checks.number("max_megabytes", max_megabytes, low=0, above_low=True)
            has_space = policy.observation_space is not None
            checks.require(has_space, ".policy needs an observation_space: give one at construction")
        self.policy, self.max_bytes = policy, int(max_megabytes * 1e6)
        self._lock, self._thread = threading.Lock(), threading.Thread(target=self.serve)
        try:
            self._http = _HTTPServer((host, port), self)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"serve cannot listen on {host}:{port} ({error}): give another port") from error
        self.url = f"http://{host}:{self._http.server_address[1]}"

    def serve(self) -> None:
        """Answer requests until `stop` is called."""
        self._http.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Let `serve` return; from another thread than its own."""
        self._http.shutdown()

    def close(self) -> None:
        """Free the port, after the last prediction."""
        with self._lock:
            self._http.server_close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join()
        self.close()

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            TrainkitError: the body is not what the path needs.
        """
        if path == "/health":
            own = {name: repr(getattr(self.policy, name)) for name in ("observation_space", "action_space")}
            return {"status": "ok", "policy": type(self.policy).__name__, **own}
        request = parse_json(body, "the body", error=ConfigError)
        state = "state" if path == "/predict" else "states"
        optional = {state} if self.policy.state_size else set()
        if not isinstance(request, dict) or request.keys() - optional != {"obs"}:
            got = sorted(request) if isinstance(request, dict) else f"a {type(request).__name__}"
            rule = f'{{"obs": ..., "{state}": ...}}' if optional else '{"obs": ...}'
            raise ConfigError(f"{path}: the body must be {rule}, got {got!r:.100}")
        obs, before = request["obs"], request.get(state)
        if path == "/predict":
            actions, after = self._actions([obs], [before])
            return {"action": actions[0]} | ({state: after[0]} if optional else {})
        if not isinstance(obs, list) or not obs:
            raise ConfigError("/batch: obs must be a list of one observation or more")
        if before is not None and (not isinstance(before, list) or len(before) != len(obs)):
            raise ConfigError(f"/batch: states must be a list of {len(obs)} states or nulls, as many as obs")
        actions, after = self._actions(obs, before or [None] * len(obs))
        return {"actions": actions} | ({state: after} if optional else {})

    def _actions(self, given: list[Any], states: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the greedy action of each observation, and the next state of a recurrent policy, in plain values."""
        space = self.policy.observation_space
        assert space is not None, "checked at construction"
        rows = [read_obs(space, one) for one in given]
        stacked = tree.map_tree(lambda *leaves: np.stack(leaves), *rows)
        size = self.policy.state_size
        before = np.stack([_read_state(one, size) for one in states]) if size else None
        with self._lock:
            predicted = self.policy.predict(stacked, state=before)
        actions, after = predicted if size else (predicted, np.zeros((len(rows), 0)))
        plain = [_plain(tree.map_tree(lambda leaf, row=row: leaf[row].tolist(), actions)) for row in range(len(rows))]
        return plain, after.tolist()


def read_obs(space: Space[Any], value: Any, name: str = "obs") -> Any:
    """Return an observation of a space from JSON.

    Raises:
        ConfigError: keys, shape, type or numbers are not those of the space.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            got = sorted(value) if isinstance(value, dict) else f"a {type(value).__name__}"
            raise ConfigError(f"{name} must be an object with the keys {sorted(space.spaces)}, got {got!r:.100}")
        return {key: read_obs(child, value[key], f"{name}.{key}") for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, list) or len(value) != len(space.spaces):
            raise ConfigError(f"{name} must be a list of {len(space.spaces)}, got {value!r:.100}")
        pairs = enumerate(zip(space.spaces, value, strict=True))
        return tuple(read_obs(child, one, f"{name}[{at}]") for at, (child, one) in pairs)
    return _read_array(space, value, name)


def _read_state(value: Any, size: int) -> NDArray[np.float32]:
    """Return a recurrent state [S] from JSON, 0 for null; raise `ConfigError` for what is none."""
    if value is None:
        return np.zeros(size, np.float32)
    array: NDArray[np.float32] = _read_array(spaces.Box(-np.inf, np.inf, (size,), np.float32), value, "state")
    return array


def _read_array(space: Space[Any], value: Any, name: str) -> NDArray[Any]:
    """Return the array of a space with a shape from JSON; raise `ConfigError` for one that does not fit."""
    rule = f"{name} must be numbers of shape {space.shape} and type {space.dtype}"
    try:
        found = np.array(value)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{rule}, got {value!r:.100}: rows differ in length") from error
    if found.dtype.kind not in "biuf":
        raise ConfigError(f"{rule}, got {value!r:.100}")
    if found.shape != space.shape:
        raise ConfigError(f"{rule}, got shape {found.shape}")
    with np.errstate(all="ignore"):  # checked next
        array: NDArray[Any] = found.astype(space.dtype)
    if not np.isfinite(array).all():
        raise ConfigError(f"{rule}, got numbers that are not finite in it")
    if array.dtype.kind != "f" and (array != found).any():
        raise ConfigError(f"{rule}, got numbers that this type does not have")
    if not isinstance(space, spaces.Box) and not space.contains(array[()] if array.ndim == 0 else array):
        raise ConfigError(f"{name} must be in {space}, got {value!r:.100}")
    return array


def _plain(action: Any) -> Any:
    """Return an action with lists for tuples."""
    if isinstance(action, dict):
        return {key: _plain(child) for key, child in action.items()}
    return [_plain(child) for child in action] if isinstance(action, tuple) else action


class _HTTPServer(ThreadingHTTPServer):
    """A thread per connection, which ends with the process."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], owner: PolicyServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a connection that broke."""
        _log.debug("a connection of %s broke", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Reads requests, and writes each answer as one packet."""

    server: _HTTPServer
    protocol_version = "HTTP/1.1"  # one connection for many requests
    server_version, sys_version = "trainkit", ""
    timeout = _TIMEOUT_S
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_GET  # noqa: N815

    def handle_expect_100(self) -> bool:
        """Let a client continue that waits before it sends a large body."""
        continues = super().handle_expect_100()
        self.wfile.flush()
        return continues

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is not HTTP, or has an unknown method."""
        self.close_connection = True
        self._send(
            {501: 405, 505: 400}.get(code, code), {"error": f"{message or explain}: send GET or POST by HTTP/1.1"}
        )

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request, if someone listens."""
        _log.debug(format, *args)

    def _answer(self) -> None:
        try:
            self._send(200, self._result())
        except RequestError as error:
            self.close_connection = True  # its body was not read
            self._send(error.status, {"error": str(error)})
        except TrainkitError as error:
            self._send(400, {"error": str(error)})
        except TimeoutError:
            self.close_connection = True
            self._send(408, {"error": f"the request was not complete after {_TIMEOUT_S:g} s"})
        except ConnectionError:
            self.close_connection = True
        except Exception:  # noqa: BLE001  # of a custom network: the server keeps running
            _log.exception("%s %s", self.command, self.path)
            self._send(500, {"error": "the policy failed: see the server's log"})

    def _result(self) -> dict[str, Any]:
        """Return the answer to the request, after its body."""
        path = self.path.partition("?")[0]
        if path not in _ROUTES:
            raise RequestError(404, f"nothing is at {path[:100]}: there are {', '.join(_ROUTES)}")
        if self.command != _ROUTES[path]:
            raise RequestError(405, f"{path} needs {_ROUTES[path]}, got {self.command}")
        return self.server.owner.answer(path, self._body() if self.command == "POST" else b"")

    def _body(self) -> bytes:
        length, limit = self.headers.get("Content-Length"), self.server.owner.max_bytes
        if length is None or "Transfer-Encoding" in self.headers:
            raise RequestError(411, "a POST needs Content-Length, the bytes of its body")
        if not (length.isascii() and length.isdigit() and len(length) < 20):
            raise RequestError(400, f"Content-Length must be a number of bytes, got {length!r:.40}")
        if int(length) > limit:
            raise RequestError(413, f"a body has at most {limit:,} bytes, got {int(length):,}: split the batch")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise RequestError(400, f"the body has {len(body):,} bytes, and Content-Length says {int(length):,}")
        return body

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 405:
            self.send_header("Allow", _ROUTES.get(self.path.partition("?")[0], "GET, POST"))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()


def add_serve(parser: Parser) -> None:
    """Add the arguments of the command that serves."""
    parser.runs(run_serve, examples=_EXAMPLES)
    parser.add_argument("policy", metavar="RUN", type=Path, help="a run, or the folder of a checkpoint or a policy")
    parser.add_argument("--best", action="store_true", help="the policy of a run whose evaluation was best")
    parser.add_argument("--port", metavar="N", type=int, default=8000, help="default 8000; 0 for any free one")
    parser.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="default 127.0.0.1, this machine only")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, xpu ...")
    limit = f"largest body of a request, default {_MAX_MEGABYTES} MB"
    parser.add_argument("--max-megabytes", metavar="X", type=float, default=_MAX_MEGABYTES, help=limit)


def run_serve(options: argparse.Namespace) -> int:
    """Answer requests until SIGTERM or Ctrl-C."""
    saved = SavedPolicy.find(options.policy, best=options.best)
    policy = load_policy(saved.path, name=saved.name, device=options.device)
    server = PolicyServer(policy, host=options.host, port=options.port, max_megabytes=options.max_megabytes)
    before = signal.signal(signal.SIGTERM, _stopping(server))
    try:
        print_line(f"{saved.trained} answers at {server.url}; Ctrl-C ends it")
        server.serve()
    finally:
        signal.signal(signal.SIGTERM, before)
        server.close()
    return 0


def _stopping(server: PolicyServer) -> Callable[..., None]:
    """Return a signal handler that stops a server; `stop` waits for the thread that the handler interrupts."""
    return lambda *_: threading.Thread(target=server.stop).start()

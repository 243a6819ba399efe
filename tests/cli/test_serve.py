"""A policy behind HTTP: its actions are those of `predict`, and whatever is sent, mistakes are answered with 4xx."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from trainkit.cli import main
from trainkit.cli.serve import PolicyServer, read_obs

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
MASKED = spaces.Dict({"obs": spaces.Box(-1, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(4)})


class Spaces:
    """What `for_envs` needs of environments."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def q_learner(observation_space: gym.Space[Any], n_actions: int = 4) -> tk.DQNPolicy:
    return tk.DQNPolicy.for_envs(
        Spaces(observation_space, spaces.Discrete(n_actions)), hidden=(8,), seed=1, device="cpu"
    )


def served(policy: tk.policy.Policy, **options: Any) -> PolicyServer:
    return PolicyServer(policy, **options)


@pytest.fixture(scope="module")
def policy() -> tk.DQNPolicy:
    return q_learner(spaces.Box(-1, 1, (3,), np.float32))


@pytest.fixture(scope="module")
def server(policy: tk.DQNPolicy) -> Iterator[PolicyServer]:
    with served(policy, max_megabytes=0.1) as own:
        yield own


def send(url: str, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
    """Return the status and the answer to one request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request(method, path, body if isinstance(body, (bytes, type(None))) else json.dumps(body))
    response = connection.getresponse()
    answer = response.status, json.loads(response.read() or b"null")
    connection.close()
    return answer


def test_an_action_is_that_of_predict_and_a_batch_gives_the_same(server: PolicyServer, policy: tk.DQNPolicy) -> None:
    obs = np.random.default_rng(1).uniform(-1, 1, (20, 3)).astype(np.float32)
    expected = policy.predict(obs).tolist()
    assert len(set(expected)) > 1, "or any constant would pass"
    assert [send(server.url, "/predict", {"obs": row.tolist()}) for row in obs] == [
        (200, {"action": action}) for action in expected
    ]
    assert send(server.url, "/batch", {"obs": obs.tolist()}) == (200, {"actions": expected})


def test_health_names_the_policy_and_its_spaces(server: PolicyServer) -> None:
    assert send(server.url, "/health", None, "GET") == (
        200,
        {
            "status": "ok",
            "policy": "DQNPolicy",
            "observation_space": "Box(-1.0, 1.0, (3,), float32)",
            "action_space": "Discrete(4)",
        },
    )


def test_a_state_comes_and_goes_with_each_request_over_a_thousand_steps() -> None:
    spaces_of = Spaces(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4))
    policy = tk.DQNPolicy.for_envs(spaces_of, hidden=(8,), recurrent="lstm", seed=1, device="cpu")
    rows = np.random.default_rng(1).uniform(-1, 1, size=(1_000, 3)).astype(np.float32)
    server = served(policy)
    answer: dict[str, Any] = {"state": None}
    expected = None
    for row in rows:
        answer = server.answer("/predict", json.dumps({"obs": row.tolist(), "state": answer["state"]}).encode())
        action, expected = policy.predict(row, state=expected)
        assert answer["action"] == action
        np.testing.assert_array_equal(np.array(answer["state"], np.float32), expected[0])
    both = {"obs": rows[:2].tolist(), "states": [answer["state"], None]}
    batch = server.answer("/batch", json.dumps(both).encode())
    fresh = server.answer("/predict", json.dumps({"obs": rows[1].tolist()}).encode())
    np.testing.assert_allclose(batch["states"][1], fresh["state"], atol=1e-6)
    assert batch["states"][0] != batch["states"][1]
    for body, message in [
        ({"obs": rows[0].tolist(), "state": [1.0]}, r"state must be numbers of shape \(16,\)"),
        ({"obs": rows[0].tolist(), "stat": None}, r'the body must be {"obs": ..., "state": ...}'),
    ]:
        with pytest.raises(tk.ConfigError, match=message):
            server.answer("/predict", json.dumps(body).encode())
    with pytest.raises(tk.ConfigError, match="states must be a list of 2 states or nulls"):
        server.answer("/batch", json.dumps(both | {"states": [None]}).encode())
    server.close()


def test_a_dict_has_its_mask_and_an_image_its_type() -> None:
    with served(q_learner(MASKED)) as own:
        for legal in range(4):
            obs = {"obs": [0.1, 0.2, 0.3], "action_mask": [int(action == legal) for action in range(4)]}
            assert send(own.url, "/predict", {"obs": obs}) == (200, {"action": legal})
        status, answer = send(own.url, "/predict", {"obs": {**obs, "action_mask": [0, 0, 0, 0]}})
        assert (status, "no legal action" in answer["error"] or "allows no action" in answer["error"]) == (400, True)
        assert send(own.url, "/predict", {"obs": {"obs": [0, 0, 0]}})[1] == {
            "error": "obs must be an object with the keys ['action_mask', 'obs'], got ['obs']"
        }
    images = q_learner(IMAGE)
    rows = np.random.default_rng(1).integers(0, 256, (3, 36, 36, 1)).astype(np.uint8)
    with served(images) as own:
        assert send(own.url, "/batch", {"obs": rows.tolist()}) == (200, {"actions": images.predict(rows).tolist()})
        status, answer = send(own.url, "/predict", {"obs": (rows[0] + 0.5).tolist()})
        assert (status, answer["error"].endswith("got numbers that this type does not have")) == (400, True)


def test_actions_of_a_box_are_lists(tmp_path: Path) -> None:
    space = spaces.Box(-2, 2, (2,), np.float32)
    policy = tk.PPOPolicy.for_envs(Spaces(spaces.Discrete(3), space), hidden=(8,), seed=1, device="cpu")
    with served(policy) as own:
        status, answer = send(own.url, "/batch", {"obs": [0, 2]})
    assert status == 200
    np.testing.assert_allclose(answer["actions"], policy.predict(np.array([0, 2])), rtol=1e-6)


MALFORMED = [
    *(b"", b"{", b"[", b"nonsense", b"\xff\xfe", b"null", b"1", b'"obs"', b"[1, 2, 3]", b"{}", b'{"obs": }'),
    *(b'{"observation": [0, 0, 0]}', b'{"obs": [0, 0, 0], "explore": true}', b'{"obs": null}', b'{"obs": 1}'),
    *(b'{"obs": []}', b'{"obs": [0, 0]}', b'{"obs": [0, 0, 0, 0]}', b'{"obs": [[[0, 0, 0]]]}', b'{"obs": "000"}'),
    *(b'{"obs": ["0", "0", "0"]}', b'{"obs": [0, 0, null]}', b'{"obs": [0, 0, {}]}', b'{"obs": [0, 0, [0]]}'),
    *(b'{"obs": [NaN, 0, 0]}', b'{"obs": [Infinity, 0, 0]}', b'{"obs": [-Infinity, 0, 0]}', b'{"obs": [1e999, 0, 0]}'),
    *(b'{"obs": [1e39, 0, 0]}', b'{"obs": [1' + b"0" * 400 + b", 0, 0]}", b'{"obs": [1' + b"0" * 5000 + b", 0, 0]}"),
    *(b"[" * 20_000, b'{"obs": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", b'{"obs": [0, 0, 0]} {}', b'{"obs": {"a": 1}}'),
    *(b'{"obs": {}}', b'{"obs": [0, 0, "\\ud800"]}', b'{"obs": [0, 0, 0]' + b" " * 90_000, b'{"obs": ["a", [1], {}]}'),
]


@pytest.mark.parametrize("path", ["/predict", "/batch"])
def test_a_malformed_body_gets_400_with_the_reason_and_the_server_lives(server: PolicyServer, path: str) -> None:
    for body in MALFORMED:
        status, answer = send(server.url, path, body)
        assert (status, *answer) == (400, "error"), body[:80]
        assert answer["error"]
    assert send(server.url, "/predict", {"obs": [0, 0, 0]})[0] == 200


REQUESTS = {
    b"POST /predict HTTP/1.1\r\n\r\n": 411,
    b"POST /predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 411,
    b"POST /predict HTTP/1.1\r\nContent-Length: -1\r\n\r\n": 400,
    b"POST /predict HTTP/1.1\r\nContent-Length: ten\r\n\r\n": 400,
    b"POST /predict HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n": 400,
    b"POST /predict HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n": 413,
    b"POST /predict HTTP/1.1\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n": 400,
    b"POST /predict HTTP/1.1\r\nContent-Length: 50\r\n\r\n{}": 400,
    b"POST /elsewhere HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}": 404,
    b"POST /health HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}": 405,
    b"GET /predict HTTP/1.1\r\n\r\n": 405,
    b"GET / HTTP/1.1\r\n\r\n": 404,
    b"GET /../../etc/passwd HTTP/1.1\r\n\r\n": 404,
    b"PUT /predict HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}": 405,
    b"DELETE /predict HTTP/1.1\r\n\r\n": 405,
    b"HEAD /health HTTP/1.1\r\n\r\n": 405,
    b"BREW /predict HTTP/1.1\r\n\r\n": 405,
    b"POST /predict HTTP/9.9\r\n\r\n": 400,
    b"POST /predict\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\r\n\r\n": 400,  # TLS
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n": 414,
    b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n": 431,
}


def test_a_malformed_request_gets_4xx_and_the_server_lives(server: PolicyServer) -> None:
    address = urlsplit(server.url)
    for request, status in REQUESTS.items():
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=20) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 %d " % status) or b'{"error"' in answer, (request[:60], answer[:200])
        assert b" 5" not in answer.partition(b"\r\n")[0], (request[:60], answer[:200])
    assert send(server.url, "/predict", {"obs": [0, 0, 0]})[0] == 200


def test_a_failure_of_the_policy_is_500_without_its_text_and_the_server_lives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = q_learner(spaces.Discrete(3))
    with served(policy) as own:
        with monkeypatch.context() as patch:
            patch.setattr(policy, "act", lambda *args, **options: 1 / 0)
            assert send(own.url, "/predict", {"obs": 0}) == (500, {"error": "the policy failed: see the server's log"})
        assert "ZeroDivisionError" in caplog.text
        assert send(own.url, "/predict", {"obs": 0})[0] == 200


def test_an_observation_of_a_tuple_is_a_list_and_a_number_outside_of_a_discrete_space_is_refused() -> None:
    space = spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 2])])
    first, second = read_obs(space, [3, [0, 1]])
    assert (first, second.tolist()) == (3, [0, 1])
    for wrong in ([0, [0, 1]], [4, [0, 1]], [1, [2, 0]], [1], [1.5, [0, 0]]):
        with pytest.raises(tk.ConfigError):
            read_obs(space, wrong)


def test_a_port_that_is_taken_is_a_mistake_in_one_line(
    server: PolicyServer, policy: tk.DQNPolicy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.save(tmp_path)
    port = str(urlsplit(server.url).port)
    assert main(["serve", str(tmp_path), "--port", port, "--device", "cpu"]) == 2
    assert f"trainkit: serve cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    assert main(["serve", str(tmp_path), "--best"]) == 2
    assert "--best is of a run" in capsys.readouterr().err


@pytest.mark.slow
def test_load_a_thousand_requests_and_eight_clients_at_once_then_sigterm(tmp_path: Path, policy: tk.DQNPolicy) -> None:
    policy.save(tmp_path)
    words = [sys.executable, "-m", "trainkit", "serve", str(tmp_path), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split(" answers at ")[1].split(";")[0]
        obs = np.random.default_rng(2).uniform(-1, 1, (1_000, 3)).astype(np.float32)
        expected, wrong = policy.predict(obs).tolist(), []

        def client(rows: range) -> None:
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            for row in rows:
                connection.request("POST", "/predict", json.dumps({"obs": obs[row].tolist()}))
                response = connection.getresponse()
                answer = response.status, json.loads(response.read())
                wrong.extend([(row, answer)] * (answer != (200, {"action": expected[row]})))
            connection.close()

        client(range(1_000))
        clients = [threading.Thread(target=client, args=(range(start, 1_000, 8),)) for start in range(8)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        assert not wrong
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0

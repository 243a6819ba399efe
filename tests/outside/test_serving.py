"""A policy behind HTTP, by the application of the page: its actions are those of `predict`, and mistakes get a 400."""

import io
import json
from collections.abc import Callable
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import Spaces
from tests.helpers.pages import ROOT, examples

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
MASKED = spaces.Dict({"obs": spaces.Box(-1, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(4)})
THREE = spaces.Box(-1, 1, (3,), np.float32)
PLAIN, WITH_MEMORY = examples(ROOT / "docs/howto/serving.md")

Answer = Callable[..., tuple[str, Any]]


def q_learner(observation_space: gym.Space[Any], **options: Any) -> tk.DQNPolicy:
    envs = Spaces(observation_space, spaces.Discrete(4))
    return tk.DQNPolicy.for_envs(envs, hidden=(8,), seed=1, device="cpu", **options)


def served(policy: tk.policy.Policy) -> Answer:
    """Return what sends a body to the application of the page, and returns the status and the answer."""
    line = next(line for line in PLAIN.source.splitlines() if line.startswith("policy = "))
    names: dict[str, Any] = {"policy": policy}
    exec(compile(PLAIN.blocks[0].replace(line, ""), "serving.md", "exec"), names)  # noqa: S102  # our own page
    app = validator(names["app"])

    def answer(body: Any, path: str = "/predict") -> tuple[str, Any]:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": path, "wsgi.input": io.BytesIO(sent)}
        environ |= {"CONTENT_LENGTH": str(len(sent)), "SCRIPT_NAME": "", "QUERY_STRING": ""}
        setup_testing_defaults(environ)
        statuses: list[str] = []
        parts = app(environ, lambda status, headers, error=None: statuses.append(status))
        received = b"".join(parts)
        parts.close()  # type: ignore[attr-defined]  # the validator's iterator
        return statuses[0], json.loads(received)

    return answer


def test_an_action_is_that_of_predict_and_a_batch_gives_the_same() -> None:
    policy = q_learner(THREE)
    answer, obs = served(policy), np.random.default_rng(1).uniform(-1, 1, (20, 3)).astype(np.float32)
    expected = policy.predict(obs).tolist()
    assert len(set(expected)) > 1, "or any constant would pass"
    assert [answer({"obs": row.tolist()}) for row in obs] == [("200 OK", {"action": action}) for action in expected]
    assert answer({"obs": obs.tolist()}) == ("200 OK", {"action": expected})


def test_health_names_the_policy_and_its_space() -> None:
    own = {"policy": "DQNPolicy", "observation_space": "Box(-1.0, 1.0, (3,), float32)"}
    assert served(q_learner(THREE))(b"", "/health") == ("200 OK", own)


def test_a_state_comes_and_goes_with_each_request_over_a_thousand_steps() -> None:
    policy = q_learner(THREE, recurrent="lstm")
    names: dict[str, Any] = {}
    exec(compile(WITH_MEMORY.source, "serving.md", "exec"), names)  # noqa: S102  # our own page
    names["policy"] = policy
    rows = np.random.default_rng(1).uniform(-1, 1, size=(1_000, 3)).astype(np.float32)
    state: Any = None
    expected = None
    for row in rows:
        found = names["answer"]("/predict", json.dumps({"obs": row.tolist(), "state": state}).encode())
        action, expected = policy.predict(row, state=expected)
        assert found["action"] == action
        np.testing.assert_array_equal(found["state"], expected)
        state = found["state"].tolist()


def test_a_dict_has_its_mask_and_an_image_its_type() -> None:
    answer = served(q_learner(MASKED))
    for legal in range(4):
        obs = {"obs": [0.1, 0.2, 0.3], "action_mask": [int(action == legal) for action in range(4)]}
        assert answer({"obs": obs}) == ("200 OK", {"action": legal})
    status, failed = answer({"obs": {**obs, "action_mask": [0, 0, 0, 0]}})
    assert status == "400 Bad Request"
    assert "allows no action" in failed["error"]
    assert "action_mask" in answer({"obs": {"obs": [0, 0, 0]}})[1]["error"]
    images = q_learner(IMAGE)
    rows = np.random.default_rng(1).integers(0, 256, (3, 36, 36, 1)).astype(np.uint8)
    assert served(images)({"obs": rows.tolist()}) == ("200 OK", {"action": images.predict(rows).tolist()})
    status, failed = served(images)({"obs": (rows[0] + 0.5).tolist()})
    assert (status, "must hold numbers that uint8 has" in failed["error"]) == ("400 Bad Request", True)


def test_actions_of_a_box_are_lists() -> None:
    space = spaces.Box(-2, 2, (2,), np.float32)
    policy = tk.PPOPolicy.for_envs(Spaces(spaces.Discrete(3), space), hidden=(8,), seed=1, device="cpu")
    status, found = served(policy)({"obs": [0, 2]})
    assert status == "200 OK"
    np.testing.assert_allclose(found["action"], policy.predict(np.array([0, 2])), rtol=1e-6)


MALFORMED = [
    *(b"", b"{", b"[", b"nonsense", b"\xff\xfe", b"null", b"1", b'"obs"', b"[1, 2, 3]", b"{}", b'{"obs": }'),
    *(b'{"observation": [0, 0, 0]}', b'{"obs": null}', b'{"obs": 1}'),
    *(b'{"obs": []}', b'{"obs": [0, 0]}', b'{"obs": [0, 0, 0, 0]}', b'{"obs": [[[0, 0, 0]]]}', b'{"obs": "000"}'),
    *(b'{"obs": ["0", "0", "0"]}', b'{"obs": [0, 0, null]}', b'{"obs": [0, 0, {}]}', b'{"obs": [0, 0, [0]]}'),
    *(b'{"obs": [NaN, 0, 0]}', b'{"obs": [Infinity, 0, 0]}', b'{"obs": [-Infinity, 0, 0]}', b'{"obs": [1e999, 0, 0]}'),
    *(b'{"obs": [1e39, 0, 0]}', b'{"obs": [1' + b"0" * 400 + b", 0, 0]}", b'{"obs": [1' + b"0" * 5000 + b", 0, 0]}"),
    *(b"[" * 20_000, b'{"obs": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", b'{"obs": [0, 0, 0]} {}', b'{"obs": {"a": 1}}'),
    *(b'{"obs": {}}', b'{"obs": [0, 0, "\\ud800"]}', b'{"obs": [0, 0, 0]' + b" " * 90_000, b'{"obs": ["a", [1], {}]}'),
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_body_gets_400_with_the_reason(body: bytes) -> None:
    status, failed = served(q_learner(THREE))(body)
    assert (status, *failed) == ("400 Bad Request", "error")
    assert failed["error"]


def test_a_tuple_observation_is_a_list_with_numbers_inside_their_spaces() -> None:
    answer = served(q_learner(spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 2])])))
    assert answer({"obs": [3, [0, 1]]})[0] == "200 OK"
    for wrong in ([0, [0, 1]], [4, [0, 1]], [1, [2, 0]], [1], [1.5, [0, 0]]):
        assert answer({"obs": wrong})[0] == "400 Bad Request"

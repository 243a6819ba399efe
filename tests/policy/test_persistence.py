"""Weights come as arrays by name and go back, whole or not at all, also under the names of another library."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from torch import nn

import trainkit as tk
from tests.helpers.learning import Spaces, batch_of, made, observations, small_net
from tests.policy.learners import MADE
from trainkit.policy.persistence import _renamed

OBS = observations(Spaces().observation_space, 20)
FIRST = "network.encoder.body.layers.0.weight"


def small(seed: int = 3, **parts: Any) -> tk.DQNPolicy:
    return made(seed=seed, **parts)


def slow(seed: int = 3, dtype: torch.dtype = torch.float32) -> tk.DQNPolicy:
    """Make one that torch learns and acts with, since numpy does not know its network."""
    spaces = {"observation_space": Spaces().observation_space, "action_space": Spaces().action_space}
    return tk.DQNPolicy(small_net(seed=seed).to(dtype), device="cpu", **spaces)


def learn(policy: tk.DQNPolicy, n_updates: int = 3) -> None:
    for step in range(n_updates):
        policy.update(batch_of(8, seed=step), step=step)


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def q_values(policy: tk.DQNPolicy) -> torch.Tensor:
    with torch.no_grad():
        values: torch.Tensor = policy.greedy(policy.features(OBS))["q_values"]
    return values


# ---- as arrays ----


@pytest.mark.parametrize("kind", MADE)
def test_what_one_policy_gave_another_takes(kind: str) -> None:
    one, other = MADE[kind](), MADE[kind]()
    other.seed(4)
    assert not same(one.get_weights(), other.get_weights())
    other.set_weights(one.get_weights())
    assert same(one.get_weights(), other.get_weights())
    for left, right in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("make", [small, slow])
def test_weights_given_and_taken_are_copies(make: Callable[[], tk.DQNPolicy]) -> None:
    policy = make()
    learn(policy)  # numbers lie flat from here on, and numpy has views of them
    given = policy.get_weights()
    kept = {name: array.copy() for name, array in given.items()}
    learn(policy)
    assert same(given, kept)
    policy.set_weights(given)
    for array in given.values():
        array += 1.0
    assert same(policy.get_weights(), kept)


@pytest.mark.parametrize("make", [small, slow])
def test_a_policy_acts_and_learns_on_with_weights_it_was_given(make: Callable[..., tk.DQNPolicy]) -> None:
    policy, reference = make(), make()
    learn(policy)
    learn(reference)
    policy.predict(OBS), reference.predict(OBS)
    given = make(4).get_weights()
    policy.set_weights(given)
    with torch.no_grad():
        for name, tensor in reference.state_dict().items():
            tensor.copy_(torch.as_tensor(given[name]))
    assert_array_equal(policy.predict(OBS), make(4).predict(OBS))
    learn(policy)
    learn(reference)
    assert same(policy.get_weights(), reference.get_weights())
    assert not same(policy.get_weights(), given)
    assert_array_equal(policy.predict(OBS), reference.predict(OBS))


def test_targets_are_given_and_taken_too() -> None:
    policy = small(target=tk.Target(10**9))
    learn(policy)
    given = policy.get_weights()
    assert not np.array_equal(given[FIRST], given[f"target_{FIRST}"])
    other = small(4)
    other.set_weights(given)
    assert same(other.get_weights(), given)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda array: array.tolist(), id="lists"),
        pytest.param(lambda array: array.astype(np.float64), id="more digits"),
        pytest.param(lambda array: array.astype(">f4"), id="other bytes first"),
        pytest.param(lambda array: np.asfortranarray(array)[::-1][::-1], id="other strides"),
        pytest.param(torch.as_tensor, id="tensors"),
    ],
)
def test_arrays_of_any_make_are_taken(form: Callable[[Any], Any]) -> None:
    given = small(4).get_weights()
    policy = small()
    for array in given.values():
        array.setflags(write=form is torch.as_tensor)
    policy.set_weights({name: form(array) for name, array in given.items()})
    assert same(policy.get_weights(), given)


def test_numbers_that_numpy_has_no_kind_for_come_and_go_without_loss() -> None:
    policy = slow(3, torch.bfloat16)
    given = policy.get_weights()
    assert {array.dtype.name for array in given.values()} == {"float32"}
    other = slow(4, torch.bfloat16)
    other.set_weights(given)
    assert same(other.get_weights(), given)


def test_all_problems_are_reported_at_once_and_nothing_is_loaded() -> None:
    policy = small()
    before = policy.get_weights()
    given: dict[str, Any] = small(4).get_weights()
    bias, second = "network.encoder.body.layers.0.bias", "network.heads.advantage.layers.0.weight"
    given["extra"] = np.zeros(2)
    given[FIRST] = given[FIRST].T
    del given[bias]
    given[second] = np.full((3, 8), 1e39)  # which float32 has not
    given[f"target_{FIRST}"] = given[f"target_{FIRST}"].astype(complex)
    given[f"target_{bias}"] = "ones"
    given[f"target_{second}"][0, :2] = [np.nan, -np.inf]
    with pytest.raises(tk.errors.CheckpointError) as caught:
        policy.set_weights(given)
    assert str(caught.value).splitlines() == [
        "DQNPolicy has other parameters than those given:",
        f"  {bias}: [8] here, none given",
        f"  {FIRST}: [8, 4] here, [4, 8] given",
        f"  {second}: 24 of 24 numbers given are not finite",
        f"  target_{FIRST}: float32 here, complex128 given",
        f"  target_{bias}: an array of numbers is needed, a str given",
        f"  target_{second}: 2 of 24 numbers given are not finite",
        "  extra: none here, [2] given",
    ]
    assert same(policy.get_weights(), before)


def test_what_is_infinite_here_may_stay_so() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = small_net()
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0]))

        def forward(self, obs: torch.Tensor) -> Any:
            return (self.body(obs) + self.mask).clamp(min=-9.0)

    spaces = {"observation_space": Spaces().observation_space, "action_space": Spaces().action_space}
    policy = tk.DQNPolicy(Masked(), device="cpu", **spaces)
    policy.set_weights(policy.get_weights())
    assert set(policy.predict(OBS)) == {0, 2}


def test_weights_go_to_a_newer_policy_and_no_older_one() -> None:
    learner, actor = small(), small(4)
    learn(learner)
    sent = learner.n_updates, learner.get_weights()
    for n_updates, weights in (sent, (2, small(5).get_weights())):  # the second is late
        if n_updates > actor.n_updates:
            actor.set_weights(weights)
            actor.n_updates = n_updates
    assert same(actor.get_weights(), sent[1])


# ---- from elsewhere ----


def elsewhere(seed: int = 7) -> nn.Sequential:
    """Make the network of another library that computes what ours with `hidden=(8,)` does."""
    network = small_net(seed=seed)
    network[1] = nn.ReLU()
    return network


NAMES = {
    f"{there}.{part}": f"network.{here}.layers.0.{part}"
    for there, here in (("0", "encoder.body"), ("2", "heads.advantage"))
    for part in ("weight", "bias")
}


@pytest.mark.parametrize("key_map", [NAMES, NAMES.get], ids=["dict", "function"])
def test_a_plain_network_s_file_makes_the_same_q_values(key_map: Any, tmp_path: Path) -> None:
    network = elsewhere()
    torch.save(network.state_dict(), tmp_path / "net.pt")
    policy = small()
    learn(policy)
    assert policy.load_weights(tmp_path / "net.pt", key_map=key_map) == {}
    expected = network(torch.as_tensor(OBS)).detach()
    torch.testing.assert_close(q_values(policy), expected, rtol=0, atol=0)
    assert_array_equal(policy.predict(OBS), expected.argmax(1))
    after = policy.get_weights()
    assert same({n: a for n, a in after.items() if n.startswith("network")}, {n: after[n] for n in NAMES.values()})
    for name in NAMES.values():  # the target begins as a copy
        assert_array_equal(after[f"target_{name}"], after[name])


def test_a_target_of_its_own_is_taken_as_it_is() -> None:
    online, target = elsewhere(), elsewhere(8)
    given = {f"q.{name}": tensor for name, tensor in online.state_dict().items()}
    given |= {f"target.{name}": tensor for name, tensor in target.state_dict().items()}
    policy = small()

    def ours(name: str) -> str:
        which, _, rest = name.partition(".")
        return {"q": "", "target": "target_"}[which] + NAMES[rest]

    policy.load_weights(given, key_map=ours)
    assert_array_equal(policy.get_weights()[FIRST], online[0].weight.detach())
    assert_array_equal(policy.get_weights()[f"target_{FIRST}"], target[0].weight.detach())
    del given["target.0.bias"]
    with pytest.raises(
        tk.errors.CheckpointError, match=r"target_network.encoder.body.layers.0.bias: \[8\] here, none given"
    ):
        policy.load_weights(given, key_map=ours)


def test_a_target_that_is_nobodys_attribute_is_nobodys_weight() -> None:
    policy, other = slow(), slow(4)
    policy.hidden_target = [policy.add_target("aside", small_net(), tk.Target())]
    policy.load_weights(other.state_dict())
    assert same(policy.get_weights(), other.get_weights())


def test_what_has_no_name_here_is_left_out_or_refused() -> None:
    given = {**elsewhere().state_dict(), "optimizer.lr": torch.ones(())}
    policy = small()
    with pytest.raises(tk.errors.CheckpointError, match=r"\n  optimizer.lr: none here, \[\] given$"):
        policy.load_weights(given, key_map=NAMES)
    policy.load_weights(given, key_map={**NAMES, "optimizer.lr": None})
    policy.load_weights(given, key_map=NAMES.get)


def test_where_not_all_must_fit_the_rest_is_returned_and_as_it_was() -> None:
    policy = small(hidden=(8, 8))
    before = policy.get_weights()
    mismatches = policy.load_weights(elsewhere().state_dict(), key_map=NAMES, strict=False)
    second = "network.encoder.body.layers.1"
    assert mismatches == {
        **{f"{which}{second}.weight": "[8, 8] here, none given" for which in ("", "target_")},
        **{f"{which}{second}.bias": "[8] here, none given" for which in ("", "target_")},
    }
    after = policy.get_weights()
    assert {name for name in after if np.array_equal(after[name], before[name])} == set(mismatches)


def test_weights_of_which_none_fits_are_refused_all_the_same() -> None:
    policy = small()
    with pytest.raises(tk.errors.CheckpointError, match=r"0.weight: none here, \[8, 4\] given"):
        policy.load_weights(elsewhere().state_dict(), strict=False)


@pytest.mark.parametrize("strict", [True, False])
def test_a_number_that_is_not_finite_never_gets_in(strict: bool) -> None:
    network = elsewhere()
    with torch.no_grad():
        network[2].bias[1] = torch.nan
    policy = small()
    before = policy.get_weights()
    if strict:
        with pytest.raises(tk.errors.CheckpointError, match="1 of 3 numbers given are not finite"):
            policy.load_weights(network.state_dict(), key_map=NAMES)
        assert same(policy.get_weights(), before)
    else:
        mismatches = policy.load_weights(network.state_dict(), key_map=NAMES, strict=False)
        assert set(mismatches.values()) == {"1 of 3 numbers given are not finite"}
        assert all(np.isfinite(array).all() for array in policy.get_weights().values())


def test_a_map_that_does_not_fit_is_refused_with_all_that_is_wrong() -> None:
    with pytest.raises(tk.ConfigError) as caught:
        _renamed("load_weights", {"a.weight": 0, "b": 1, "c": 2}, {"a.wieght": "x", "b": "x", "c": 3, "a.weight": "x"})  # type: ignore[dict-item]
    assert str(caught.value).splitlines() == [
        "load_weights.key_map names 'a.wieght', which is not given, did you mean 'a.weight'?",
        "load_weights.key_map gives both 'a.weight' and 'b' the name 'x': leave one out",
        "load_weights.key_map must give a name or None, got 3 for 'c'",
    ]
    with pytest.raises(tk.ConfigError, match=r"DQNPolicy.load_weights.key_map must be a dict or a function, got 3"):
        small().load_weights(elsewhere().state_dict(), key_map=3)  # type: ignore[arg-type]


def test_a_file_with_more_than_weights_says_what_is_in_it(tmp_path: Path) -> None:
    torch.save({"model": elsewhere().state_dict(), "epoch": 3}, tmp_path / "run.pt")
    with pytest.raises(
        tk.errors.CheckpointError, match=r"must hold tensors by name, got \['model', 'epoch'\]: read it with"
    ):
        small().load_weights(tmp_path / "run.pt")


# ---- safetensors ----


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)  # which another test may have imported
    (tmp_path / "net.safetensors").touch()
    with pytest.raises(tk.errors.MissingExtraError, match=r"pip install 'trainkit-rl\[safetensors\]'"):
        small().load_weights(tmp_path / "net.safetensors")


def test_a_file_of_another_format_is_answered_with_those_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "net.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    rule = r"net\.h5 is damaged or has no weights that can be read: give a file of torch\.save \(\.pt\) or safetensors"
    with pytest.raises(tk.errors.CheckpointError, match=rule):
        small().load_weights(tmp_path / "net.h5")


def test_a_safetensors_file_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="the extra `safetensors` is not installed")
    from safetensors.torch import save_file

    network, policy, path = elsewhere(), small(), tmp_path / "net.safetensors"
    save_file(network.state_dict(), path)
    policy.load_weights(path, key_map=NAMES)
    torch.testing.assert_close(q_values(policy), network(torch.as_tensor(OBS)).detach(), rtol=0, atol=0)
    before = policy.get_weights()
    whole = path.read_bytes()
    for damaged in (b"", whole[:9], whole[:-1], b"\xff" * len(whole)):
        path.write_bytes(damaged)
        with pytest.raises(
            tk.errors.CheckpointError, match=r"net.safetensors cannot be read.*: it is missing or damaged"
        ):
            policy.load_weights(path, key_map=NAMES)
    assert same(policy.get_weights(), before)

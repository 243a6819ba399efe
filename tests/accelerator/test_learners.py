"""Learners on the pretend device next to the CPU: parts, masks, images, graphs, acting on the CPU, overlap, export."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.accelerator.runs import assert_equal_runs, assert_finite_runs, draws_as_the_cpu, make, tolerance_of
from tests.extensions.cuda.frames_and_arrays import MIXED, STACKED, Source
from tests.helpers.learning import MASKED, PARTS, assert_same, batch_of, made
from tests.helpers.optimizers import ADAMW, COSINE, SGD, without_decay_of_biases
from tests.pretend import PretendDevice

pytestmark = pytest.mark.accelerator

IMAGES = spaces.Box(0, 255, (4, 36, 38), np.uint8)
KINDS: list[Any] = [
    *PARTS,
    pytest.param({"space": MASKED, "dueling": True, "normalize_obs": True}, id="masked dueling normalized"),
    pytest.param({"space": IMAGES, "hidden": None, "head": (8,)}, id="images"),
    pytest.param({"space": IMAGES, "hidden": None, "head": (8,), "precision": "bf16"}, id="bf16 images"),
    pytest.param({"clip": tk.Clip(0.1, by="norm")}, id="clipped norms"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_q_learner_acts_and_learns_as_on_the_cpu(kind: dict[str, Any], accelerator: torch.device) -> None:
    if accelerator.type != "pretend" and (kind.get("noisy") or isinstance(kind.get("value"), tk.ImplicitQuantileValue)):
        pytest.skip("a GPU's generator draws other noise and fractions than the CPU's")
    here, there = (made(**copy.deepcopy(kind), engine="torch", device=device) for device in ("cpu", accelerator))
    options = {"space": kind["space"]} if "space" in kind else {}
    tolerance = tolerance_of(accelerator, kind.get("precision", "float32"))
    for step in range(6):
        batch = batch_of(8, seed=step, **options)
        for explore in (False, True):
            actions = [policy.act(batch.obs, step=step, explore=explore).action for policy in (here, there)]
            assert_same(*actions)
        priorities = [policy.update(batch, step=step).read_priority() for policy in (here, there)]
        np.testing.assert_allclose(priorities[1], priorities[0], rtol=tolerance, atol=tolerance)
    assert_equal_runs(there.get_weights(), here.get_weights(), tolerance)
    assert_equal_runs(there.read_metrics(), here.read_metrics(), tolerance)


@pytest.mark.parametrize("optimizer", [ADAMW, SGD, without_decay_of_biases], ids=["AdamW", "SGD", "groups"])
def test_every_optimizer_and_scheduler_learns_as_on_the_cpu(optimizer: Any, accelerator: torch.device) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "lr": COSINE, "engine": "torch", "clip": tk.Clip(0.5)}
    here, there = (made(**options, device=device) for device in ("cpu", accelerator))
    for step in range(6):
        batch = batch_of(8, seed=step)
        if step == 4:  # skipped on both
            for policy in (here, there):
                policy.on_nan = "skip"
                policy.update(batch_of(8, reward=np.full(8, np.nan, np.float32)), step=step)
        for policy in (here, there):
            policy.update(batch, step=step)
    assert_equal_runs(there.get_weights(), here.get_weights(), tolerance_of(accelerator))
    assert_equal_runs(there.read_metrics(), here.read_metrics(), tolerance_of(accelerator))


@pytest.mark.parametrize("kind", KINDS)
def test_the_copy_on_the_cpu_acts_as_the_device(kind: dict[str, Any], pretend: PretendDevice) -> None:
    one, other = (
        made(**kind, device=pretend.device, exploration=tk.EpsilonGreedy(0.2), act_on=where)
        for where in ("cpu", "policy")
    )
    options = {"space": kind["space"]} if "space" in kind else {}
    for step in range(6):
        batch = batch_of(8, seed=step, **options)
        for policy in (one, other):
            policy.update(batch, step=step)
        assert_same(*(policy.act(batch.obs, step=step, explore=True).action for policy in (one, other)))
    with pretend.counting() as counts:
        one.action_values(batch.obs)
    assert (counts.waits, counts.copies_to_device) == (0, 0)


# ---- frames, runs, export ----


@pytest.mark.parametrize("space", [STACKED, MIXED], ids=["images", "mixed"])
def test_frames_on_the_device_teach_what_sent_ones_do(space: Any, pretend: PretendDevice) -> None:
    options: dict[str, Any] = {"hidden": None, "head": (8,), "device": pretend.device}
    plain, resident, source = made(space, **options), made(space, **options), Source(space, str(pretend.device))
    source.write(10)
    for step in range(8):
        source.write(3)
        arrays, places = source.draw()
        sent = []
        for policy, batch in ((plain, arrays), (resident, places)):
            with pretend.counting() as counts:
                policy.update(batch, step=step)
            sent.append(counts)
        assert step == 0 or [counts.waits for counts in sent] == [0, 0]
    assert_same(resident.get_weights(), plain.get_weights())


@pytest.mark.parametrize("name", ["rainbow", "sac"])
@pytest.mark.parametrize("options", [{"overlap": True}, {"refresh_priorities": "late"}], ids=str)
def test_orders_of_work_learn_there_as_on_the_cpu(name: str, options: Any, accelerator: torch.device) -> None:
    weights = []
    for device in ("cpu", accelerator):
        with make(name, device, n_updates=12, buffer="prioritized", **options) as trainer:
            trainer.run()
        weights.append(trainer.policy.get_weights())
    if draws_as_the_cpu(name, accelerator):
        assert_equal_runs(weights[1], weights[0], tolerance_of(accelerator))
    else:
        assert_finite_runs(weights[1], weights[0])


def test_a_preset_keeps_its_frames_there(accelerator: torch.device) -> None:
    box = tk.testing.FakeVectorEnv(spaces.Box(0, 255, (36, 36), np.uint8), spaces.Discrete(3), n=2, episode_length=9)
    frames = tk.engine.DeviceFrames(accelerator)
    envs = tk.make_envs(box, stack=2)
    policy = tk.DQNPolicy.for_envs(envs, head=(8,), device=accelerator, seed=0)
    collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(100, frames=frames))
    options: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 40, "update_per_step": 0.25, "batch_size": 8}
    with tk.OffpolicyTrainer(policy, collector, **options, seed=1, verbose=False, show_progress=False) as trainer:
        epochs = list(trainer)
    assert all(np.isfinite(number) for epoch in epochs for number in epoch.stats.update.values())


def test_an_evaluation_plays_there_what_it_plays_on_the_cpu(accelerator: torch.device) -> None:
    returns = []
    for device in ("cpu", accelerator):
        policy = tk.DQNPolicy.for_envs(tk.make_envs("CartPole-v1", 1), device=device, seed=0)
        returns.append(tk.evaluate(policy, tk.make_envs("CartPole-v1", 2), n_episode=6, seed=3).returns)
    assert returns[0] == returns[1]


def test_an_optimizers_state_moves_between_devices(accelerator: torch.device) -> None:
    policies = [made(device=device, engine="torch", seed=seed) for device, seed in (("cpu", 0), (accelerator, 9))]
    for start, end in (policies, policies[::-1]):
        start.update(batch_of(16), step=0)
        end.load_training_state(start.training_state())
        assert_same(end.get_weights(), start.get_weights())
        for policy in (start, end):
            policy.update(batch_of(16, seed=1), step=1)
        assert_equal_runs(end.get_weights(), start.get_weights(), tolerance_of(accelerator))

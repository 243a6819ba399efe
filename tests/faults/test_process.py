"""What a run does to its process, and what the process may do to it: FAULTS 16, 31, 67, 71, 72, 86, 98 to 101."""

import copy
import gc
import pickle
import resource
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import trainkit as tk
from tests.helpers.learning import FOUR_NUMBERS, Spaces
from tests.trainer.toys import Walk, make_onpolicy_trainer, make_trainer


def run_python(code: str, *options: str) -> str:
    """Run a script of its own, and return what it printed."""
    command = [sys.executable, *options, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_trainer_is_saved_and_neither_pickled_nor_copied() -> None:
    trainer = make_trainer()
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"a OffpolicyTrainer cannot be pickled or copied: save\(\) writes it"):
            way(trainer)


def test_importing_is_quick_and_starts_nothing() -> None:
    printed = run_python(
        """
        import sys, threading, time, warnings
        import gymnasium, gymnasium.vector, numpy, torch, tqdm.auto
        began, n_threads, torch_threads = time.process_time(), threading.active_count(), torch.get_num_threads()
        import trainkit
        print(time.process_time() - began)
        print("tensorboard" in sys.modules, "tensorflow" in sys.modules, torch.cuda.is_initialized())
        print(threading.active_count() - n_threads, torch.get_num_threads() - torch_threads)
        """,
        "-W",
        "error::ImportWarning",
    ).splitlines()
    assert float(printed[0]) < 1.0
    assert printed[1:] == ["False False False", "0 0"]


def test_a_first_policy_loads_no_symbolic_algebra() -> None:
    """`torch.nn.utils.skip_init` would, by way of the meta device: half a second."""
    printed = run_python(
        """
        import sys
        import gymnasium, trainkit as tk
        before = set(sys.modules)
        for shape in ((4,), (3, 84, 84)):
            class Spaces:
                observation_space = gymnasium.spaces.Box(0, 255, shape, "uint8")
                action_space = gymnasium.spaces.Discrete(2)
            tk.DQNPolicy.for_envs(Spaces, device="cpu")
        print("sympy" in set(sys.modules) - before)
        """
    )
    assert printed.split() == ["False"]


def test_training_changes_no_number_of_threads_and_leaves_none_behind() -> None:
    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate()} - {"tqdm_monitor"}  # tqdm's own, one for all bars

    before = torch.get_num_threads(), threads()
    trainer = make_trainer(test=True)
    trainer.run()
    trainer.close()
    assert (torch.get_num_threads(), threads()) == before


@pytest.mark.parametrize("make", [make_trainer, make_onpolicy_trainer])
def test_a_trainer_without_references_is_collected(make: Any) -> None:
    trainer = make(test=True)
    next(trainer)
    parts = [weakref.ref(part) for part in (trainer, trainer.policy, trainer.train_collector, trainer.buffer)]
    trainer.close()
    del trainer
    gc.collect()
    assert [part() for part in parts] == [None] * 4


@pytest.mark.slow
def test_fifty_trainers_in_a_row_take_no_more_than_twenty() -> None:
    def live() -> None:
        trainer = make_trainer(test=True)
        trainer.run()
        trainer.close()
        del trainer
        gc.collect()  # a trainer is in cycles, which wait for a collection of the oldest generation

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    for _ in range(20):  # until the allocator's pools have their size
        live()
    before = resident()
    for _ in range(50):
        live()
    assert resident() - before < 8 * 2**20


def test_counters_are_exact_beyond_what_a_float_holds() -> None:
    trainer = make_trainer(buffer=tk.ReplayBuffer(60))
    assert trainer.train_collector is not None
    trainer.train_collector.load_state_dict(trainer.train_collector.state_dict() | {"env_step": 2**53 + 1})
    trainer.policy.n_updates = 2**53 + 1
    trainer.reset()
    info = trainer.run()
    assert info.env_step == 2**53 + 1 + 3 * 24
    assert info.gradient_step == 2**53 + 1 + 3 * 12


def test_slots_are_exact_after_two_to_the_31_steps() -> None:
    buffer = tk.ReplayBuffer(5, n_envs=1)
    one = np.zeros(1)
    rows = [
        tk.Transition(np.full((1, 1), float(k)), one, one, one[None], one > 0, one > 0, np.array([0]), {})
        for k in range(9)
    ]
    buffer.add(rows[0])
    state = buffer.state_dict()
    buffer.load_state_dict(state | {"rings": state["rings"] | {"serial": 2**31 + 5}})
    slots = [int(buffer.add(row)[0]) for row in rows[1:]]
    assert len(set(slots)) == len(slots)
    assert min(slots) > 2**31
    batch = buffer.sample(64, horizon=tk.Horizon())
    assert {slots[int(k) - 1] for k in batch.obs[:, 0]} == set(batch.slots.tolist()) == set(slots[-5:])


def test_statistics_of_a_billion_rewards_stay_true() -> None:
    scale = tk.buffer.ReturnScale(gamma=0.0, clip=1e9)
    scale.load_state_dict({"moments": [10**9, 5.0, 4.0 * 10**9], "running": []})  # mean 5, deviation 2
    rng = np.random.default_rng(0)
    ended, ids = np.zeros(10_000, np.bool_), np.arange(10_000)
    for _ in range(100):
        scale.observe(rng.normal(5.0, 2.0, 10_000), ended, ids)
    assert scale.deviation == pytest.approx(2.0, rel=1e-5)
    assert scale.n_observed == 10**9 + 10**6


def test_more_actions_than_a_network_could_learn_are_rejected() -> None:
    for make in (tk.DQNPolicy.for_envs, tk.PPOPolicy.for_envs, tk.BCPolicy.for_envs):
        with pytest.raises(tk.SpaceMismatchError, match=r"a number of its own, and 1,000,001 are more than 1,000,000"):
            make(Spaces(FOUR_NUMBERS, spaces.Discrete(1_000_001)))


def test_an_environment_may_seed_the_global_generators() -> None:
    class Seeding(Walk):
        def reset(self, **options: Any) -> Any:
            np.random.seed(0)  # noqa: NPY002, TID251  # what some environments do
            return super().reset(**options)

    state = np.random.get_state()  # noqa: NPY002  # to be put back
    try:
        first, second = (make_trainer(env=kind, test=True).run() for kind in (Walk, Seeding))
    finally:
        np.random.set_state(state)  # noqa: NPY002  # as it was
    assert first.last_test.returns == second.last_test.returns

"""Measure an update of R2D2 beside a loop of plain torch, on the same sequences.

    python -m benchmarks.r2d2_update [--rounds 7] [--block 10]

An LSTM of 128 units behind a layer of 128, sequences of 80 rows after 40 of burn-in, batches of 32, stored states,
double and dueling, n = 5, value rescaling, priorities. Both sides start with the same weights, and must have the same
priorities and weights after the first updates. They take turns in one process, on one thread; seconds are of its CPU
time.
"""

import argparse
import copy
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import trainkit as tk
from benchmarks.provenance import measured_at
from benchmarks.quiet import quiet_machine
from benchmarks.running import machine
from trainkit.buffer import SequenceBatch, sample_sequences

RESULT = Path("benchmarks/results/r2d2_update.md")
SIZE, LENGTH, BURN_IN, BATCH, N_STEP, GAMMA = 128, 80, 40, 32, 5, 0.997
LR, ADAM_EPS, MAX_NORM, RESCALE, ETA = 1e-4, 1e-3, 40.0, 1e-3, 0.9
N_OBS, N_ACTIONS, EPISODE = 8, 4, 300
N_BATCHES = 10  # that are learned from in turn


class Noise(gym.Env[NDArray[np.float32], int]):
    """Show noise, and earn noise, for 300 steps."""

    observation_space = gym.spaces.Box(-9.0, 9.0, (N_OBS,), np.float32)
    action_space = gym.spaces.Discrete(N_ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._clock = 0
        return self._drawn(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self._clock += 1
        return self._drawn(), float(self.np_random.normal()), False, self._clock == EPISODE, {}

    def _drawn(self) -> NDArray[np.float32]:
        return self.np_random.normal(size=N_OBS).astype(np.float32).clip(-9.0, 9.0)


# ---- trainkit ----


def collected() -> tuple[tk.DQNPolicy, list[SequenceBatch], float]:
    """Return a policy, batches of its steps, and the seconds of CPU that it takes to sample one."""
    envs = tk.make_envs(Noise, 8, seed=1)
    policy = tk.DQNPolicy.for_envs(
        envs,
        hidden=(SIZE,),
        recurrent="lstm",
        sequences=tk.Sequences(LENGTH, BURN_IN, eta=ETA),
        double=True,
        dueling=True,
        n_step=N_STEP,
        gamma=GAMMA,
        value=tk.ExpectedValue("mse", rescale=RESCALE),
        target=tk.Target(10**9),
        optimizer=tk.Adam(LR, eps=ADAM_EPS),
        max_grad_norm=MAX_NORM,
        device="cpu",
        seed=1,
    )
    buffer = tk.PrioritizedReplayBuffer(8_000, alpha=0.9, beta=0.6, seed=1)
    tk.Collector(policy, envs, buffer).collect(n_step=8_000)
    rng = np.random.default_rng(1)
    started, batches = time.process_time(), []
    for _ in range(N_BATCHES):
        batch = sample_sequences(buffer, BATCH, length=LENGTH, burn_in=BURN_IN, horizon=policy.horizon)
        batches.append(batch.copy())
        buffer.update_priorities(batch.slots, rng.random(BATCH) + 0.1)
    return policy, batches, (time.process_time() - started) / N_BATCHES


# ---- plain torch ----


class Network(nn.Module):
    """A layer, an LSTM, a value and advantages."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.lstm = nn.Linear(N_OBS, SIZE), nn.LSTM(SIZE, SIZE)
        self.advantage, self.value = nn.Linear(SIZE, N_ACTIONS), nn.Linear(SIZE, 1)

    def unroll(self, obs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        outputs, state = self.lstm(torch.relu(self.body(obs)), state)
        return outputs, state

    def q(self, x: Tensor) -> Tensor:
        advantage = self.advantage(x)
        values: Tensor = self.value(x) + advantage - advantage.mean(dim=-1, keepdim=True)
        return values


def squash(x: Tensor) -> Tensor:
    """Return rescaled values (Pohlen et al., 2018)."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + RESCALE * x


def unsquash(x: Tensor) -> Tensor:
    """Return the values that were rescaled."""
    root = (1.0 + 4.0 * RESCALE * (x.abs() + 1.0 + RESCALE)).sqrt()
    return x.sign() * (((root - 1.0) / (2.0 * RESCALE)).square() - 1.0)


class Loop:
    """R2D2's update, written for nothing else.

    Args:
        policy: whose weights it starts with.
    """

    def __init__(self, policy: tk.DQNPolicy) -> None:
        self.network = Network()
        for own, theirs in zip(self.network.parameters(), self._ordered(policy.network), strict=True):
            own.data.copy_(theirs)
        self.target = copy.deepcopy(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=LR, eps=ADAM_EPS, fused=True)

    @staticmethod
    def _ordered(network: Any) -> list[Tensor]:
        """Return trainkit's parameters in the order of `Network`'s."""
        parts = network.encoder.body, network.encoder.memory, network.heads.advantage, network.heads.state_value
        return [parameter for part in parts for parameter in part.parameters()]

    @torch.no_grad()
    def difference(self, policy: tk.DQNPolicy) -> float:
        """Return the largest difference between the two sides' weights."""
        pairs = zip(self.network.parameters(), self._ordered(policy.network), strict=True)
        return max(float((own - theirs).abs().max()) for own, theirs in pairs)

    def outputs(self, network: Network, obs: Tensor, state: Tensor, starts: Tensor) -> Tensor:
        """Return what the LSTM gives for the rows after the burn-in and those their windows reach [80 + 5, B, 128]."""
        with torch.no_grad():
            state = state * ~starts[0].unsqueeze(1)
            h, c = (part.contiguous().unsqueeze(0) for part in state.chunk(2, dim=1))
            _, (h, c) = network.unroll(obs[:BURN_IN], (h, c))
            keep = ~starts[BURN_IN].view(1, -1, 1)
        return network.unroll(obs[BURN_IN:], (h * keep, c * keep))[0]

    def update(self, batch: SequenceBatch) -> NDArray[np.float32]:
        """Take a gradient step; return the priorities [B]."""
        obs, state = torch.from_numpy(np.asarray(batch.observations)), torch.from_numpy(np.asarray(batch.state))
        starts, valid = torch.from_numpy(batch.starts), torch.from_numpy(batch.valid[BURN_IN:])
        after = torch.from_numpy(batch.after[BURN_IN:] - BURN_IN).clamp(min=0).unsqueeze(2)
        action = torch.from_numpy(batch.action[BURN_IN:]).unsqueeze(2)
        reward, discount = (torch.from_numpy(column[BURN_IN:]) for column in (batch.reward, batch.discount))
        q = self.network.q(self.outputs(self.network, obs, state, starts))
        with torch.no_grad():
            q_target = self.target.q(self.outputs(self.target, obs, state, starts))
            greedy = q.argmax(dim=2, keepdim=True)
            later = q_target.gather(2, greedy).squeeze(2).gather(0, after.squeeze(2))
            target = squash(reward + discount * unsquash(later))
        td = (q[:LENGTH].gather(2, action).squeeze(2) - target) * valid
        loss = (td.square().sum(dim=0) * torch.from_numpy(batch.weight)).sum() / valid.sum()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)
        self.optimizer.step()
        size = td.detach().abs()
        priority = ETA * size.amax(dim=0) + (1.0 - ETA) * size.sum(dim=0) / valid.sum(dim=0).clamp(min=1)
        return priority.numpy()


# ---- both ----


def measured(n_rounds: int, n_updates: int) -> tuple[dict[str, list[float]], float, str]:
    """Return milliseconds of CPU per update of each side in each round, those of sampling, and trainkit's engine."""
    policy, batches, sampling = collected()
    loop = Loop(policy)
    for step, batch in enumerate(batches):  # recording and warming up, too
        priorities = policy.update(batch, step=step).read_priority(), loop.update(batch)
        np.testing.assert_allclose(*priorities, rtol=1e-3, atol=1e-4)
    assert loop.difference(policy) < 1e-4, "the sides learn otherwise"
    sides: dict[str, Any] = {
        "trainkit": lambda batch: policy.update(batch, step=N_BATCHES).read_priority(),
        "plain torch": loop.update,
    }
    rounds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(n_rounds):
        for name, update in sides.items():
            started = time.process_time()
            for number in range(n_updates):
                update(batches[number % N_BATCHES])
            rounds[name].append(1e3 * (time.process_time() - started) / n_updates)
        print({name: round(own[-1], 1) for name, own in rounds.items()}, flush=True)
    return rounds, 1e3 * sampling, policy.engine.name


def report(rounds: dict[str, list[float]], sampling: float, engine: str) -> str:
    """Return the page, in markdown."""
    ratios = [own / other for own, other in zip(rounds["trainkit"], rounds["plain torch"], strict=True)]
    return "\n".join(
        [
            "# Speed of an update of R2D2",
            "",
            measured_at(),
            "",
            f"`python -m benchmarks.r2d2_update` on {machine()}; torch {torch.__version__}, one thread, in turn.",
            "",
            f"An LSTM of {SIZE} units behind a layer of {SIZE}, {LENGTH} rows after {BURN_IN} of burn-in, {BATCH} "
            f"sequences, double, dueling, n = {N_STEP}, value rescaling, priorities. The other side is a loop of plain "
            "torch for this alone, in `benchmarks/r2d2_update.py`, with `nn.LSTM` and a fused Adam, on the same "
            "arrays. Both have the same weights after the same updates, within 1e-4. Milliseconds of CPU per update:",
            "",
            "| side | median | lowest | highest |",
            "|---|---|---|---|",
            *(
                f"| {side} | {statistics.median(own):.1f} | {min(own):.1f} | {max(own):.1f} |"
                for side, own in rounds.items()
            ),
            "",
            f"trainkit's time by the loop's, round by round: median {statistics.median(ratios):.2f}, "
            f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} rounds. trainkit's engine is {engine}; sampling "
            f"a batch and writing its priorities takes another {sampling:.1f} ms.",
            "",
        ]
    )


@quiet_machine()
def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--block", type=int, default=10, help="updates of a side in a round")
    given = parser.parse_args()
    torch.set_num_threads(1)
    RESULT.write_text(report(*measured(given.rounds, given.block)))


if __name__ == "__main__":
    main()

"""Take the same 300 updates as Stable-Baselines3's TD3 and sb3-contrib's TQC, on the same rows and noise.

    python -m benchmarks.learning.same_updates        # rewrites benchmarks/results/same_updates.md, in a minute

Both start from the same weights. Once the peer takes each update from the weights that trainkit had before it, and
gradients are compared. Once it runs free, and weights are compared after all updates. The peer's own `train` runs, with
a replay buffer that gives the rows; its noise is what torch draws with the number of the update as its seed.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

import trainkit as tk
from benchmarks import pages
from benchmarks.learning.same_settings import SIDES
from benchmarks.learning.same_updates_sb3 import BATCH, HIDDEN, LR, N_ACTIONS, N_OBS, N_UPDATES, QUANTILES, TAU

PEER = SIDES["stable-baselines3"][0]
ABOUT = f"""
{N_UPDATES} updates of {BATCH} rows, networks of {HIDDEN[0]}-{HIDDEN[1]} units, on the rows and with the noise of
stable-baselines3 2.9.2 (TD3) and sb3-contrib 2.9.2 (TQC). Differences are norms, relative to the peer's. Gradients: the
largest of all updates, each from equal weights. TQC's critics have twice the peer's gradient, whose loss is the mean
over two critics: they are compared as such, and Adam's eps is twice the peer's. The peer's densities are computed
without the 1e-6 that it adds to 1 - tanh(u)**2. Weights: of two runs that have the first weights, the rows and the
noise in common.
"""
TOLERANCE = {"critic": 1e-5, "actor": 1e-5, "weights": 1e-3}


class GivenNoise(tk.ActorCriticPolicy):
    """A policy whose losses are given their noise."""

    unwatched = tk.ActorCriticPolicy.unwatched | {"given"}
    given: Mapping[str, Tensor]

    def loss_noise(self, n_rows: int) -> dict[str, Any]:
        """Return what was given."""
        return dict(self.given)


class Spaces:
    """The spaces of the rows."""

    observation_space = spaces.Box(-np.inf, np.inf, (N_OBS,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (N_ACTIONS,), np.float32)


def policy_of(kind: str, engine: Any) -> GivenNoise:
    """Return TD3 or TQC, of public parts."""
    delayed = tk.Target(every=2, unit="updates", tau=TAU)
    td3: dict[str, Any] = {"distribution": tk.policy.Deterministic(), "value": tk.ExpectedValue("mse")}
    td3 |= {"actor_reduction": tk.policy.FirstCritic(), "temperature": None, "actor_every": 2}
    td3 |= {"target": delayed, "actor_target": delayed}
    tqc: dict[str, Any] = {"value": tk.QuantileValue(QUANTILES, reduction="mean"), "tau": TAU}
    tqc["critic_optimizer"] = tk.Adam(LR, eps=2e-8)  # of gradients that are twice the peer's
    tqc |= {"reduction": tk.policy.TruncatedQuantiles(2), "actor_reduction": tk.policy.MeanOfCritics()}
    own = {"td3": td3, "tqc": tqc}[kind]
    how: dict[str, Any] = {"hidden": HIDDEN, "lr": LR, "device": "cpu", "seed": 1, "engine": engine}
    return GivenNoise.for_envs(Spaces(), **how, **own)


def noise_of(kind: str, number: int) -> dict[str, Tensor]:
    """Return the noise that the peer draws in an update."""
    torch.manual_seed(number)  # noqa: TID251  # the peer draws from the global generator
    shape = BATCH, N_ACTIONS
    if kind == "td3":
        return {"noise": torch.zeros(shape), "next_noise": torch.empty(shape).normal_(0, 0.2) / 0.2}
    return {name: torch.normal(torch.zeros(shape), torch.ones(shape)) for name in ("noise", "next_noise")}


def take_updates(kind: str, engine: Any) -> dict[str, Any]:
    """Take the updates; return rows, weights before each update, gradients of each, and the weights after all."""
    policy, rng = policy_of(kind, engine), np.random.default_rng(1)
    found: dict[str, Any] = {}
    for number in range(1, N_UPDATES + 1):
        obs, next_obs = rng.normal(size=(2, BATCH, N_OBS)).astype(np.float32)
        columns = {
            "obs": obs,
            "action": rng.uniform(-1, 1, (BATCH, N_ACTIONS)).astype(np.float32),
            "reward": rng.normal(size=BATCH).astype(np.float32),
            "discount": np.where(rng.random(BATCH) < 0.1, 0.0, 0.99).astype(np.float32),
            "next_obs": next_obs,
        }
        found |= {f"{number}/{name}": column for name, column in columns.items()}
        found |= {f"{number}/weights/{name}": value for name, value in policy.get_weights().items()}
        policy.given = noise_of(kind, number)
        batch = tk.TransitionBatch(**columns, weight=np.ones(BATCH, np.float32), slots=np.arange(BATCH))
        policy.update(batch, step=number)
        for step, own in policy.gradient_steps.items():
            for name, parameter in own.module.named_parameters():
                if parameter.grad is not None:
                    found[f"{number}/gradient/{step}/{name}"] = parameter.grad.numpy().copy()
    return found | {f"after/{name}": value for name, value in policy.get_weights().items()}


def compare(kind: str, engine: Any) -> dict[str, float]:
    """Return the largest relative differences from the peer's updates."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "updates.npz"
        np.savez(path, **take_updates(kind, engine))
        command = [PEER, "-m", "benchmarks.learning.same_updates_sb3", kind, str(path)]
        ran = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{' '.join(command)}: {ran.stderr.strip()}")
        result: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Compare both algorithms on both engines, and write the page."""
    pages.arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    rows, is_within = [], True
    for kind in ("td3", "tqc"):
        for engine in ("torch", "numpy"):
            found = compare(kind, engine)
            is_within &= all(found[name] < largest for name, largest in TOLERANCE.items())
            rows.append([kind, engine, *(f"{found[name]:.1e}" for name in (*TOLERANCE, "moved"))])
            print(*rows[-1], flush=True)
    columns = ["algorithm", "engine", "gradients of critics", "of the actor", "weights at the end", "they moved by"]
    pages.write(
        "same_updates",
        [
            *pages.heading("The same updates as Stable-Baselines3", "python -m benchmarks.learning.same_updates"),
            *ABOUT.strip().splitlines(),
            "",
            *pages.table(columns, rows),
        ],
    )
    raise SystemExit(not is_within)


if __name__ == "__main__":
    main()

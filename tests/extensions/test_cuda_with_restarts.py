"""Images on a device, where environments that fail are restarted and episodes are cut."""

from typing import Any

import pytest

import trainkit as tk
from tests.extensions.cuda.screens import ON_CPU, ORDERS, Screen
from tests.trainer.toys import everything


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("order", ORDERS)
def test_environments_that_fail_and_episodes_that_are_cut_change_nothing(order: dict[str, Any]) -> None:
    def failing(on_device: bool) -> Any:
        n_steps = [0]

        class Failing(Screen):
            """Fails at every ninth step of all environments together."""

            def step(self, action: Any) -> Any:
                n_steps[0] += 1
                if n_steps[0] % 9 == 0:
                    raise RuntimeError("out of order")
                return super().step(action)

        envs = tk.make_envs(Failing, 2, stack=3, on_error="restart", max_restarts=1_000, restart_delay_s=0)
        policy = tk.DQNPolicy.for_envs(envs, hidden=(), head=(8,), n_step=3, **ON_CPU)
        frames = tk.engine.DeviceFrames("cpu") if on_device else None
        collector = tk.Collector(policy, envs, tk.PrioritizedReplayBuffer(24, frames=frames))
        own: dict[str, Any] = {"max_epoch": 2, "step_per_epoch": 24, "update_per_step": 0.5, "batch_size": 4}
        own |= {"seed": 1, "verbose": False, "show_progress": False}
        trainer = tk.OffpolicyTrainer(policy, collector, **own | order)
        assert sum(result.stats.train.n_env_restarts for result in trainer) > 0  # episodes were dropped
        for _ in range(3):
            collector.collect(n_episode=2)  # which cuts what runs
            policy.update(collector.buffer.sample(4, horizon=policy.horizon), step=1)  # type: ignore[union-attr]
        return everything(trainer)

    assert failing(True) == failing(False)

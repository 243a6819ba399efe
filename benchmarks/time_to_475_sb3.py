"""Stable-Baselines3's side of the race on CartPole."""

import stable_baselines3
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import time_to_475_work as work


class Judged(BaseCallback):
    """Ask the judge between a round of updates and the next step, and stop when the race is over."""

    def __init__(self, race: work.Race) -> None:
        super().__init__()
        self._race = race
        self.is_over = False

    def _on_step(self) -> bool:
        return not self.is_over

    def _on_rollout_start(self) -> None:
        if self.num_timesteps and self.num_timesteps % work.EVERY == 0:
            self._ask()

    def _on_training_end(self) -> None:
        if not self.is_over:
            self._ask()

    def _ask(self) -> None:
        self.is_over = self._race.is_over(lambda obs: self.model.predict(obs, deterministic=True)[0])
        self.steps, self.updates = self.num_timesteps, self.model._n_updates


def main() -> None:
    """Learn until it is solved, and print how long it took."""
    seed = work.options().parse_args().seed
    torch.set_num_threads(1)
    race = work.Race(seed)
    model = DQN(
        "MlpPolicy",
        work.TASK,
        learning_rate=work.LR,
        buffer_size=work.CAPACITY,
        learning_starts=work.LEARNING_STARTS,
        batch_size=work.BATCH,
        gamma=work.GAMMA,
        train_freq=work.STEPS_PER_ROUND,
        gradient_steps=work.UPDATES_PER_ROUND,
        target_update_interval=work.TARGET_EVERY,
        exploration_fraction=work.EPSILON_STEPS / work.LIMIT,
        exploration_initial_eps=work.EPSILON[0],
        exploration_final_eps=work.EPSILON[1],
        max_grad_norm=work.CLIP,
        policy_kwargs={"net_arch": list(work.HIDDEN)},
        seed=seed,
        device="cpu",
    )
    judged = Judged(race)
    model.learn(work.LIMIT, callback=judged)
    race.show(
        steps=judged.steps,
        updates=judged.updates,
        parameters=sum(parameter.numel() for parameter in model.q_net.parameters()),
        versions={"stable-baselines3": stable_baselines3.__version__},
    )


if __name__ == "__main__":
    main()

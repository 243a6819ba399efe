"""An offline learner finds in random play what behavior cloning cannot, seeded."""

from types import SimpleNamespace

import pytest

import trainkit as tk
from trainkit import presets


@pytest.mark.slow
def test_cql_balances_the_pole_after_rows_of_random_play_and_cloning_them_does_not() -> None:
    envs = tk.make_envs("CartPole-v1", 10, seed=3)
    buffer = tk.ReplayBuffer(50_000)
    tk.Collector(tk.RandomPolicy(envs.action_space, seed=3), envs, buffer).collect(n_step=50_000)
    spaces = SimpleNamespace(observation_space=envs.observation_space, action_space=envs.action_space)
    reached = {}
    for preset in (presets.bc, presets.cql):
        trainer = preset(buffer, spaces, seed=3, device="cpu", verbose=False, max_epoch=3)
        trainer.run()
        returns = tk.evaluate(trainer.policy, "CartPole-v1", n_episode=50, n_envs=50, seed=4).returns
        reached[preset.name] = returns.mean
    assert reached["cql"] >= 200  # random play gets 22
    assert reached["cql"] >= 5 * reached["bc"]

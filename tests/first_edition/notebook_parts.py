import torch

import trainkit as tk

torch.set_num_threads(1)  # networks this small are fastest on one


def train(*, buffer=None, **parts):
    """Train on CartPole for 6,000 steps; return the trainer."""
    envs = tk.make_envs("CartPole-v1", 8)
    usual = {
        "hidden": (128,),
        "gamma": 0.97,
        "lr": 1e-3,
        "target": tk.Target(400),
        "exploration": tk.EpsilonGreedy.linear(1.0, 0.05, 3_000),
    }
    policy = tk.DQNPolicy.for_envs(envs, device="cpu", **usual | parts)
    trainer = tk.OffpolicyTrainer(
        policy,
        tk.Collector(policy, envs, tk.ReplayBuffer(10_000) if buffer is None else buffer),
        max_epoch=6,
        step_per_epoch=1_000,
        test_collector=tk.Collector(policy, tk.make_envs("CartPole-v1", 10)),
        episode_per_test=20,
        batch_size=64,
        learning_starts=500,
        update_per_step=0.25,
        seed=1,
        verbose=False,
        show_progress=False,
    )
    trainer.run()
    return trainer

parts, runs = {}, {}

runs["DQN"] = train(**parts)

parts |= {"double": True}  # the online network chooses the next action, the target network values it
runs["+ double"] = train(**parts)

parts |= {"dueling": True, "head": (64,)}  # a value and advantages instead of values
runs["+ dueling"] = train(**parts)

parts |= {"n_step": 3}  # three rewards before the network's own guess
runs["+ 3 steps"] = train(**parts)

def prioritised():
    """Return a new buffer, for each run its own."""
    return tk.PrioritizedReplayBuffer(10_000, alpha=0.5, beta=[(0, 0.4), (6_000, 1.0)])


runs["+ prioritised"] = train(buffer=prioritised(), **parts)  # more often from rows that surprised

parts |= {"value": tk.CategoricalValue(51, v_min=0.0, v_max=34.0)}  # a distribution; no return is above 1 / (1 - gamma)
runs["+ C51"] = train(buffer=prioritised(), **parts)

parts |= {"noisy": True, "sigma0": 0.1, "exploration": tk.Greedy()}  # noise in the weights explores, no epsilon
runs["+ noisy = Rainbow"] = train(buffer=prioritised(), **parts)

tk.plot.curves(runs, width=7.5, height=3.6)

for name, trainer in runs.items():
    returns = tk.evaluate(trainer.policy, "CartPole-v1", n_episode=50, seed=2).returns
    told = trainer.history[-1]
    print(f"{name:18} {returns.mean:5.0f} +- {returns.std:3.0f}   loss {told['update/loss']:.3f}")

tk.plot.episode_values(runs["+ noisy = Rainbow"].policy, "CartPole-v1", seed=3)

import torch
from IPython.display import display

import trainkit as tk

torch.set_num_threads(1)  # networks this small are fastest on one
ENV = "CartPole-v1"

envs = tk.make_envs(ENV, 8)
half_way = tk.DQNPolicy.for_envs(
    envs,
    hidden=(64, 64),
    gamma=0.98,
    lr=1e-3,
    target=tk.Target(100),
    device="cpu",
    exploration=tk.EpsilonGreedy(0.3),
    store_action_prob=True,
)
trainer = tk.OffpolicyTrainer(
    half_way,
    tk.Collector(half_way, envs, tk.ReplayBuffer(20_000)),
    max_epoch=100,
    step_per_epoch=500,
    batch_size=64,
    update_per_step=0.25,
    learning_starts=500,
    seed=1,
    verbose=False,
    show_progress=False,
)
for _ in trainer:
    greedy = tk.evaluate(half_way, ENV, n_episode=20, seed=5).returns.mean
    if trainer.policy.n_updates and greedy > 100:
        break
print(f"greedy return {greedy:.0f} after {trainer.env_step:,} steps")

actor = tk.Collector(half_way, tk.make_envs(ENV, 8, seed=7))
with tk.DatasetWriter("data/half_way").record(actor):
    played = actor.collect(n_step=20_000, explore=True)
print(played.returns)

dataset = tk.load_dataset("data/half_way")
print(dataset)

runs = {}
for preset in (tk.presets.bc, tk.presets.cql):
    runs[preset.name] = preset(
        dataset, ENV, seed=1, max_epoch=5, update_per_epoch=500, device="cpu", verbose=False, show_progress=False
    )
    runs[preset.name].run()

for name, trainer in runs.items():
    display(trainer.history.plot("test/returns/mean", "update/loss", x="gradient_step"))
    print(name, tk.evaluate(trainer.policy, ENV, n_episode=50, seed=2).returns)

softer = tk.DQNPolicy(
    half_way.network,
    preprocess=half_way.preprocess,
    exploration=tk.EpsilonGreedy(0.2),
    device="cpu",
    observation_space=envs.observation_space,
    action_space=envs.action_space,
)
for name, target in (("as it acted", half_way), ("with less at random", softer)):
    told = tk.weighted_importance_sampling(target, dataset, gamma=0.9, explore=True)
    print(
        f"{name}: {told.value:.3f} +- {told.std_error:.3f}, worth {told.effective_sample_size:.0f} episodes "
        f"(the actor earned {told.behaviour:.3f})"
    )

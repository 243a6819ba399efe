"""PPO in 4,096 CartPoles of tensors: rollouts stay on the simulator's device. See docs/howto/simulators.md."""

import torch

import trainkit as tk


def main(n: int = 4_096, max_epoch: int = 32) -> tk.CollectStats:
    """Train, and return an evaluation in gymnasium's CartPole."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)  # networks this small are fastest on one
    simulator = tk.simulators.CartPole(n, device=device)
    print(*tk.simulators.check_simulator(simulator), sep="\n")  # nothing: yours may have findings
    policy = tk.PPOPolicy.for_envs(simulator, hidden=(64, 64), lr=1e-3, gamma=0.98, lam=0.9, device=device)
    train = tk.simulators.TensorCollector(policy, simulator)
    n_steps = 16 * n  # of a rollout
    trainer = tk.OnpolicyTrainer(
        policy,
        train,
        max_epoch=max_epoch,
        step_per_epoch=n_steps,
        step_per_collect=n_steps,
        repeat_per_collect=2,
        batch_size=1_024,
        seed=1,
    )
    with trainer:
        trainer.run()
    return tk.evaluate(policy, "CartPole-v1", n_episode=100, seed=2)


if __name__ == "__main__":
    print(main().returns)

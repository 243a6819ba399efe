import signal

import torch
from IPython.display import clear_output, display

import trainkit as tk

torch.set_num_threads(1)  # networks this small are fastest on one


class PressStop(tk.Callback):
    """Press the notebook's stop button once, so that this page can show what happens then."""

    def on_collect_end(self, trainer, stats):
        if 9_000 <= trainer.env_step < 9_008:
            signal.raise_signal(signal.SIGINT)


trainer = tk.presets.rainbow(
    "CartPole-v1",
    seed=1,
    max_epoch=8,
    step_per_epoch=2_000,
    episode_per_test=20,
    callbacks=[PressStop()],
    logger="runs/quickstart",
    device="cpu",
    verbose=False,
    show_progress=False,  # we draw instead
)

for epoch, stats, info in trainer:
    clear_output(wait=True)
    display(trainer.history.plot("test/returns/mean", "update/loss"))
    if epoch == 3:
        break  # look around

trainer.history

print(stats.test.returns)
print(stats["update/q_mean"], info.env_step, trainer.policy.predict([0.0, 0.1, 0.0, -0.1]))

try:
    for epoch, stats, info in trainer:
        print(epoch, info.env_step, stats.test.returns.mean)
except KeyboardInterrupt:
    print(f"stopped at step {trainer.env_step:,}, in the middle of epoch {trainer.epoch}")

for _ in trainer:
    clear_output(wait=True)
    display(tk.plot.curves(trainer, goal=475))

print(tk.evaluate(trainer.policy, "CartPole-v1", n_episode=50, seed=2).returns)
tk.plot.episode_values(trainer.policy, "CartPole-v1", seed=3)

tk.plot.priorities(trainer.buffer)

WATCH = False
if WATCH:
    get_ipython().run_line_magic("load_ext", "tensorboard")
    get_ipython().run_line_magic("tensorboard", "--logdir runs")
trainer.close()

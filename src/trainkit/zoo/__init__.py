"""The zoo: tuned settings for known environments, their results on fresh seeds, and pretrained policies.

    for entry in tk.zoo.list():
        print(entry.name, entry.source, entry.result)
    policy = tk.zoo.load("dqn", "CartPole-v1")

Presets use its settings by themselves; `zoo=False` switches that off.
"""

from trainkit.presets.zoo_entry import ZooEntry, ZooResult
from trainkit.zoo.pretrained import entry, load
from trainkit.zoo.pretrained import list_entries as list
from trainkit.zoo.results import train

__all__ = [
    "ZooEntry",
    "ZooResult",
    "entry",
    "list",
    "load",
    "train",
]

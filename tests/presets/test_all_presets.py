"""All presets by name: those of extensions follow the kernel's, and are imported when they are first read."""

import subprocess
import sys

from trainkit import presets
from trainkit.core.extensions import table

# Those of the kernel's policies; extensions list theirs in their `__init__`.
KERNEL = """
    dqn double_dqn dueling_dqn prioritized_dqn noisy_dqn c51 qrdqn iqn munchausen_dqn rainbow drqn r2d2
    ppo a2c reinforce recurrent_ppo ippo mappo sac
""".split()
LOADED = """
import sys
from trainkit import presets
from trainkit.core.extensions import table
name, entry = [*table("PRESETS").items()][0]
def loaded(): return entry.module in sys.modules
names = list(presets.PRESETS)
print(name in names, name in presets.PRESETS, len(names) == len(presets.PRESETS), loaded())
print(presets.PRESETS[name] is getattr(presets, name), loaded())
"""


def test_the_presets_of_extensions_follow_and_are_imported_when_they_are_read() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:2] == ["True True True False", "True True"]
    assert [*presets.PRESETS] == [*KERNEL, *table("PRESETS")]


def test_each_preset_is_found_by_its_own_name_in_the_namespace() -> None:
    for name, preset in presets.PRESETS.items():
        assert preset.name == name
        assert getattr(presets, name) is preset

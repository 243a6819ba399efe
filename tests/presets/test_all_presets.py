"""All presets by name: those of extensions follow the kernel's, and are imported when they are first read."""

import subprocess
import sys

from trainkit import presets

LOADED = """
import sys
from trainkit import presets
def loaded(): return "trainkit.extensions.offline.presets" in sys.modules
names = list(presets.PRESETS)
print("bc" in names, "bc" in presets.PRESETS, len(names) == len(presets.PRESETS), loaded())
print(presets.PRESETS["bc"] is presets.bc, loaded())
"""


def test_the_presets_of_extensions_follow_and_are_imported_when_they_are_read() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:2] == ["True True True False", "True True"]
    assert [*presets.PRESETS][-4:] == ["sac", "bc", "cql", "bcq"]


def test_each_preset_is_found_by_its_own_name_in_the_namespace() -> None:
    for name, preset in presets.PRESETS.items():
        assert preset.name == name
        assert getattr(presets, name) is preset

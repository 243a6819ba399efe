"""What a checkpoint's bytes can do: nothing. Damaged ones are refused, and those made to do harm do none."""

import io
import json
import os
import pickle
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainkit as tk
from tests.helpers.manifests import resign, rewrite
from tests.trainer.toys import make_trainer
from trainkit.core.checkpoint import damage, load_checkpoint, save_checkpoint

N_FLIPS = 500


def test_a_single_flipped_bit_is_refused_wherever_it_is(tmp_path: Path) -> None:
    trainer = make_trainer(max_epoch=1)
    trainer.run()
    trainer.save(tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 5
    sizes = [file.stat().st_size for file in files]
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(N_FLIPS):
        which = int(rng.choice(len(files), p=np.array(sizes) / sum(sizes)))
        whole = files[which].read_bytes()
        place, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        files[which].write_bytes(whole[:place] + bytes([whole[place] ^ (1 << bit)]) + whole[place + 1 :])
        result = damage(tmp_path)
        refused += result is not None
        files[which].write_bytes(whole)
    assert refused == N_FLIPS
    assert damage(tmp_path) is None
    load_checkpoint(tmp_path)


@pytest.mark.parametrize("place", range(0, 700, 7))
def test_a_flipped_bit_in_a_manifest_is_refused(tmp_path: Path, place: int) -> None:
    save_checkpoint(tmp_path, {"rows": {"n": 1}}, {})
    whole = (tmp_path / "manifest.json").read_bytes()
    place %= len(whole)
    (tmp_path / "manifest.json").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(tk.errors.CheckpointError):
        load_checkpoint(tmp_path)


# ---- malice: whichever wrote these knows how a manifest is signed ----


class Trap:
    """Touch a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def npz(path: Path, skeleton: bytes = b'{"$array": "array_0"}', **members: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **members, skeleton=np.frombuffer(skeleton, np.uint8))


def pickle_in_torch(folder: Path, sprung: Path) -> None:
    torch.save({"tensor": torch.zeros(1), "trap": Trap(sprung)}, folder / "weights-1.pt")


def pickle_in_old_torch(folder: Path, sprung: Path) -> None:
    trapped = {"tensor": torch.zeros(1), "trap": Trap(sprung)}
    torch.save(trapped, folder / "weights-1.pt", _use_new_zipfile_serialization=False)


def bare_pickle(folder: Path, sprung: Path) -> None:
    (folder / "weights-1.pt").write_bytes(pickle.dumps(Trap(sprung), 2))


def objects_in_numpy(folder: Path, sprung: Path) -> None:
    npz(folder / "rows-1.npz", array_0=np.array([Trap(sprung)], object))


def pickle_as_npz(folder: Path, sprung: Path) -> None:
    (folder / "rows-1.npz").write_bytes(pickle.dumps(Trap(sprung), 2))


def member_that_climbs(folder: Path, sprung: Path) -> None:
    with zipfile.ZipFile(folder / "rows-1.npz", "w") as archive:
        archive.writestr(f"../../{sprung.name}", b"x")


def member_at_the_root(folder: Path, sprung: Path) -> None:
    with zipfile.ZipFile(folder / "weights-1.pt", "a") as archive:
        archive.writestr(str(sprung), b"x")


def file_outside(folder: Path, sprung: Path) -> None:
    (folder / "weights-1.pt").rename(folder.parent / "outside.pt")
    rewrite(folder, components=lambda all_: all_ | {"weights": all_["weights"] | {"file": "../outside.pt"}})


def file_of_the_system(folder: Path, sprung: Path) -> None:
    os.mkfifo(folder / "pipe")  # opening it would wait for ever
    entry = {"file": "pipe", "bytes": 0, "sha256": "0" * 64}
    rewrite(folder, components=lambda all_: all_ | {"weights": entry})


def bomb(folder: Path, sprung: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (300 * 2**20,)})
    nothing = bytes(2**20)
    with (
        zipfile.ZipFile(folder / "rows-1.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("array_0.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for _ in range(300):  # megabytes, of which a zip file makes kilobytes
            member.write(nothing)


def array_that_boasts(folder: Path, sprung: Path) -> None:
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)})
    with zipfile.ZipFile(folder / "rows-1.npz", "w") as archive:
        archive.writestr("array_0.npy", content.getvalue())


def tensor_that_boasts(folder: Path, sprung: Path) -> None:
    torch.save({"tensor": torch.arange(4.0)}, folder / "weights-1.pt")
    with zipfile.ZipFile(folder / "weights-1.pt") as archive:
        members = {one.filename: archive.read(one) for one in archive.infolist()}
    with zipfile.ZipFile(folder / "weights-1.pt", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content.replace(b"K\x04", b"K\xf0") if name.endswith("data.pkl") else content)


def manifest_without_end(folder: Path, sprung: Path) -> None:
    with (folder / "manifest.json").open("r+b") as file:
        file.truncate(2**40)  # a terabyte that is not there


def nested_without_end(folder: Path, sprung: Path) -> None:
    npz(folder / "rows-1.npz", b"[" * 1_000_000)


MALICE: list[Callable[[Path, Path], None]] = [
    pickle_in_torch,
    pickle_in_old_torch,
    bare_pickle,
    objects_in_numpy,
    pickle_as_npz,
    member_that_climbs,
    member_at_the_root,
    file_outside,
    file_of_the_system,
    bomb,
    array_that_boasts,
    tensor_that_boasts,
    manifest_without_end,
    nested_without_end,
]


@pytest.mark.parametrize("harm", MALICE)
def test_a_checkpoint_made_to_do_harm_is_refused_and_does_none(
    tmp_path: Path, harm: Callable[[Path, Path], None]
) -> None:
    folder, sprung = tmp_path / "deep" / "saved", tmp_path / "sprung"
    save_checkpoint(folder, {"weights": {"tensor": torch.arange(3.0)}, "rows": {"array": np.arange(4)}}, {})
    harm(folder, sprung)
    if harm not in (file_outside, file_of_the_system, manifest_without_end):
        resign(folder)  # so that no digest says it
        assert damage(folder) is None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(tk.errors.CheckpointError):
        load_checkpoint(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert not sprung.exists()
    assert sorted(tmp_path.rglob("*")) == there


def test_the_trap_of_these_tests_would_spring(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))  # noqa: S301 - to see that it does
    assert (tmp_path / "sprung").exists()


def test_a_manifest_names_nothing_that_is_executed(tmp_path: Path) -> None:
    trainer = make_trainer(max_epoch=1)
    trainer.save(tmp_path)
    config = {"class": "os.system", "arguments": {"value": {"part": "Popen", "of": {"args": "touch x"}}}, "unknown": {}}
    rewrite(tmp_path, policy=config)
    with pytest.raises(tk.errors.CheckpointError, match="as no `for_envs` of trainkit made it"):
        tk.load_policy(tmp_path)
    rewrite(tmp_path, policy=config | {"class": "DQNPolicy"})
    with pytest.raises(
        tk.errors.CheckpointError, match=r"a policy's config .*Popen.*does not say how its policy was made"
    ):
        tk.load_policy(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["policy"]["class"] == "DQNPolicy"


@pytest.mark.parametrize(
    "arguments",
    [
        {"hidden": [100_000, 100_000]},
        {"hidden": [10**12]},
        {"hidden": [8], "value": {"part": "CategoricalValue", "of": {"atoms": 10**10, "v_min": -1, "v_max": 1}}},
        {"hidden": [3_000] * 50},
    ],
)
def test_a_recipe_for_more_parameters_than_were_saved_allocates_nothing(tmp_path: Path, arguments: Any) -> None:
    envs = tk.make_envs("CartPole-v1", 1)
    tk.DQNPolicy.for_envs(envs, hidden=(8,), device="cpu").save(tmp_path)
    rewrite(tmp_path, policy=lambda config: config | {"arguments": arguments})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        tk.errors.CheckpointError, match="describes a policy with many more parameters than the weights saved"
    ):
        tk.load_policy(tmp_path, device="cpu")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB

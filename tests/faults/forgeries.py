"""Files made to do harm, by a seed: of every format that is read, in every way that we know.

A forgery takes valid files and changes them: the bytes, the zip directory, the headers of arrays, the JSON. What is
signed is signed again, so that no digest finds it. Whatever is unpickled or called leaves a mark.
"""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.manifests import resign, signed
from tests.helpers.minari_folders import env_spec


class Trap:
    """Touch a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


EVIL: list[Any] = [
    *("", "x", "os.system", "../../x", "/etc/passwd", "a\0b", "\ud800", "$array", "array_0", "x" * 10_000, "<f8", "|O"),
    *(-1, 0, 1, 2, 7, 2**31, 2**63, -(2**63), 10**30, 10**12, 10**9, 10**400),
    *(1.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *(None, True, False, [], {}, [[]], [0], [-1], [10**12, 10**12], ["x"], {"a": 1}, nested(90), nested(300)),
    *({"part": "Popen", "of": {"args": "touch x"}}, {"$array": "array_9"}, {"kind": "Box", "shape": [10**11]}),
]


def forge_json(value: Any, rng: np.random.Generator) -> Any:
    """Change one place of nested lists and dicts: another value, one missing, one too many."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = list(value)[rng.integers(len(value))]
        kind = rng.random()
        if kind < 0.1:
            return {name: child for name, child in value.items() if name != key}
        if kind < 0.2:
            return value | {str(EVIL[rng.integers(12)]): EVIL[rng.integers(len(EVIL))]}
        return value | {key: forge_json(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place, kind = int(rng.integers(len(value))), rng.random()
        if kind < 0.1:
            return value[:place] + value[place + 1 :]
        if kind < 0.2:
            return value * 3
        return [*value[:place], forge_json(value[place], rng), *value[place + 1 :]]
    if type(value) is int and rng.random() < 0.3:
        return value + int(rng.choice([-1, 1, 10, 10**6, 10**10]))
    return EVIL[rng.integers(len(EVIL))]


# ---- any file ----


def truncate(path: Path, rng: np.random.Generator, mark: Path) -> None:
    path.write_bytes(path.read_bytes()[: int(rng.integers(path.stat().st_size))])


def flip_bits(path: Path, rng: np.random.Generator, mark: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(len(content)))
        content[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def flip_bits_at_the_ends(path: Path, rng: np.random.Generator, mark: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(3):
        place = int(rng.integers(min(400, len(content))))
        content[place if rng.random() < 0.5 else -1 - place] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)


def overwrite(path: Path, rng: np.random.Generator, mark: Path) -> None:
    content = bytearray(path.read_bytes())
    place, size = int(rng.integers(len(content))), int(rng.integers(1, 64))
    content[place : place + size] = rng.bytes(size) if rng.random() < 0.5 else b"\xff" * size
    path.write_bytes(content)


def random_bytes(path: Path, rng: np.random.Generator, mark: Path) -> None:
    head = path.read_bytes()[: int(rng.integers(20))]
    path.write_bytes(head + rng.bytes(int(rng.integers(200))))


def bare_pickle(path: Path, rng: np.random.Generator, mark: Path) -> None:
    path.write_bytes(pickle.dumps(Trap(mark), int(rng.integers(0, 6))))


def fifo(path: Path, rng: np.random.Generator, mark: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path, rng: np.random.Generator, mark: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero" if rng.random() < 0.5 else "/dev/stdin")


def loop(path: Path, rng: np.random.Generator, mark: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def folder(path: Path, rng: np.random.Generator, mark: Path) -> None:
    path.unlink()
    path.mkdir()


def sparse(path: Path, rng: np.random.Generator, mark: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2 ** int(rng.integers(36, 41)))


def missing(path: Path, rng: np.random.Generator, mark: Path) -> None:
    path.unlink()


BYTES = [truncate, flip_bits, flip_bits_at_the_ends, overwrite, random_bytes, bare_pickle]
BYTES += [fifo, device, loop, folder, sparse, missing]


# ---- zip files ----


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {one.filename: archive.read(one) for one in archive.infolist()}


def write_members(path: Path, content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def add_member(path: Path, name: str, data: bytes) -> None:
    """Add a member, of a name that may be there, without zipfile's warning."""
    content = members(path)
    with zipfile.ZipFile(path, "w") as archive:
        for one, kept in content.items():
            archive.writestr(one, kept)
        info = zipfile.ZipInfo(f"#{'x' * (len(name) - 1)}")
        archive.writestr(info, data)
    path.write_bytes(path.read_bytes().replace(info.filename.encode(), name.encode()))


def pick(path: Path, rng: np.random.Generator) -> str:
    names = sorted(members(path))
    return names[rng.integers(len(names))]


def duplicate_member(path: Path, rng: np.random.Generator, mark: Path) -> None:
    name = pick(path, rng)
    add_member(path, name, members(path)[name])


def climbing_member(path: Path, rng: np.random.Generator, mark: Path) -> None:
    names = [f"../../{mark.name}", str(mark), f"..\\..\\{mark.name}", "a/../../b.npy"]
    add_member(path, names[rng.integers(len(names))], b"x")


def overlapping_members(path: Path, rng: np.random.Generator, mark: Path) -> None:
    content = bytearray(path.read_bytes())
    entries = [i for i in range(len(content) - 46) if content[i : i + 4] == b"PK\1\2"]
    one, other = rng.choice(entries, 2)
    content[one + 42 : one + 46] = content[other + 42 : other + 46]  # the offset of another member
    path.write_bytes(content)


def wrong_sizes(path: Path, rng: np.random.Generator, mark: Path) -> None:
    content = bytearray(path.read_bytes())
    entries = [i for i in range(len(content) - 46) if content[i : i + 4] == b"PK\1\2"]
    entry, field = int(rng.choice(entries)), int(rng.choice([8, 10, 16, 20, 24, 28, 30, 32, 42]))
    content[entry + field : entry + field + 4] = struct.pack("<I", int(rng.choice([0, 1, 8, 12, 14, 2**31, 2**32 - 1])))
    path.write_bytes(content)


def other_compression(path: Path, rng: np.random.Generator, mark: Path) -> None:
    how = [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA][rng.integers(3)]
    write_members(path, members(path), how)


def damaged_compression(path: Path, rng: np.random.Generator, mark: Path) -> None:
    other = members(path)
    write_members(path, other, zipfile.ZIP_DEFLATED)
    flip_bits(path, rng, mark)


def bomb(path: Path, rng: np.random.Generator, mark: Path) -> None:
    """Replace a member by an array of gigabytes of zeros, which takes kilobytes in the file."""
    name, content = pick(path, rng), members(path)
    del content[name]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for one, kept in content.items():
            archive.writestr(one, kept)
        with archive.open(name, "w") as member:
            member.write(npy_header({"descr": "|u1", "fortran_order": False, "shape": (2**20 * 40,)}))
            for _ in range(40):
                member.write(bytes(2**20))
    size = struct.pack("<I", 2**32 - 2**20)  # it claims to be larger yet
    whole = bytearray(path.read_bytes())
    whole[whole.rindex(b"PK\1\2") + 24 : whole.rindex(b"PK\1\2") + 28] = size
    path.write_bytes(whole)


ZIP = [
    duplicate_member,
    climbing_member,
    overlapping_members,
    wrong_sizes,
    other_compression,
    damaged_compression,
    bomb,
]


# ---- arrays ----


def npy_header(header: Any) -> bytes:
    text = (header if isinstance(header, str) else repr(header)).encode("latin1", "replace") + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", min(len(text), 65_535)) + text


HEADERS: list[Any] = [
    *({"descr": "<f8", "fortran_order": False, "shape": shape} for shape in ((2**40,), (-1,), (0, 2**60), (1.5,))),
    *({"descr": "<f8", "fortran_order": False, "shape": shape} for shape in (7, None, (True,), (10**30,), (2,) * 80)),
    *(
        {"descr": descr, "fortran_order": False, "shape": (1,)}
        for descr in ("|O", "<U1000000000", "x", 7, [("a", "|O")])
    ),
    *({"descr": descr, "fortran_order": False, "shape": (2,)} for descr in (("<f8", (10**9,)), "|V0", "M8[s]", "<c16")),
    {"descr": "<f8", "fortran_order": 7, "shape": (1,)},
    *({"descr": "<f8"}, [], 7, "{", "(" * 5_000, "[" * 60_000, "__import__('os').system('touch x')", "{}", "\0"),
]


def forged_header(path: Path, rng: np.random.Generator, mark: Path) -> None:
    name, content = pick(path, rng), members(path)
    write_members(path, content | {name: npy_header(HEADERS[rng.integers(len(HEADERS))]) + content[name][128:]})


def pickled_array(path: Path, rng: np.random.Generator, mark: Path) -> None:
    name, content = pick(path, rng), members(path)
    data = io.BytesIO()
    np.save(data, np.array([Trap(mark)], object), allow_pickle=True)
    write_members(path, content | {name: data.getvalue() if rng.random() < 0.5 else pickle.dumps(Trap(mark))})


def other_array(path: Path, rng: np.random.Generator, mark: Path) -> None:
    """Replace an array by one of another type, shape or content."""
    name, content = pick(path, rng), members(path)
    array = np.load(io.BytesIO(content[name]), allow_pickle=False)
    changes: list[Callable[[], Any]] = [
        lambda: np.full(array.shape, np.nan),
        lambda: np.full(array.shape, np.inf, np.float32),
        lambda: np.full(array.shape, "text"),
        lambda: np.full(array.shape, b"\xff\xfe"),
        lambda: np.full(array.shape, -1),
        lambda: np.full(array.shape, 2**62),
        lambda: np.full(array.shape, 2**63, np.uint64),
        lambda: array.reshape(-1)[:0],
        lambda: array.reshape(-1)[:1].reshape(()),
        lambda: array[None],
        lambda: np.concatenate([array.reshape(-1)] * 3),
        lambda: np.zeros((0, 10**12)),
        lambda: np.zeros((10**12, 0)),
        lambda: np.full(array.shape, 1j),
        lambda: np.full(array.shape, 7, "M8[s]"),
        lambda: np.zeros(array.shape, [("a", "f4"), ("b", "i4")]),
        lambda: array.astype(np.float64) if array.dtype.kind in "biuf" else array,
        lambda: np.asfortranarray(array),
    ]
    data = io.BytesIO()
    np.save(data, changes[rng.integers(len(changes))](), allow_pickle=False)
    write_members(path, content | {name: data.getvalue()})


ARRAYS = [forged_header, pickled_array, other_array, other_array]


def forge_member_json(path: Path, member: str, rng: np.random.Generator, *, as_text: bool) -> None:
    """Change the JSON that is in a member, as bytes or as a numpy string."""
    content = members(path)
    array = np.load(io.BytesIO(content[member]))
    forged = json.dumps(forge_json(json.loads(str(array) if as_text else array.tobytes()), rng))
    text = {0: "[" * 100_000, 1: "\udcff", 2: "nul"}.get(int(rng.integers(20)), forged)
    data = io.BytesIO()
    np.save(data, np.array(text) if as_text else np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8))
    write_members(path, content | {member: data.getvalue()})


# ---- folders with a manifest ----


def forge_manifest(folder: Path, rng: np.random.Generator, mark: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest.pop("sha256")
    for _ in range(int(rng.integers(1, 3))):
        manifest = forge_json(manifest, rng)
    path.write_bytes(signed(manifest) if isinstance(manifest, dict) else json.dumps(manifest).encode())


def forge_checkpoint(folder: Path, seed: int, mark: Path) -> None:
    """Change the manifest of a checkpoint, or one of its components, and sign it again."""
    rng = np.random.default_rng(seed)
    if rng.random() < 0.4:
        forge_manifest(folder, rng, mark)
        return
    paths = sorted(path for path in folder.iterdir() if path.name != "manifest.json")
    path = paths[rng.integers(len(paths))]
    if path.suffix == ".npz" and rng.random() < 0.4:
        forge_member_json(path, "skeleton.npy", rng, as_text=False)
    else:
        kinds: list[Any] = [*BYTES, *ZIP, *(ARRAYS * 3 if path.suffix == ".npz" else [torch_pickle] * 6)]
        kinds[rng.integers(len(kinds))](path, rng, mark)
    resign(folder)


def torch_pickle(path: Path, rng: np.random.Generator, mark: Path) -> None:
    """Change the pickle of a file of tensors: bytes of it, or all of it."""
    content = members(path)
    name = next(one for one in content if one.endswith("data.pkl"))
    data = bytearray(content[name])
    if rng.random() < 0.2:
        data = bytearray(pickle.dumps({"weights": Trap(mark)}, 2))
    else:
        for _ in range(int(rng.integers(1, 4))):
            data[rng.integers(len(data))] = int(rng.integers(256))
    write_members(path, content | {name: bytes(data)})


def forge_npz(path: Path, seed: int, mark: Path, *, member: str, as_text: bool) -> None:
    """Change an npz file: its JSON, its arrays, its directory, its bytes."""
    rng = np.random.default_rng(seed)
    if rng.random() < 0.4:
        forge_member_json(path, member, rng, as_text=as_text)
        return
    kinds: list[Any] = [*BYTES, *ZIP, *ARRAYS * 3]
    kinds[rng.integers(len(kinds))](path, rng, mark)


def forge_safetensors(path: Path, seed: int, mark: Path) -> None:
    """Change the header or the bytes of a safetensors file."""
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5:
        BYTES[rng.integers(len(BYTES))](path, rng, mark)
        return
    content = path.read_bytes()
    n_header = int.from_bytes(content[:8], "little")
    header = json.dumps(forge_json(json.loads(content[8 : 8 + n_header]), rng)).encode("utf-8", "surrogatepass")
    length = int(rng.choice([len(header)] * 8 + [0, 2**63, 2**32]))
    path.write_bytes(struct.pack("<Q", length) + header + content[8 + n_header :])


def forge_hdf5(path: Path, seed: int, mark: Path) -> None:
    """Change a dataset, a name or the bytes of an HDF5 file."""
    import h5py

    rng = np.random.default_rng(seed)
    if rng.random() < 0.4:
        BYTES[rng.integers(len(BYTES))](path, rng, mark)
        return
    with h5py.File(path, "r+") as file:
        found: list[str] = []
        file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
        name = sorted(found)[rng.integers(len(found))]
        array = file[name][()]
        del file[name]
        huge = tuple(rng.choice([1, 10**6, 10**12], 2).tolist())
        changes: list[Callable[[], Any]] = [
            lambda: None,
            lambda: file.create_dataset(name, huge, "f8", chunks=(1, 1)),
            lambda: file.create_dataset(name, (10**9,), "u1", chunks=(10**8,), compression="gzip"),
            lambda: file.create_dataset(name, data=np.full(array.shape, np.nan)),
            lambda: file.create_dataset(name, data=np.full(array.shape, -1)),
            lambda: file.create_dataset(name, data=np.full(array.shape, "text", h5py.string_dtype())),
            lambda: file.create_dataset(name, data=np.frombuffer(pickle.dumps(Trap(mark)), np.byte)),
            lambda: file.create_dataset(name, data=h5py.Empty("f8")),
            lambda: file.create_dataset(name, (3,), h5py.vlen_dtype(np.int32)),
            lambda: file.create_dataset(name, (3,), h5py.ref_dtype),
            lambda: file.create_dataset(name, array.shape, "f8", external=[("/dev/zero", 0, 2**20)]),
            lambda: file.__setitem__(name, h5py.ExternalLink("/dev/zero", "/a")),
            lambda: file.__setitem__(name, h5py.SoftLink(f"/{name}")),
            lambda: file.create_group(name),
            lambda: file.create_dataset(name, data=np.concatenate([array.reshape(-1)] * 2)),
            lambda: file.create_dataset(name, data=np.frombuffer(b"[" * 10**5, np.uint8)),
            lambda: file.create_dataset(name, data=forged_text(array, rng)),
        ]
        changes[rng.integers(len(changes))]()


def forge_minari(folder: Path, seed: int, mark: Path) -> None:
    """Change the metadata of a Minari dataset, a space in them, the bytes of a file, or its HDF5 file."""
    rng = np.random.default_rng(seed)
    path, kind = folder / "data" / "metadata.json", rng.random()
    if kind < 0.4:
        forge_hdf5(folder / "data" / "main_data.hdf5", seed, mark)
    elif kind < 0.5:
        BYTES[rng.integers(len(BYTES))](path, rng, mark)
    else:
        path.write_text(json.dumps(forged_metadata(json.loads(path.read_text()), rng, mark)))


def forged_metadata(about: dict[str, Any], rng: np.random.Generator, mark: Path) -> Any:
    """Change one value, one in a space, or have the spaces come from an environment whose making leaves a mark."""
    name, kind = ("observation_space", "action_space")[rng.integers(2)], rng.random()
    if kind < 0.2:
        trap = env_spec("os:open", path=str(mark), flags=os.O_CREAT | os.O_RDWR)
        return {one: value for one, value in about.items() if one != name} | {"env_spec": trap}
    if kind < 0.6:
        return about | {name: json.dumps(forge_json(json.loads(about[name]), rng))}
    if kind < 0.7:
        space = MINARI_SPACES[rng.integers(len(MINARI_SPACES))]
        return about | {name: space if isinstance(space, str) else json.dumps(space)}
    if kind < 0.8:
        return about | {"total_episodes": EVIL[rng.integers(len(EVIL))]}
    return forge_json(about, rng)


MINARI_SPACES: list[Any] = [
    *("[" * 100_000, "{", "", "nul", '{"type": "Box"}'),
    *(
        {"type": "Box", "dtype": "uint8", "shape": shape, "low": 0, "high": 1}
        for shape in ([10**8], [10**11], [2] * 80)
    ),
    *({"type": "Box", "dtype": dtype, "shape": [1], "low": [0], "high": [1]} for dtype in ("|O", "<U1000000000", "x")),
    {"type": "Box", "dtype": "float32", "shape": [1], "low": [1], "high": [0]},
    *({"type": "Discrete", "dtype": "int64", "start": 0, "n": n} for n in (0, -1, 10**12, 10**30)),
    *({"type": "MultiBinary", "n": n} for n in (10**11, [10**6, 10**6], -1, [])),
    {"type": "MultiDiscrete", "dtype": "int64", "nvec": [10**12] * 3, "start": [0]},
    {"type": "Text", "max_length": 10**12, "min_length": 0, "charset": "a"},
    {"type": "Tuple", "subspaces": []},
    {"type": "Dict", "subspaces": nested(90)},
]


def forged_text(array: Any, rng: np.random.Generator) -> Any:
    """Change JSON that is in an array of bytes; other arrays stay."""
    try:
        return np.frombuffer(json.dumps(forge_json(json.loads(array.tobytes()), rng)).encode(), np.uint8)
    except ValueError:
        return array


def fresh(source: Path, target: Path) -> Path:
    """Copy valid files to a place that is free."""
    if target.is_symlink() or target.is_file() or target.is_fifo():
        target.unlink()
    shutil.rmtree(target, ignore_errors=True)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)  # type: ignore[operator]
    return target

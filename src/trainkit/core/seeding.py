"""Independent named random streams, derived from one root seed."""

import hashlib
import secrets

import numpy as np


def derive(root: int, *names: str | int) -> int:
    """Derive a 63-bit seed from a root and a path of names: equal paths give equal seeds, others independent ones.

    A hash rather than a counter, so that adding a part does not change the streams of the others.
    """
    path = "/".join(map(str, (root, *names)))
    digest = hashlib.blake2b(path.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(root: int, *names: str | int) -> np.random.Generator:
    """Return numpy's generator for one named stream."""
    return np.random.default_rng(derive(root, *names))


def episode_seed(root: int, env_id: int, episode: int) -> int:
    """Return the 32-bit seed of `env.reset` for one episode of one environment."""
    return derive(root, env_id, episode) & 0xFFFFFFFF


def fresh_root() -> int:
    """Draw a root seed from the operating system, for runs without a seed."""
    return secrets.randbits(63)

"""Counter hashes: the whole randomness of the data pipeline, as pure functions of integers.

splitmix64's finaliser over numpy arrays, about 8 ns an element. Nothing here keeps a state, so nothing needs saving,
and the numbers do not depend on the version of a random generator.
"""

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
_GOLDEN = 0x9E3779B97F4A7C15
_ALL = (1 << 64) - 1


def mix(values: U64) -> U64:
    """splitmix64's finaliser of each value: a bijection of 64-bit integers that looks random."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def key(*parts: int | str) -> int:
    """A 64-bit key of integers and words, for instance (seed, "units", source, epoch)."""
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(start: int, counters: U64) -> U64:
    """The random 64-bit numbers at positions `counters` of the stream `start`."""
    return mix(counters * np.uint64(_GOLDEN) + np.uint64(start))


def permutation(start: int, size: int) -> NDArray[np.int64]:
    """A permutation of range(size), a pure function of the key `start`."""
    return np.argsort(stream(start, np.arange(size, dtype=np.uint64)), kind="stable")


def row_hash(index: int, input_ids: NDArray[np.int32], labels: NDArray[np.int32], lengths: Sequence[int]) -> int:
    """64-bit hash of one row: its index in the step, what the model sees, its labels, and where its pieces end."""
    digest = hashlib.blake2b(array("i", (index, len(lengths), *lengths)), digest_size=8)
    digest.update(input_ids.data)
    digest.update(labels.data)
    return int.from_bytes(digest.digest(), "little")


def add_hashes(*hashes: int) -> int:
    """Sum mod 2**64: the hash of a step from those of its rows, in any grouping."""
    return sum(hashes) & _ALL


def format_hash(value: int) -> str:
    """16 hex digits of a (sum of) row hash(es), taken mod 2**64."""
    return f"{value & _ALL:016x}"


def digest(*parts: bytes | str) -> str:
    """16 hex digits that identify contents, such as a tokenizer or a list of files."""
    whole = hashlib.blake2b(digest_size=8)
    for part in parts:
        whole.update(part.encode() if isinstance(part, str) else part)
        whole.update(b"\x1f")
    return whole.hexdigest()

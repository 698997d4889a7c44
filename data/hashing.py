"""All randomness of the data pipeline: a counter-based generator, whose numbers are pure functions of (key, position).

It is splitmix64 over numpy arrays, about 8 ns a number. There is no state to save, and no library's version matters.
"""

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # splitmix64's step from one position to the next
_LARGEST = (1 << 64) - 1


def mix(values: U64) -> U64:
    """splitmix64's finaliser of each value: a bijection of 64-bit integers whose results look random."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def key(*parts: int | str) -> int:
    """The 64-bit key of a sequence of random numbers, from its names: for instance (seed, "units", source, epoch)."""
    text = "\x1f".join(f"{type(part).__name__[0]}{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def random_numbers(key: int, positions: U64) -> U64:
    """The 64-bit random numbers at `positions` of the sequence that `key` names."""
    return mix(positions * np.uint64(_GOLDEN_RATIO) + np.uint64(key))


def permutation(key: int, size: int) -> NDArray[np.int64]:
    """A random permutation of range(size), a pure function of `key`."""
    return np.argsort(random_numbers(key, np.arange(size, dtype=np.uint64)), kind="stable")


def row_hash(index: int, input_ids: NDArray[np.int32], labels: NDArray[np.int32], lengths: Sequence[int]) -> int:
    """64-bit hash of one row: its index in the step, what the model sees, its labels, and where its pieces end."""
    whole = hashlib.blake2b(array("i", (index, len(lengths), *lengths)), digest_size=8)
    whole.update(input_ids.data)
    whole.update(labels.data)
    return int.from_bytes(whole.digest(), "little")


def add_hashes(*hashes: int) -> int:
    """Sum mod 2**64: the hash of a step from those of its rows, in any grouping."""
    return sum(hashes) & _LARGEST


def format_hash(value: int) -> str:
    """16 hex digits of a (sum of) row hash(es), taken mod 2**64."""
    return f"{value & _LARGEST:016x}"


def digest(*parts: bytes | str) -> str:
    """16 hex digits that identify contents, such as a tokenizer or a list of files."""
    whole = hashlib.blake2b(digest_size=8)
    for part in parts:
        whole.update(part.encode() if isinstance(part, str) else part)
        whole.update(b"\x1f")
    return whole.hexdigest()

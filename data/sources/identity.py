"""What tells that two places hold the same text: names, sizes, and digests of contents; never paths or times.

A corpus that was moved, copied again, touched, or staged from a store to a local disk is the same corpus. Each file is
known by its name below the fixed part of its source's path, its size, and a digest of its first and last 64 KiB, as
they lie on the disk. Of a source of more than 256 files, 256 are read, chosen by a hash of their names. Cost: two reads
of 64 KiB a file, in 16 threads.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from configs import InputError
from data import hashing
from data.config import SourceConfig
from data.sources.files import is_remote
from data.sources.remote import read_remote_range
from data.sources.unit import File, FileIdentity, Plan

READ_FILES = 256
EDGE_BYTES = 64 << 10
THREADS = 16
GLOB_CHARACTERS = "*?["


def identified(plan: Plan) -> Plan:
    """The plan with what identifies its files. Raises InputError naming a file that cannot be read."""
    names = _names(plan.source, plan.files)
    chosen = sorted(range(len(names)), key=lambda i: hashing.key("identity", names[i]))[:READ_FILES]
    digests = [""] * len(names)
    if plan.knows_files:
        with ThreadPoolExecutor(THREADS) as pool:
            for i, digest in zip(chosen, pool.map(_digest, (plan.files[i] for i in chosen)), strict=True):
                digests[i] = digest
    identities = [
        FileIdentity(name, file.size, digest) for name, file, digest in zip(names, plan.files, digests, strict=True)
    ]
    return plan._replace(identities=identities)


def listed(plan: Plan) -> dict[str, list[Any]]:
    """Name → [size, digest] of the files that were read, for a state: what a later start can name a change by."""
    return {identity.name: [identity.size, identity.digest] for identity in plan.identities if identity.digest}


def first_change(then: dict[str, list[Any]], now: dict[str, list[Any]]) -> str | None:
    """The first file, by name, that differs between two lists of `listed`, and how."""
    for name in sorted(then.keys() | now.keys()):
        if name not in now:
            return f"the file '{name}' is missing"
        if name not in then:
            return f"the file '{name}' is new"
        (old_size, old_digest), (size, digest) = then[name], now[name]
        if old_size != size:
            return f"the file '{name}' had {old_size} bytes and has {size}"
        if old_digest != digest:
            return f"the contents of the file '{name}' changed"
    return None


def _names(source: SourceConfig, files: Sequence[File]) -> list[str]:
    """Each file's path below the fixed part of the source's path: the folder, or what is before the first wildcard."""
    place = source.path or source.hub
    if any(character in place for character in GLOB_CHARACTERS) and not os.path.exists(place):
        wildcard = min(place.find(character) % (len(place) + 1) for character in GLOB_CHARACTERS)
        fixed = place[: place.rfind("/", 0, wildcard) + 1]
    elif len(files) == 1 and files[0].path.rstrip("/") == place.rstrip("/"):
        fixed = place[: place.rstrip("/").rfind("/") + 1]
    else:
        fixed = place.rstrip("/") + "/"
    return [file.path.removeprefix(fixed) for file in files]


def _digest(file: File) -> str:
    head = _read(file, 0, min(EDGE_BYTES, file.size))
    tail = _read(file, max(len(head), file.size - EDGE_BYTES), file.size)
    return hashing.digest(head, tail)


def _read(file: File, start: int, end: int) -> bytes:
    if start >= end:
        return b""
    if is_remote(file.path):
        return read_remote_range(file.path, start, end)
    try:
        with open(file.path, "rb", buffering=0) as stream:
            stream.seek(start)
            return stream.read(end - start)
    except OSError as error:
        raise InputError(f"cannot read {file.path}: {error.strerror}") from None

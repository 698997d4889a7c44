"""The token cache: the ids of whole documents, written once by the sources' readers, read as memory-mapped Arrow.

A file a unit holds its records in the readers' order, with cursors and faults, so order, masks, counts and states are
those without the cache, and a run may resume with or without it. Ids take 2 bytes where 65,536 suffice, else 4.
`python -m data cache` writes it; `cache.json`, the marker, says for what, and whether it is complete.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from configs import InputError
from data.config import DataConfig
from data.sources.unit import Cursor, Plan, Record
from data.stream.state import cache_header
from data.tokenizer.load import LoadedTokenizer

MARKER = "cache.json"
RECORDS_PER_BATCH = 256


def check_cache(config: DataConfig, tokenizer: str, plans: list[Plan]) -> dict[str, Any]:
    """The marker of a complete and fresh cache. Raises InputError that says what is wrong with it."""
    marker = read_marker(config.cache)
    if marker is None or not marker["complete"]:
        problem = "is not complete" if marker else "holds no cache"
        raise InputError(f"data.cache: '{config.cache}' {problem}; write it with `python -m data cache`")
    for name, value in cache_header(config, tokenizer, plans, marker["header"]["version"]).items():
        if marker["header"].get(name) != value:
            raise InputError(f"data.cache: '{config.cache}' is stale: {name} changed; remove it and write it again")
    return marker


def read_marker(folder: str) -> dict[str, Any] | None:
    """What cache.json says; None where there is none."""
    path = Path(folder) / MARKER
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def unit_file(folder: str, source: int, unit: int) -> Path:
    """The file of unit number `unit` of source number `source`."""
    return Path(folder) / f"{source:03d}-{unit:06d}.arrow"


def schema(config: DataConfig, loaded: LoadedTokenizer) -> pa.Schema:
    """The columns of a unit's file; `offset`, `number` and `part` are the cursor behind the record."""
    narrow = config.mask.unit == "token" and loaded.special.vocab_size <= 1 << 16  # words need the highest bit of 32
    integers = {name: pa.int64() for name in ("offset", "number", "part", "characters")}
    ids = pa.large_list(pa.uint16() if narrow else pa.uint32())
    return pa.schema({"place": pa.string(), **integers, "fault": pa.string(), "detail": pa.string(), "ids": ids})


def cached_records(folder: str, source: int, unit: int, cursor: Cursor) -> Iterator[Record]:
    """The records of a unit from `cursor` on, with ids in place of text."""
    with pa.memory_map(str(unit_file(folder, source, unit))) as mapped:
        reader = pa.ipc.open_file(mapped)
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            cursors = np.stack([_integers(batch.column(name)) for name in ("offset", "number", "part")], axis=1)
            first = int(_not_after(cursors, cursor).sum())
            if first == len(batch):
                continue
            locations, faults, details = (batch.column(name).to_pylist() for name in ("place", "fault", "detail"))
            characters = _integers(batch.column("characters"))
            ends = _integers(batch.column("ids").offsets)
            ids = _integers(batch.column("ids").values).astype(np.uint32)
            for row in range(first, len(batch)):
                after = Cursor(*map(int, cursors[row]))
                ids_of_row = ids[ends[row] - ends[0] : ends[row + 1] - ends[0]]
                yield Record(locations[row], "", after, faults[row], details[row], ids_of_row, int(characters[row]))


def _integers(column: pa.Array) -> NDArray[Any]:
    """A view; `to_numpy` would import pandas first, 0.6 s in every worker."""
    return np.from_dlpack(column)


def _not_after(cursors: NDArray[np.int64], cursor: Cursor) -> NDArray[np.bool_]:
    """Which cursors (n, 3), compared as tuples, are no larger than `cursor`: the records before it."""
    offset, number, part = cursors.T
    same_number = (number < cursor.number) | ((number == cursor.number) & (part <= cursor.part))
    return (offset < cursor.offset) | ((offset == cursor.offset) & same_number)

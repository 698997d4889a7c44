"""`python -m data cache`: token ids of whole documents, written once by the same readers, read as memory-mapped Arrow.

A file a unit holds its records in the readers' order, with cursors and faults, so order, masks, counts and states are
those without the cache, and a run may go on with or without it. Ids take 2 bytes where 65,536 suffice, else 4.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.progress import Progress

from configs import InputError, load_config
from data.config import DataConfig, DataRun
from data.progress import progress_bar, watched
from data.sources.lines import Cursor, Record, read
from data.sources.unit import Plan, Unit, plan
from data.tokenizer.load import LoadedTokenizer, encode, load_tokenizer

VERSION = 1
BATCH = 256
MARKER = "cache.json"


def header_of(config: DataConfig, tokenizer: str, plans: list[Plan]) -> dict[str, Any]:
    """All that the contents of a cache depend on."""
    return {
        "version": VERSION,
        "tokenizer": tokenizer,
        "manifest": [a_plan.manifest for a_plan in plans],
        "num_lanes": config.num_lanes,
        "mask.unit": config.mask.unit,
        "max_document_bytes": config.max_document_bytes,
        "cut_long": config.bad_input.too_long == "replace",
    }


def check_cache(config: DataConfig, tokenizer: str, plans: list[Plan]) -> dict[str, Any]:
    """The marker of a whole and fresh cache. Raises InputError that says what is wrong with it."""
    marker = _marker(config.cache)
    if marker is None or not marker["complete"]:
        state = "is not complete" if marker else "holds no cache"
        raise InputError(f"data.cache: '{config.cache}' {state}; write it with `python -m data cache`")
    for name, value in header_of(config, tokenizer, plans).items():
        if marker["header"].get(name) != value:
            raise InputError(f"data.cache: '{config.cache}' is stale: {name} changed; remove it and write it again")
    return marker


def _marker(folder: str) -> dict[str, Any] | None:
    path = Path(folder) / MARKER
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def cached_records(folder: str, source: int, number: int, cursor: Cursor) -> Iterator[Record]:
    """The records of unit `number` of a source from `cursor` on, with ids in place of text."""
    with pa.memory_map(str(_path(Path(folder), source, number))) as mapped:
        reader = pa.ipc.open_file(mapped)
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            cursors = np.stack([_integers(batch.column(name)) for name in ("offset", "number", "part")], axis=1)
            first = int(_not_after(cursors, cursor).sum())
            if first == len(batch):
                continue
            places, faults, details = (batch.column(name).to_pylist() for name in ("place", "fault", "detail"))
            characters = _integers(batch.column("characters"))
            ends = _integers(batch.column("ids").offsets)
            ids = _integers(batch.column("ids").values).astype(np.uint32)
            for row in range(first, len(batch)):
                after: Any = tuple(map(int, cursors[row]))
                of_row = ids[ends[row] - ends[0] : ends[row + 1] - ends[0]]
                yield Record(places[row], "", after, faults[row], details[row], of_row, int(characters[row]))


def _integers(column: pa.Array) -> NDArray[Any]:
    """A view; `to_numpy` would import pandas first, 0.6 s in every worker."""
    return np.from_dlpack(column)


def _not_after(cursors: NDArray[np.int64], cursor: Cursor) -> NDArray[np.bool_]:
    """Which cursors (n, 3), compared as tuples, are no larger than `cursor`: the records before it."""
    offset, number, part = cursors.T
    same_number = (number < cursor[1]) | ((number == cursor[1]) & (part <= cursor[2]))
    return (offset < cursor[0]) | ((offset == cursor[0]) & same_number)


def main(arguments: list[str]) -> int:
    """Write the token cache; run again after an interruption, it goes on."""
    if not arguments:
        raise InputError("usage: python -m data cache CONFIG [key=value ...]")
    run = load_config(DataRun, arguments[0], arguments[1:], ignore_other_sections=True)
    print(json.dumps(write_cache(run)))
    return 0


def write_cache(run: DataRun) -> dict[str, Any]:
    """Write `data.cache` and return its marker (documents and tokens by source). Raises InputError if it is stale."""
    config = run.data
    if not config.cache:
        raise InputError("the key 'data.cache' (a folder) is required")
    folder = Path(config.cache)
    loaded = load_tokenizer(run.tokenizer, config.mask.unit)
    plans = [plan(source, config.num_lanes, config.bad_input) for source in config.sources]
    header = header_of(config, loaded.digest, plans)
    marker = _marker(config.cache)
    if marker and marker["complete"]:
        return check_cache(config, loaded.digest, plans)
    if marker and marker["header"] != header:
        raise InputError(f"data.cache: '{folder}' was begun for other data or another tokenizer; remove it first")
    folder.mkdir(parents=True, exist_ok=True)
    _write_marker(folder, {"complete": False, "header": header})
    counts = []
    with progress_bar() as bar:
        for i, a_plan in enumerate(plans):
            units = bar.track(a_plan.units, description=f"source {i + 1}")
            sizes = [
                _write_unit(config, loaded, a_plan, unit, _path(folder, i, k), bar) for k, unit in enumerate(units)
            ]
            counts.append({"documents": sum(d for d, _ in sizes), "tokens": sum(t for _, t in sizes)})
    marker = {"complete": True, "header": header, "sources": counts}
    _write_marker(folder, marker)
    return marker


def _write_marker(folder: Path, marker: dict[str, Any]) -> None:
    (folder / "cache.tmp").write_text(json.dumps(marker), encoding="utf-8")
    os.replace(folder / "cache.tmp", folder / MARKER)


def _path(folder: Path, source: int, number: int) -> Path:
    return folder / f"{source:03d}-{number:06d}.arrow"


def _write_unit(
    config: DataConfig, loaded: LoadedTokenizer, a_plan: Plan, unit: Unit, path: Path, bar: Progress
) -> tuple[int, int]:
    """Write one unit if it is not there; its documents and tokens."""
    if path.is_file():
        return _sizes(path)
    narrow = config.mask.unit == "token" and loaded.special.vocab_size <= 1 << 16
    integers = {name: pa.int64() for name in ("offset", "number", "part", "characters")}
    ids = pa.large_list(pa.uint16() if narrow else pa.uint32())
    schema = pa.schema({"place": pa.string(), **integers, "fault": pa.string(), "detail": pa.string(), "ids": ids})
    cut_long = config.bad_input.too_long == "replace"
    records = watched(bar, read(unit, (unit.start, 0, 0), a_plan.source, config.max_document_bytes, cut_long))
    temporary = path.with_suffix(".tmp")
    with pa.ipc.new_file(str(temporary), schema) as writer:
        while batch := [record for _, record in zip(range(BATCH), records, strict=False)]:
            writer.write_batch(_to_arrow(batch, loaded, schema))
    os.replace(temporary, path)
    return _sizes(path)


def _to_arrow(records: list[Record], loaded: LoadedTokenizer, schema: pa.Schema) -> pa.RecordBatch:
    arrays = encode(loaded, [record.text for record in records])
    ends = np.cumsum([0, *map(len, arrays)])
    values = pa.array(np.concatenate(arrays), schema.field("ids").type.value_type)
    columns: list[list[Any]] = [[record.place for record in records]]
    columns += [[record.cursor[i] for record in records] for i in range(3)]
    columns += [[getattr(record, name) for record in records] for name in ("length", "fault", "detail")]
    typed = [pa.array(column, schema.field(i).type) for i, column in enumerate(columns)]
    return pa.record_batch([*typed, pa.LargeListArray.from_arrays(pa.array(ends), values)], schema=schema)


def _sizes(path: Path) -> tuple[int, int]:
    with pa.memory_map(str(path)) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
        tokens = sum(len(chunk.values) for chunk in table.column("ids").chunks)
        return len(table), tokens

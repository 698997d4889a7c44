"""`python -m data cache`: writes the token cache that `data.cache` names."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from configs import InputError, load_config
from configs.atomic import open_replacing, write_text
from data.config import DataRun
from data.progress import count_records, progress_bar
from data.sources.formats import read
from data.sources.unit import Record
from data.stream.cache import MARKER, RECORDS_PER_BATCH, check_cache, read_marker, schema, unit_file
from data.stream.state import cache_header, plan_sources
from data.tokenizer.load import LoadedTokenizer, encode, load_tokenizer


def main(arguments: list[str]) -> int:
    """Write the token cache; run again after an interruption, it continues."""
    run = load_config(DataRun, arguments[0], arguments[1:], ignore_other_sections=True)
    print(json.dumps(write_cache(run)))
    return 0


def write_cache(run: DataRun) -> dict[str, Any]:
    """Write `data.cache` and return its marker (documents and tokens by source). Raises InputError if it is stale."""
    config = run.data
    if not config.cache:
        raise InputError("the key 'data.cache' (a folder) is required")
    loaded = load_tokenizer(run.tokenizer, config.mask.unit)
    plans = plan_sources(config)
    header = cache_header(config, loaded.digest, plans)
    marker = read_marker(config.cache)
    if marker and marker["complete"]:
        return check_cache(config, loaded.digest, plans)
    if marker and marker["header"] != header:
        raise InputError(f"data.cache: '{config.cache}' was begun for other data or another tokenizer; remove it first")
    folder = Path(config.cache)
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*.tmp"):  # of a process that was killed
        leftover.unlink()
    write_text(folder / MARKER, json.dumps({"complete": False, "header": header}))
    sources = []
    with progress_bar() as bar:
        for number, a_plan in enumerate(plans):
            units = bar.track(a_plan.units, description=f"source {number + 1}")
            documents = tokens = 0
            for i, unit in enumerate(units):
                path = unit_file(config.cache, number, i)
                if not path.is_file():
                    limit, cut_long = config.max_document_bytes, config.cuts_long_documents
                    records = read(unit, unit.first, a_plan.source, limit, cut_long)
                    _write_unit(path, count_records(bar, records), loaded, schema(config, loaded))
                documents_of_unit, tokens_of_unit = _count(path)
                documents, tokens = documents + documents_of_unit, tokens + tokens_of_unit
            sources.append({"documents": documents, "tokens": tokens})
    marker = {"complete": True, "header": header, "sources": sources}
    write_text(folder / MARKER, json.dumps(marker))
    return marker


def _write_unit(path: Path, records: Iterator[Record], loaded: LoadedTokenizer, columns: pa.Schema) -> None:
    with open_replacing(path) as file, pa.ipc.new_file(file, columns) as writer:
        while batch := list(itertools.islice(records, RECORDS_PER_BATCH)):
            writer.write_batch(_to_arrow(batch, loaded, columns))


def _to_arrow(records: list[Record], loaded: LoadedTokenizer, schema: pa.Schema) -> pa.RecordBatch:
    ids = encode(loaded, [record.text for record in records])
    ends = np.cumsum([0, *map(len, ids)])
    values = pa.array(np.concatenate(ids), schema.field("ids").type.value_type)
    columns: list[list[Any]] = [[record.location for record in records]]
    columns += [[record.cursor[i] for record in records] for i in range(3)]
    columns += [[getattr(record, name) for record in records] for name in ("length", "fault", "detail")]
    typed = [pa.array(column, schema.field(i).type) for i, column in enumerate(columns)]
    return pa.record_batch([*typed, pa.LargeListArray.from_arrays(pa.array(ends), values)], schema=schema)


def _count(path: Path) -> tuple[int, int]:
    """Documents (with those that are faults) and tokens of a unit's file."""
    with pa.memory_map(str(path)) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
        return len(table), sum(len(chunk.values) for chunk in table.column("ids").chunks)

"""Hugging Face data sets as streams: a unit is a shard, or every k-th row of one; a cursor's number is the row.

The revision is pinned when a run starts and stands in the manifest. Going on inside a shard reads its rows again from
the start (the cache removes that). `datasets` retries a broken connection by itself and then raises.
"""

import functools
import os
from collections.abc import Iterator
from typing import Any

from data.config import SourceConfig
from data.files import File, find_files
from data.readers import Cursor, Record, column_record, parts
from data.units import Plan, Unit, strides


def hub_plan(source: SourceConfig, num_lanes: int) -> Plan:
    """One unit a shard of the data set."""
    pinned = source.model_copy(update={"revision": _revision(source)})
    stream = _stream(pinned)
    name = f"{source.hub}/{source.name}/{source.split}@{pinned.revision}"
    units = [Unit(source.hub, shard, shard + 1) for shard in range(stream.num_shards)]
    files = find_files(source.hub) if os.path.isdir(source.hub) else [File(name, len(units), 0)]
    return Plan(pinned, files, strides(units, num_lanes))


def _revision(source: SourceConfig) -> str:
    """The commit that a branch or nothing stands for; a local folder has its files' sizes and times instead."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled
    from requests.exceptions import RequestException

    if os.path.isdir(source.hub):
        return ""
    try:
        return str(HfApi().dataset_info(source.hub, revision=source.revision or None).sha)
    except (RequestException, OSError, OfflineModeIsEnabled) as error:
        if source.revision:
            return source.revision
        raise ValueError(f"data.sources: cannot find the data set '{source.hub}' ({error})") from None


@functools.lru_cache(maxsize=8)
def _stream(source: SourceConfig) -> Any:
    from datasets import load_dataset

    revision = source.revision or None
    return load_dataset(source.hub, source.name or None, split=source.split, revision=revision, streaming=True)


def hub_records(unit: Unit, cursor: Cursor, source: SourceConfig, limit: int, cut_long: bool) -> Iterator[Record]:
    """The rows of a shard from `cursor` on."""
    stream = _stream(source)
    _, first, skip = cursor
    for number, row in enumerate(stream.shard(num_shards=stream.num_shards, index=unit.start).skip(first), first):
        if number % unit.stride != unit.remainder:
            continue
        place, after = f"{unit.path}:{unit.start}:{number}", (unit.start, number + 1, 0)
        record = column_record(place, row.get(source.text_column), after, source.text_column, source.text_column in row)
        if not cut_long and len(record.text.encode()) > limit:
            yield Record(place, "", after, "too_long", f"the text is longer than {limit} bytes")
            continue
        yield from parts(record, (unit.start, number, 0), skip, limit)
        skip = 0

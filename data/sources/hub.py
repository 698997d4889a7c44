"""Hugging Face data sets as streams: a unit is a shard, or every k-th row of one; a cursor's number is the row.

The revision is pinned when a run starts and stands in the state. Going on inside a shard reads its rows again from the
start (the cache removes that). What fails on the way is tried again from the row where it stopped, beyond the retries
of huggingface_hub itself (five a request), and is then an error that names the data set.
"""

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

from configs import InputError
from data.config import SourceConfig
from data.sources.files import File, find_files
from data.sources.lines import Cursor, Record, column_record, is_longer, parts
from data.sources.remote import reason, retried
from data.sources.unit import Plan, Unit, strides

COMMIT = re.compile("[0-9a-f]{40}")


def hub_plan(source: SourceConfig, num_lanes: int) -> Plan:
    """One unit a shard. Raises InputError for an unknown name, configuration, split or revision."""
    pinned = source.model_copy(update={"revision": _revision(source)})
    stream = _stream(pinned)
    name = f"{source.hub}/{source.name}/{source.split}@{pinned.revision}"
    units = [Unit(source.hub, shard, shard + 1) for shard in range(stream.num_shards)]
    files = find_files(source.hub) if os.path.isdir(source.hub) else [File(name, len(units), 0)]
    return Plan(pinned, files, strides(units, num_lanes))


def _revision(source: SourceConfig) -> str:
    """The commit that a branch or nothing stands for; a local folder has its files' sizes and times instead."""
    from huggingface_hub import HfApi

    if os.path.isdir(source.hub):
        return ""
    if COMMIT.fullmatch(source.revision):
        return source.revision
    revision = source.revision or None
    return str(retried(_name(source), lambda: HfApi().dataset_info(source.hub, revision=revision).sha, _raise_if_final))


@functools.lru_cache(maxsize=8)
def _stream(source: SourceConfig) -> Any:
    from datasets import load_dataset

    def load() -> Any:
        revision = source.revision or None
        return load_dataset(source.hub, source.name or None, split=source.split, revision=revision, streaming=True)

    return retried(_name(source), load, _raise_if_final)


def num_examples(source: SourceConfig) -> int | None:
    """Rows of the split, where the data set's card tells them."""
    splits = _stream(source).info.splits or {}
    return splits[source.split].num_examples if source.split in splits else None


def _name(source: SourceConfig) -> str:
    return f"data.sources: the data set '{source.hub}'"


def _raise_if_final(name: str, error: Exception) -> None:
    """Raise where trying again cannot help: what is asked for is not there, or the hub may not be asked."""
    from datasets.data_files import EmptyDatasetError
    from datasets.exceptions import DatasetsError
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        raise InputError(f"{name} does not exist on the hub, or is not yours to read") from None
    if isinstance(error, RevisionNotFoundError):
        raise InputError(f"{name} has no such revision on the hub") from None
    if HF_HUB_OFFLINE or isinstance(error, DatasetsError | EmptyDatasetError | InputError):
        raise InputError(f"{name}: {' '.join(str(error).split())}") from None


class _Rows:
    """The rows of a shard from row `number` on; where reading fails, the next call goes on behind the last row."""

    def __init__(self, source: SourceConfig, shard: int, number: int) -> None:
        self._source, self._shard, self.number = source, shard, number
        self._rows: Iterator[dict[str, list[Any]]] | None = None

    def next(self) -> dict[str, Any] | None:
        """The next row; None at the end."""
        if self._rows is None:
            stream = _stream(self._source)
            shard = stream.shard(num_shards=stream.num_shards, index=self._shard)
            self._rows = iter(shard.skip(self.number).iter(batch_size=1))  # iter(shard) leaves most to other workers
        try:
            row = next(self._rows, None)
        except Exception:
            self._rows = None
            raise
        self.number += row is not None
        return row and {name: value for name, [value] in row.items()}


def hub_records(unit: Unit, cursor: Cursor, source: SourceConfig, limit: int, cut_long: bool) -> Iterator[Record]:
    """The rows of a shard from `cursor` on."""
    _, first, skip = cursor
    rows = _Rows(source, unit.start, first)
    while True:
        try:
            row = retried(_name(source), rows.next, _raise_if_broken)
        except BrokenShardError as error:
            if unit.remainder == 0:
                place, detail = f"{unit.path}:{unit.start}:{rows.number}", f"the shard breaks off here ({error})"
                yield Record(place, "", (unit.start, 1 << 62, 0), "broken_file", detail)
            return
        if row is None:
            return
        number = rows.number - 1
        if number % unit.stride != unit.remainder:
            continue
        place, after = f"{unit.path}:{unit.start}:{number}", (unit.start, number + 1, 0)
        record = column_record(place, row.get(source.text_column), after, source.text_column, source.text_column in row)
        if not cut_long and is_longer(record.text, limit):
            yield Record(place, "", after, "too_long", f"the text is longer than {limit} bytes")
            continue
        yield from parts(record, (unit.start, number, 0), skip, limit)
        skip = 0


class BrokenShardError(Exception):
    """A shard whose contents are not what they should be."""


def _raise_if_broken(_: str, error: Exception) -> None:
    """What the contents are to blame for; errors of the connection are OSError, or httpx's."""
    import pyarrow as pa
    from datasets.exceptions import DatasetsError

    true = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if isinstance(true, pa.ArrowException | EOFError | ValueError | DatasetsError) and not isinstance(true, OSError):
        raise BrokenShardError(reason(error)) from None

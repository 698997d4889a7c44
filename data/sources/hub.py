"""Hugging Face data sets as streams: a unit is a shard, or every k-th row of one; a cursor's number is the row.

The revision is pinned when a run starts and saved in the state. Resuming inside a shard reads its rows again from the
start (the cache removes that). What fails on the way is tried again from the row where it stopped, beyond the retries
of huggingface_hub itself (five a request), and is then an error that names the data set.
"""

import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from configs import InputError
from data.config import BadInputConfig, SourceConfig
from data.sources.files import BrokenFileError, find_files
from data.sources.remote import reason, retried
from data.sources.unit import PAST_END, Cursor, File, Plan, Record, Unit, column_record, interleave, unit_records


def plan(source: SourceConfig, num_lanes: int, bad_input: BadInputConfig) -> Plan:
    """One unit a shard. Raises InputError for an unknown name, configuration, split or revision."""
    pinned = source.model_copy(update={"revision": _commit(source)})
    stream = open_stream(pinned)
    name = f"{source.hub}/{source.name}/{source.split}@{pinned.revision}"
    units = [Unit(source.hub, shard, shard + 1) for shard in range(stream.num_shards)]
    files = find_files(source.hub) if os.path.isdir(source.hub) else [File(name, len(units), 0)]
    split = (stream.info.splits or {}).get(source.split)  # where the data set's card has it
    return Plan(pinned, files, interleave(units, num_lanes), split.num_examples if split else None)


def records(unit: Unit, cursor: Cursor, source: SourceConfig, limit: int, cut_long: bool) -> Iterator[Record]:
    """The rows of a shard from `cursor` on; see `formats.read`."""
    shard = _Shard(source, unit.start, cursor.number)
    try:
        yield from unit_records(_rows(shard, unit, source), unit, cursor, limit, cut_long)
    except BrokenFileError as error:
        if unit.remainder == 0:  # once, where several units share the shard
            location, end = f"{unit.path}:{unit.start}:{shard.row}", Cursor(unit.start, PAST_END)
            yield Record(location, "", end, "broken_file", f"the shard breaks off here ({error})")


@functools.lru_cache(maxsize=8)
def open_stream(source: SourceConfig) -> Any:
    """The split of a hub data set as a stream, a datasets.IterableDataset; opened once a process.

    Raises InputError if the data set, configuration, split or revision does not exist, is not yours to read, is not in
    the local cache while offline (HF_HUB_OFFLINE), or cannot be reached.
    """
    from datasets import load_dataset

    def load() -> Any:
        revision = source.revision or None
        return load_dataset(source.hub, source.name or None, split=source.split, revision=revision, streaming=True)

    return retried(_title(source), load, _raise_if_final)


def _commit(source: SourceConfig) -> str:
    """The commit of the revision, by default the newest of main; none of a local folder, which its files identify."""
    from huggingface_hub import HfApi

    if os.path.isdir(source.hub):
        return ""
    if re.fullmatch("[0-9a-f]{40}", source.revision):
        return source.revision
    find = functools.partial(HfApi().dataset_info, source.hub, revision=source.revision or None)
    return str(retried(_title(source), find, _raise_if_final).sha)


def _title(source: SourceConfig) -> str:
    return f"the data set '{source.hub}'"


def _raise_if_final(title: str, error: Exception) -> None:
    """Raise where another attempt cannot help: what is asked for is not there, or the hub may not be asked."""
    from datasets.data_files import EmptyDatasetError
    from datasets.exceptions import DatasetsError
    from huggingface_hub import constants, errors

    if isinstance(error, errors.RepositoryNotFoundError):
        raise InputError(f"{title} does not exist on the hub, or is not yours to read") from None
    if isinstance(error, errors.RevisionNotFoundError):
        raise InputError(f"{title} has no such revision on the hub") from None
    # datasets raises ValueError for an unknown configuration or split
    if constants.HF_HUB_OFFLINE or isinstance(error, DatasetsError | EmptyDatasetError | ValueError):
        raise InputError(f"{title}: {' '.join(str(error).split())}") from None


class _Shard:
    """The rows of a shard from `row` on; where reading fails, the next call continues behind the last row."""

    def __init__(self, source: SourceConfig, shard: int, row: int) -> None:
        self._source, self._shard, self.row = source, shard, row
        self._rows: Iterator[dict[str, list[Any]]] | None = None

    def next_row(self) -> dict[str, Any] | None:
        """The next row; None at the end."""
        if self._rows is None:
            stream = open_stream(self._source)
            shard = stream.shard(num_shards=stream.num_shards, index=self._shard)
            # not iter(shard), which would leave most rows to the DataLoader's other workers
            self._rows = iter(shard.skip(self.row).iter(batch_size=1))
        try:
            row = next(self._rows, None)
        except Exception:
            self._rows = None
            raise
        if row is None:
            return None
        self.row += 1
        return {name: value for name, [value] in row.items()}


def _rows(shard: _Shard, unit: Unit, source: SourceConfig) -> Iterator[Record]:
    """A record for each row of the shard, whatever the stride."""
    while (row := retried(_title(source), shard.next_row, _raise_if_broken)) is not None:
        location, after = f"{unit.path}:{unit.start}:{shard.row - 1}", Cursor(unit.start, shard.row)
        yield column_record(location, row, source.text_column, after)


def _raise_if_broken(_: str, error: Exception) -> None:
    """Raise where the contents are to blame; errors of the connection are OSError, or httpx's."""
    from datasets.exceptions import DatasetsError

    true = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if isinstance(true, pa.ArrowException | EOFError | ValueError | DatasetsError) and not isinstance(true, OSError):
        raise BrokenFileError(reason(error)) from None

"""Parquet and Arrow: a unit is a row group (a record batch), or every k-th row of one; a cursor's number is the row.

Going on inside a row group reads it again from its start. About 16 MB are held at once, of a giant cell five times its
size. A file without a readable footer is one unit, whose reader says so.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data.config import SourceConfig
from data.sources.files import BUFFER, BrokenFileError, File, is_remote, open_file
from data.sources.lines import Cursor, Record, column_record, is_longer, parts
from data.sources.unit import Plan, Unit, strides

DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # what pyarrow raises; a remote file's end is a InputError
BATCH_BYTES, MOST_ROWS = 16 << 20, 1024  # of text read at once, for a mean row


def table_units(source: SourceConfig, files: list[File], num_lanes: int) -> list[Unit]:
    """One unit a row group, in order of files."""
    units = []
    for file in files:
        try:
            count = _parquet(file.path).num_row_groups if source.format == "parquet" else len(_batches(file.path))
        except BrokenFileError:
            count = 1
        units += [Unit(file.path, group, group + 1) for group in range(count)]
    return strides(units, num_lanes)


def num_rows(plan: Plan) -> int | None:
    """Rows of all files of a source of tables; of a data set of the hub what it says, if it does."""
    if plan.source.hub:
        from data.sources.hub import num_examples

        return num_examples(plan.source)
    if plan.source.format == "parquet":
        return sum(_parquet(file.path).metadata.num_rows for file in plan.files if file.size)
    return sum(len(batch) for file in plan.files if file.size for batch in _batches(file.path))


def table_records(unit: Unit, cursor: Cursor, source: SourceConfig, limit: int, cut_long: bool) -> Iterator[Record]:
    """The rows of a row group from `cursor` on."""
    _, first, skip = cursor
    column = source.text_column
    try:
        for number, value in _values(unit, source, first):
            if number % unit.stride != unit.remainder:
                continue
            place, after = f"{unit.path}:{unit.start}:{number}", (unit.start, number + 1, 0)
            record = _record(place, value, after, column)
            if not cut_long and is_longer(record.text, limit):
                yield Record(place, "", after, "too_long", f"the text is longer than {limit} bytes")
                continue
            yield from parts(record, (unit.start, number, 0), skip, limit)
            skip = 0
    except (BrokenFileError, *DAMAGE) as error:
        if unit.remainder == 0:
            yield Record(f"{unit.path}:{unit.start}", "", (unit.start, 1 << 62, 0), "broken_file", f"the file {error}")


def _record(place: str, value: Any, after: Cursor, column: str) -> Record:
    if value is MISSING:
        return column_record(place, None, after, column, False)
    if isinstance(value, pa.Scalar):
        text = value.cast(pa.large_binary()).as_py().decode(errors="replace")
        return Record(place, text, after, "encoding", "invalid UTF-8")
    return column_record(place, value, after, column, True)


MISSING = object()


def _values(unit: Unit, source: SourceConfig, first: int) -> Iterator[tuple[int, Any]]:
    """(row, value) from row `first` on; MISSING without the column, a pyarrow scalar where text is not UTF-8."""
    column, number = source.text_column, 0
    for batch in _record_batches(unit, source):
        size = len(batch)
        if number + size <= first:
            number += size
            continue
        values = batch.column(column) if column in batch.schema.names else None
        if values is not None:
            _check(values)
        for row in range(max(0, first - number), size):
            if values is None:
                yield number + row, MISSING
                continue
            try:
                yield number + row, values[row].as_py()
            except UnicodeDecodeError:
                yield number + row, values[row]
        number += size


WITHOUT_UTF8 = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def _check(values: pa.Array) -> None:
    """Raise ArrowInvalid where damaged offsets would lead out of the memory; pyarrow reads without looking."""
    plain = WITHOUT_UTF8.get(values.type)
    (values if plain is None else values.view(plain)).validate(full=True)


def _record_batches(unit: Unit, source: SourceConfig) -> Iterator[pa.RecordBatch]:
    if source.format == "arrow":
        yield from _batches(unit.path)[unit.start : unit.end]
        return
    file = _parquet(unit.path)
    columns = [source.text_column] if source.text_column in file.schema_arrow.names else None
    group = file.metadata.row_group(unit.start)
    rows = BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
    yield from file.iter_batches(min(max(rows, 1), MOST_ROWS), row_groups=[unit.start], columns=columns)


def _parquet(path: str) -> pq.ParquetFile:
    try:
        file = open_file(path) if is_remote(path) else path
        return pq.ParquetFile(file, buffer_size=BUFFER, page_checksum_verification=True)
    except DAMAGE as error:
        raise BrokenFileError(f"is not readable as parquet ({error})") from None


def _batches(path: str) -> list[pa.RecordBatch]:
    """All record batches of an Arrow file or stream; memory-mapped, so only what is used is read."""
    try:
        source = open_file(path) if is_remote(path) else pa.memory_map(path)
        try:
            reader = pa.ipc.open_file(source)
            return [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except pa.ArrowInvalid:
            source.seek(0)
            return list(pa.ipc.open_stream(source))
    except DAMAGE as error:
        raise BrokenFileError(f"is not readable as Arrow ({error})") from None

"""Parquet and Arrow: a unit is a row group (in Arrow a record batch), or every k-th row of one.

Resuming inside a row group reads it again from its start. About 16 MB are held at once, or five times the size of a
giant cell. A file without a readable footer is one unit, whose records say so.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from data.config import BadInputConfig, SourceConfig
from data.sources.files import BUFFER_BYTES, BrokenFileError, files_of, is_remote, open_file
from data.sources.unit import PAST_END, Cursor, Plan, Record, Unit, column_record, interleave, unit_records

# what pyarrow raises for a damaged file; the end of a remote file's retries is an InputError
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
BATCH_BYTES = 16 << 20  # of text read at once, for a mean row
MAX_BATCH_ROWS = 1024


def plan(source: SourceConfig, num_lanes: int, bad_input: BadInputConfig) -> Plan:
    """One unit a row group, in order of files."""
    files = files_of(source, bad_input)
    units, num_rows = [], 0
    for file in (file for file in files if file.size):
        try:
            if source.format == "arrow":
                batches = _arrow_batches(file.path)
                num_groups, rows = len(batches), sum(map(len, batches))
            else:
                parquet = _open_parquet(file.path)
                num_groups, rows = parquet.num_row_groups, parquet.metadata.num_rows
        except BrokenFileError:
            num_groups, rows = 1, 0
        units += [Unit(file.path, group, group + 1) for group in range(num_groups)]
        num_rows += rows
    return Plan(source, files, interleave(units, num_lanes), num_rows)


def records(unit: Unit, cursor: Cursor, source: SourceConfig, limit: int, cut_long: bool) -> Iterator[Record]:
    """The rows of a row group from `cursor` on; see `formats.read`."""
    try:
        yield from unit_records(_rows(unit, source, cursor.number), unit, cursor, limit, cut_long)
    except (BrokenFileError, *DAMAGE) as error:
        if unit.remainder == 0:  # once, where several units share the row group
            location, end = f"{unit.path}:{unit.start}", Cursor(unit.start, PAST_END)
            yield Record(location, "", end, "broken_file", f"the file {error}")


def record_batches(
    path: str, format: str, group: int | None = None, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a parquet or arrow file, or of one of its row groups, in batches of about 16 MB of a parquet file.

    Of `columns`, those that the file lacks are left out; by default all are read. Raises BrokenFileError for a local
    file that is missing, damaged or of another format, InputError for a remote one that cannot be read.
    """
    try:
        if format == "arrow":
            batches = _arrow_batches(path)
            for batch in batches if group is None else batches[group : group + 1]:
                yield batch if columns is None else batch.select([c for c in columns if c in batch.schema.names])
            return
        file = _open_parquet(path)
        known = None if columns is None else [column for column in columns if column in file.schema_arrow.names]
        for number in range(file.num_row_groups) if group is None else (group,):
            metadata = file.metadata.row_group(number)
            rows = BATCH_BYTES * metadata.num_rows // max(metadata.total_byte_size, 1)
            yield from file.iter_batches(min(max(rows, 1), MAX_BATCH_ROWS), row_groups=[number], columns=known)
    except DAMAGE as error:
        raise BrokenFileError(f"is damaged ({error})") from None


def _rows(unit: Unit, source: SourceConfig, first: int) -> Iterator[Record]:
    """A record for each row of the row group from row `first` on, whatever the stride."""
    column, row = source.text_column, 0
    for batch in record_batches(unit.path, source.format, unit.start, [column]):
        if row + len(batch) <= first:
            row += len(batch)
            continue
        values = batch.column(column) if column in batch.schema.names else None
        if values is not None:
            _validate(values)
        for index in range(max(0, first - row), len(batch)):
            location, after = f"{unit.path}:{unit.start}:{row + index}", Cursor(unit.start, row + index + 1)
            try:
                yield column_record(location, {} if values is None else {column: values[index].as_py()}, column, after)
            except UnicodeDecodeError:
                text = batch.column(column)[index].cast(pa.large_binary()).as_py().decode(errors="replace")
                yield Record(location, text, after, "encoding", "invalid UTF-8")
        row += len(batch)


BINARY_TYPES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def _validate(values: pa.Array) -> None:
    """Raise ArrowInvalid where damaged offsets would lead out of the memory; pyarrow reads without looking."""
    binary = BINARY_TYPES.get(values.type)  # invalid UTF-8 is the fault of a single row
    (values if binary is None else values.view(binary)).validate(full=True)


def _open_parquet(path: str) -> pq.ParquetFile:
    try:
        file = open_file(path) if is_remote(path) else path
        return pq.ParquetFile(file, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
    except DAMAGE as error:
        raise BrokenFileError(f"is not readable as parquet ({error})") from None


def _arrow_batches(path: str) -> list[pa.RecordBatch]:
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

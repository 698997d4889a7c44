"""Lines of text and of JSON: a unit is a byte range of a plain file, or a whole compressed one.

A record costs one parse and about 2 microseconds. Lines of text of any length are read in bounded memory; a long line
of JSON must be held whole to be cut, as its text ends where its JSON ends: 256 MB at most.
"""

import math
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import orjson

from data.config import BadInputConfig, SourceConfig
from data.sources.files import BUFFER_BYTES, BrokenFileError, files_of, is_compressed, open_file, seek
from data.sources.unit import PAST_END, Cursor, Plan, Record, Unit, column_record, cut_record, interleave, size_of_part

UNITS_PER_LANE = 8
MAX_UNIT_BYTES = 16 << 20
# a longer line of JSON is not read, whatever the policy; a shorter one takes 3 times its size
MAX_JSON_BYTES = 256 << 20


class JsonLineError(Exception):
    """A line that holds no JSON object; says why."""


def plan(source: SourceConfig, num_lanes: int, bad_input: BadInputConfig) -> Plan:
    """About eight byte ranges a lane of the plain files, of 16 MB at most, and the compressed files."""
    files = files_of(source, bad_input)
    compressed = [Unit(file.path) for file in files if is_compressed(file.path) and file.size]
    plain = [file for file in files if not is_compressed(file.path)]
    total = sum(file.size for file in plain)
    length = min(MAX_UNIT_BYTES, max(1, -(-total // (UNITS_PER_LANE * num_lanes))))
    units = interleave(compressed, num_lanes)
    for file in plain:
        units += [Unit(file.path, start, min(start + length, file.size)) for start in range(0, file.size, length)]
    return Plan(source, files, units)


def records(unit: Unit, cursor: Cursor, source: SourceConfig, limit: int, cut_long: bool) -> Iterator[Record]:
    """The lines of `unit` from `cursor` on; see `formats.read`."""
    offset = cursor.offset
    with open_file(unit.path) as stream:
        try:
            if source.format == "jsonl":
                found = _json_records(stream, unit, cursor, source.text_column, limit, cut_long)
            else:
                found = _text_records(stream, unit, cursor, limit, cut_long)
            for record in found:
                offset = record.cursor.offset
                yield record
        except BrokenFileError as error:
            yield Record(f"{unit.path}:{offset}", "", Cursor(PAST_END), "broken_file", f"the file {error}")


def parse_json_line(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises JsonLineError, or UnicodeDecodeError where the line is not UTF-8."""
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        line.decode()  # raises where the encoding, not the JSON, is at fault
        raise JsonLineError(f"not a line of JSON ({error})") from None
    if not isinstance(values, dict):
        raise JsonLineError("not a JSON object")
    return values


class _Line(NamedTuple):
    cursor: Cursor  # of the line itself
    data: bytes  # without the newline
    is_cut: bool  # longer than the limit: `data` is a part of it, or empty
    next_cursor: Cursor


def _lines(stream: BinaryIO, unit: Unit, cursor: Cursor, limit: int, cut_long: bool) -> Iterator[_Line]:
    """The lines that start in the unit. One longer than `limit` comes in parts, or as empty and cut."""
    offset, number, part = cursor
    unit_end = math.inf if unit.end is None else unit.end
    if offset == unit.start > 0 and not part:  # a line that starts before the unit belongs to the one before
        seek(stream, offset - 1)
        offset += _skip_line(stream, unit_end - offset) - 1
    else:
        seek(stream, offset)
    rest = b""
    while part or offset < unit_end:
        if number % unit.stride != unit.remainder:
            skipped = _skip_line(stream, unit_end)
            if not skipped:
                return
            offset, number = offset + skipped, number + 1
            continue
        data = rest + stream.readline(limit + 1 - len(rest))
        rest = b""
        if not data:
            return
        here = Cursor(offset, number, part)
        is_cut = len(data) > limit and not data.endswith(b"\n")
        if is_cut and cut_long:
            size = size_of_part(data[:limit])
            data, rest, part = data[:size], data[size:], part + 1
            offset += size
        else:
            offset += len(data) + (_skip_line(stream, unit_end + limit) if is_cut else 0)
            data = b"" if is_cut else data.rstrip(b"\r\n")
            number, part = number + 1, 0
        yield _Line(here, data, is_cut or bool(here.part), Cursor(offset, number, part))


def _skip_line(stream: BinaryIO, at_most: float) -> int:
    """Read to the end of the line in bounded memory, or until more than `at_most` bytes are read; bytes read."""
    skipped = 0
    while skipped <= at_most:
        block = stream.readline(BUFFER_BYTES)
        skipped += len(block)
        if not block or block.endswith(b"\n"):
            break
    return skipped


def _text_records(stream: BinaryIO, unit: Unit, cursor: Cursor, limit: int, cut_long: bool) -> Iterator[Record]:
    for line in _lines(stream, unit, cursor, limit, cut_long):
        location = f"{unit.path}:{line.cursor.offset}"
        if line.is_cut and not cut_long:
            yield Record(location, "", line.next_cursor, "too_long", f"the line is longer than {limit} bytes")
        else:
            yield _text_record(location, line, limit)


def _text_record(location: str, line: _Line, limit: int) -> Record:
    offset, cursor = line.cursor.offset, line.next_cursor
    try:
        text = line.data.decode()
    except UnicodeDecodeError as error:
        text = line.data.decode(errors="replace")
        return Record(location, text, cursor, "encoding", f"invalid UTF-8 at byte {offset + error.start}")
    if offset == 0:
        text = text.removeprefix("\ufeff")
    if not text.strip():
        return Record(location, "", cursor, "empty", "the line is empty")
    if line.is_cut:
        return Record(location, text, cursor, "too_long", f"the line is longer than {limit} bytes")
    return Record(location, text, cursor)


def _json_records(
    stream: BinaryIO, unit: Unit, cursor: Cursor, column: str, limit: int, cut_long: bool
) -> Iterator[Record]:
    """As _text_records, but a line whose text is to be cut is read whole."""
    parts_read = cursor.part
    line_limit = max(limit, MAX_JSON_BYTES) if cut_long else limit
    for line in _lines(stream, unit, cursor._replace(part=0), line_limit, cut_long=False):
        location = f"{unit.path}:{line.cursor.offset}"
        if line.is_cut:
            yield Record(location, "", line.next_cursor, "too_long", f"the line is longer than {line_limit} bytes")
            continue
        record = _json_record(location, line.data, line.next_cursor, column)
        yield from cut_record(record, line.cursor, parts_read, limit)
        parts_read = 0


def _json_record(location: str, data: bytes, cursor: Cursor, column: str) -> Record:
    if not data.strip():
        return Record(location, "", cursor, "empty", "the line is empty")
    valid = True
    try:
        try:
            values = parse_json_line(data)
        except UnicodeDecodeError:
            valid = False
            values = parse_json_line(data.decode(errors="replace").encode())
    except JsonLineError as error:
        return Record(location, "", cursor, "json_line", f"{error}" if valid else f"not UTF-8, and {error}")
    record = column_record(location, values, column, cursor)
    return record if valid or record.fault else record._replace(fault="encoding", detail="invalid UTF-8")

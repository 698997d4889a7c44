"""Readers: the records of one unit, from any cursor on.

A cursor is three integers: the offset (bytes, decompressed; rows in tables) of the next record, its number within the
unit, and how many parts of it are already read when it is longer than `limit`. Readers know no policy but the limit:
what is wrong with a record is told in the record. A record costs one parse and about 2 microseconds.
Lines of text of any length are read in bounded memory; a long line of JSON must be whole to be cut: 256 MB at most.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import orjson

from data.config import SourceConfig
from data.sources.files import BUFFER, BrokenFileError, open_file, seek
from data.sources.unit import Unit

# a longer line of JSON is not read, whatever the policy; a shorter one takes 3 times its size
MOST_JSON_BYTES = 256 << 20

Cursor = tuple[int, int, int]


class Record(NamedTuple):
    """One document (or fault). `text` is what stands in for it under policy `replace` if `fault` is set."""

    place: str  # file:byte, the document's id
    text: str
    cursor: Cursor  # where the next record begins
    fault: str = ""  # a field of BadInputConfig
    detail: str = ""
    ids: Any = None  # uint32 tokens, if they come from the cache
    cached_length: int = 0

    @property
    def length(self) -> int:
        """Characters; 0 where there is nothing but white space."""
        return self.cached_length or (0 if is_blank(self.text) else len(self.text))


def read(unit: Unit, cursor: Cursor, source: SourceConfig, limit: int, cut_long: bool) -> Iterator[Record]:
    """The records of `unit` from `cursor` on; texts longer than `limit` bytes come in parts if `cut_long`."""
    if source.hub:
        from data.sources.hub import hub_records

        yield from hub_records(unit, cursor, source, limit, cut_long)
    elif source.format == "text":
        yield from _text_records(unit, cursor, limit, cut_long)
    elif source.format == "jsonl":
        yield from _json_records(unit, cursor, source.text_column, limit, cut_long)
    else:
        from data.sources.tables import table_records

        yield from table_records(unit, cursor, source, limit, cut_long)


class _Line(NamedTuple):
    start: int
    number: int
    part: int
    data: bytes  # without the newline
    cut: bool  # longer than the limit: either a part of it, or nothing of it
    cursor: Cursor


def _lines(stream: BinaryIO, unit: Unit, cursor: Cursor, limit: int, cut_long: bool) -> Iterator[_Line]:
    """The lines that start in the unit; a longer one than `limit` in parts, or as cut and empty."""
    offset, number, part = cursor
    if offset == unit.start > 0 and not part:
        seek(stream, offset - 1)
        offset += _skip_line(stream, unit.end - offset) - 1
    else:
        seek(stream, offset)
    rest = b""
    while part or offset < unit.end:
        if number % unit.stride != unit.remainder:
            passed = _skip_line(stream, unit.end)
            if not passed:
                return
            offset, number = offset + passed, number + 1
            continue
        data = rest + stream.readline(limit + 1 - len(rest))
        rest = b""
        if not data:
            return
        start, this, this_part = offset, number, part
        cut = len(data) > limit and not data.endswith(b"\n")
        if cut and cut_long:
            size = _cut_place(data[:limit])
            data, rest, part = data[:size], data[size:], part + 1
            offset += size
        else:
            offset += len(data) + (_skip_line(stream, unit.end + limit) if cut else 0)
            data = b"" if cut else data.rstrip(b"\r\n")
            number, part = number + 1, 0
        yield _Line(start, this, this_part, data, cut or bool(this_part), (offset, number, part))


def _skip_line(stream: BinaryIO, at_most: int) -> int:
    """Read to the end of the line, in bounded memory, but no further than `at_most` needs; bytes passed."""
    passed = 0
    while passed <= at_most:
        block = stream.readline(BUFFER)
        passed += len(block)
        if not block or block.endswith(b"\n"):
            break
    return passed


def _cut_place(data: bytes) -> int:
    """Where to cut a part: after the last white space, or else before the character that may be incomplete."""
    size = max(data.rfind(b" "), data.rfind(b"\t")) + 1
    if size > len(data) // 2:
        return size
    size = len(data)
    while size > 1 and data[size - 1] & 0xC0 == 0x80:
        size -= 1
    return size - 1 if size > 1 and data[size - 1] >= 0xC0 else len(data)


def _text_records(unit: Unit, cursor: Cursor, limit: int, cut_long: bool) -> Iterator[Record]:
    with open_file(unit.path) as stream:
        try:
            for line in _lines(stream, unit, cursor, limit, cut_long):
                cursor = line.cursor
                place = f"{unit.path}:{line.start}"
                if line.cut and not cut_long:
                    yield Record(place, "", cursor, "too_long", f"the line is longer than {limit} bytes")
                    continue
                yield _decoded(place, line, cursor, limit)
        except BrokenFileError as error:
            yield Record(f"{unit.path}:{cursor[0]}", "", (unit.end, 0, 0), "broken_file", f"the file {error}")


def _decoded(place: str, line: _Line, cursor: Cursor, limit: int) -> Record:
    try:
        text = line.data.decode()
    except UnicodeDecodeError as error:
        text = line.data.decode(errors="replace")
        return Record(place, text, cursor, "encoding", f"invalid UTF-8 at byte {line.start + error.start}")
    if line.start == 0:
        text = text.removeprefix("\ufeff")
    if is_blank(text):
        return Record(place, "", cursor, "empty", "the line is empty")
    if line.cut:
        return Record(place, text, cursor, "too_long", f"the line is longer than {limit} bytes")
    return Record(place, text, cursor)


def _json_records(unit: Unit, cursor: Cursor, column: str, limit: int, cut_long: bool) -> Iterator[Record]:
    """As _text_records; a long line is read whole if it is to be cut, since a text ends where its JSON ends."""
    with open_file(unit.path) as stream:
        skip, cursor = cursor[2], (cursor[0], cursor[1], 0)
        try:
            most = max(limit, MOST_JSON_BYTES) if cut_long else limit
            for line in _lines(stream, unit, cursor, most, False):
                place, before = f"{unit.path}:{line.start}", (line.start, line.number, 0)
                cursor = line.cursor
                if line.cut:
                    yield Record(place, "", cursor, "too_long", f"the line is longer than {most} bytes")
                    continue
                record = _json_record(place, line.data, cursor, column)
                yield from parts(record, before, skip, limit)
                skip = 0
        except BrokenFileError as error:
            yield Record(f"{unit.path}:{cursor[0]}", "", (unit.end, 0, 0), "broken_file", f"the file {error}")


def _json_record(place: str, data: bytes, cursor: Cursor, column: str) -> Record:
    fault = ""
    if not data.strip():
        return Record(place, "", cursor, "empty", "the line is empty")
    try:
        values = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        try:
            data.decode()
            return Record(place, "", cursor, "json_line", f"not a line of JSON ({error})")
        except UnicodeDecodeError:
            fault = "encoding"
        try:
            values = orjson.loads(data.decode(errors="replace"))
        except orjson.JSONDecodeError:
            return Record(place, "", cursor, "json_line", f"neither JSON nor UTF-8 ({error})")
    if not isinstance(values, dict):
        return Record(place, "", cursor, "json_line", "not a JSON object")
    record = column_record(place, values.get(column), cursor, column, column in values)
    return record._replace(fault=fault, detail="invalid UTF-8") if fault and not record.fault else record


def column_record(place: str, value: Any, cursor: Cursor, column: str, present: bool) -> Record:
    """The record of a column's value: text as it is, anything else a fault."""
    if isinstance(value, str):
        if is_blank(value):
            return Record(place, "", cursor, "empty", f"the column '{column}' is empty")
        return Record(place, value, cursor)
    if value is None:
        problem = "null" if present else "missing"
        return Record(place, "", cursor, "column", f"the column '{column}' is {problem}")
    text = str(value) if isinstance(value, int | float) else ""
    return Record(place, text, cursor, "column", f"the column '{column}' is not text but {type(value).__name__}")


def is_blank(text: str) -> bool:
    """Nothing but white space; a giant text is not copied to find out."""
    return not text or text.isspace()


def is_longer(text: str, limit: int) -> bool:
    """Whether the text takes more than `limit` bytes of UTF-8, which a giant one is not encoded for."""
    return len(text) > limit or (len(text) * 4 > limit and len(text.encode()) > limit)


def parts(record: Record, start: Cursor, skip: int, limit: int) -> Iterator[Record]:
    """Cut a record whose text is longer than `limit` bytes; the first `skip` parts are passed over."""
    text = record.text
    if not is_longer(text, limit):
        yield record
        return
    at = offset = part = 0  # characters, bytes of UTF-8, parts before
    while at < len(text):
        data = text[at : at + limit].encode()
        size = _cut_place(data[:limit]) if len(data) > limit or at + limit < len(text) else len(data)
        piece = data[:size].decode()
        at, part = at + len(piece), part + 1
        if part > skip:
            cursor = record.cursor if at >= len(text) else (start[0], start[1], part)
            place = record.place if part == 1 else f"{record.place}+{offset}"
            yield Record(place, piece, cursor, record.fault or "too_long", f"the text is longer than {limit} bytes")
        offset += size

"""What all formats share: files, units, records, and how a text that is too long is cut.

A unit is the smallest part of a source that a lane opens on its own: a byte range of a plain file of lines, a whole
compressed file, a row group of a table, a shard of a hub data set; where there are fewer of those than lanes, every
k-th record of one. The units of a source are a pure function of its files and the number of lanes, and take a few
integers each. A cursor says where reading continues in a unit, so that a run can resume at any record.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from data import hashing
from data.config import SourceConfig

# In a cursor, the offset or row behind everything: the unit broke off, nothing can follow. Saved states contain it.
PAST_END = 1 << 62


class File(NamedTuple):
    """One file of a source, as it was when the run started."""

    path: str
    size: int  # bytes on disk
    version: int  # time of the last change in ns, or a hash of a remote store's tag; 0 without either


class FileIdentity(NamedTuple):
    """A file as part of a corpus, wherever that lies: see `identity`."""

    name: str
    size: int
    digest: str  # of its contents; empty where it was not read


class Cursor(NamedTuple):
    """Where the next record of a unit begins."""

    offset: int  # in a file of lines, the record's first byte (decompressed); in other formats, the unit's start
    number: int = 0  # records before it: in the unit of a file of lines; in the whole row group or shard of others
    part: int = 0  # where its text is cut because it is too long: parts that are already read


class Unit(NamedTuple):
    """The lines that start in bytes [start, end) of a file, or row group (shard) `start` of a table (hub data set)."""

    path: str
    start: int = 0
    end: int | None = None  # None: the end of the file
    stride: int = 1  # only the records whose number is `remainder` modulo `stride` belong to the unit
    remainder: int = 0

    @property
    def first(self) -> Cursor:
        return Cursor(self.start)


class Plan(NamedTuple):
    """A source (of the hub: with its revision) with its files and units."""

    source: SourceConfig
    files: list[File]
    units: list[Unit]
    num_rows: int | None = None  # of tables, and of a hub data set whose card has it
    identities: list[FileIdentity] = []  # noqa: RUF012  # of the files, in their order; see `identity.identified`

    @property
    def knows_files(self) -> bool:
        """Whether `files` are files; of a data set on the hub only the number of its shards is known."""
        return not self.source.hub or any(file.version for file in self.files)

    @property
    def manifest(self) -> str:
        """16 hex digits that change when a file is added, removed, renamed or changed, or other text is taken of it."""
        source = self.source
        column = "" if source.format == "text" and not source.hub else source.text_column
        return hashing.digest(source.format, column, *(f"{name}\t{size}\t{of}" for name, size, of in self.identities))

    @property
    def manifest_of_version_1(self) -> str:
        """The manifest of states and caches of version 1, which knew a file by its path and time."""
        return hashing.digest(self.source.format, *(f"{f.path}\t{f.size}\t{f.version}" for f in self.files))


class Record(NamedTuple):
    """One document, or what is wrong with it. With a `fault`, `text` is what policy `replace` puts in its place."""

    location: str  # path:byte, or path:group:row; the document's id
    text: str
    cursor: Cursor  # of the next record
    fault: str = ""  # a field of BadInputConfig
    detail: str = ""  # of the fault, for people
    ids: Any = None  # uint32 tokens, if they come from the cache
    cached_length: int = 0

    @property
    def length(self) -> int:
        """Characters; 0 where there is nothing but white space."""
        return self.cached_length or (0 if is_blank(self.text) else len(self.text))


def interleave(units: list[Unit], num_lanes: int) -> list[Unit]:
    """Replace each unit, if there are fewer than lanes, by several that hold every k-th record of it."""
    stride = -(-num_lanes // len(units)) if units else 1
    return [unit._replace(stride=stride, remainder=remainder) for unit in units for remainder in range(stride)]


def column_record(location: str, values: dict[str, Any], column: str, cursor: Cursor) -> Record:
    """The record of one column of a row: text unchanged, anything else a fault."""
    value = values.get(column)
    if isinstance(value, str):
        if is_blank(value):
            return Record(location, "", cursor, "empty", f"the column '{column}' is empty")
        return Record(location, value, cursor)
    if value is None:
        problem = "null" if column in values else "missing"
        return Record(location, "", cursor, "column", f"the column '{column}' is {problem}")
    text = str(value) if isinstance(value, int | float) else ""
    return Record(location, text, cursor, "column", f"the column '{column}' is not text but {type(value).__name__}")


def unit_records(rows: Iterable[Record], unit: Unit, cursor: Cursor, limit: int, cut_long: bool) -> Iterator[Record]:
    """The records of a unit, given those of all rows of its row group from `cursor` on: see `formats.read`."""
    parts_read = cursor.part
    for record in rows:
        number = record.cursor.number - 1
        if number % unit.stride != unit.remainder:
            continue
        if not cut_long and _is_longer(record.text, limit):
            yield Record(record.location, "", record.cursor, "too_long", f"the text is longer than {limit} bytes")
            continue
        yield from cut_record(record, Cursor(unit.start, number), parts_read, limit)
        parts_read = 0


def cut_record(record: Record, start: Cursor, parts_read: int, limit: int) -> Iterator[Record]:
    """The record, which begins at `start`; if its text takes more than `limit` bytes, all but `parts_read` parts."""
    text = record.text
    if not _is_longer(text, limit):
        yield record
        return
    at = offset = part = 0  # characters, bytes of UTF-8, parts before
    while at < len(text):
        data = text[at : at + limit].encode()
        size = size_of_part(data[:limit]) if len(data) > limit or at + limit < len(text) else len(data)
        piece = data[:size].decode()
        at, part = at + len(piece), part + 1
        if part > parts_read:
            cursor = record.cursor if at >= len(text) else start._replace(part=part)
            location = record.location if part == 1 else f"{record.location}+{offset}"
            yield Record(location, piece, cursor, record.fault or "too_long", f"the text is longer than {limit} bytes")
        offset += size


def size_of_part(data: bytes) -> int:
    """Bytes of `data` to cut off: up to its last white space, or else to a character that may be incomplete."""
    size = max(data.rfind(b" "), data.rfind(b"\t")) + 1
    if size > len(data) // 2:
        return size
    size = len(data)
    while size > 1 and data[size - 1] & 0xC0 == 0x80:
        size -= 1
    return size - 1 if size > 1 and data[size - 1] >= 0xC0 else len(data)


def is_blank(text: str) -> bool:
    """Nothing but white space; a giant text is not copied to find out."""
    return not text or text.isspace()


def _is_longer(text: str, limit: int) -> bool:
    """Whether the text takes more than `limit` bytes of UTF-8; a giant one is not encoded to find out."""
    return len(text) > limit or (len(text) * 4 > limit and len(text.encode()) > limit)

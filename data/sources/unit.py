"""Units: the smallest things that a lane opens on its own, and the list of them that a source stands for.

A unit is a byte range of a plain file of lines (a line belongs to the unit in which it starts), a row group of a
parquet file, a whole compressed file, or, where there are fewer files than lanes, every k-th line of one.
The list is a pure function of the files and the number of lanes; it holds a few integers a unit.
"""

from typing import NamedTuple

from configs import InputError
from data import hashing
from data.config import BadInputConfig, SourceConfig
from data.sources.files import File, find_files

UNITS_PER_LANE = 8
MAX_UNIT_BYTES = 16 << 20
END = 1 << 62  # the end of a file whose decompressed length is not known


class Unit(NamedTuple):
    """Part of one file: lines that start in bytes [start, end), of which every `stride`-th from `remainder` on."""

    path: str
    start: int = 0
    end: int = END
    stride: int = 1
    remainder: int = 0


class Plan(NamedTuple):
    """A source with its files and units."""

    source: SourceConfig
    files: list[File]
    units: list[Unit]

    @property
    def has_bytes(self) -> bool:
        """Whether the files' sizes are known; those of a data set on the hub are not."""
        return not self.source.hub or any(file.time for file in self.files)

    @property
    def manifest(self) -> str:
        """16 hex digits that change when a file is added, removed, renamed or written to."""
        return hashing.digest(self.source.format, *(f"{f.path}\t{f.size}\t{f.time}" for f in self.files))


def plan(source: SourceConfig, num_lanes: int, bad_input: BadInputConfig) -> Plan:
    """Find the files of a source and cut them into units.

    Raises InputError when the path matches nothing (or only empty files), unless bad_input.empty_glob is skip.
    """
    if source.hub:
        from data.sources.hub import hub_plan

        return hub_plan(source, num_lanes)
    files = find_files(source.path)
    if sum(file.size for file in files) == 0 and bad_input.empty_glob == "error":
        what = "matches no file" if not files else "matches only empty files"
        raise InputError(f"data.sources: the path '{source.path}' {what}")
    if source.format in ("parquet", "arrow"):
        from data.sources.tables import table_units

        return Plan(source, files, table_units(source, [file for file in files if file.size], num_lanes))
    compressed = [file for file in files if file.compressed]
    units = strides([Unit(file.path) for file in compressed if file.size], num_lanes)
    plain = [file for file in files if not file.compressed]
    total = sum(file.size for file in plain)
    length = min(MAX_UNIT_BYTES, max(1, -(-total // (UNITS_PER_LANE * num_lanes))))
    units += [
        Unit(file.path, start, min(start + length, file.size))
        for file in plain
        for start in range(0, file.size, length)
    ]
    return Plan(source, files, units)


def strides(units: list[Unit], num_lanes: int) -> list[Unit]:
    """Cut each unit into interleaved ones when there are fewer than lanes; each of them reads the whole range."""
    stride = -(-num_lanes // len(units)) if units else 1
    return [unit._replace(stride=stride, remainder=part) for unit in units for part in range(stride)]

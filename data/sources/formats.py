"""Every format behind two functions: `plan`, the parts of a source, and `read`, the records of one part."""

from collections.abc import Iterator
from types import ModuleType

from data.config import BadInputConfig, SourceConfig
from data.sources import hub, lines, tables
from data.sources.unit import PAST_END, Cursor, Plan, Record, Unit

# the module of each format, with its own `plan` and `records`
FORMATS = {"text": lines, "jsonl": lines, "parquet": tables, "arrow": tables, "hub": hub}


def plan(source: SourceConfig, num_lanes: int, bad_input: BadInputConfig) -> Plan:
    """The files of a source, cut into units for `num_lanes` lanes. Raises InputError where there is nothing to read."""
    return _module(source).plan(source, num_lanes, bad_input)


def read(unit: Unit, cursor: Cursor, source: SourceConfig, limit: int, cut_long: bool) -> Iterator[Record]:
    """The records of `unit` from `cursor` on, each with its fault if it has one; no policy is applied.

    A text of more than `limit` bytes comes in parts with `cut_long`, else as a fault without text.
    """
    return iter(()) if PAST_END in cursor else _module(source).records(unit, cursor, source, limit, cut_long)


def _module(source: SourceConfig) -> ModuleType:
    return FORMATS["hub" if source.hub else source.format]

"""Reading a whole source in tests: its records, its texts, and its documents under policies."""

from pathlib import Path
from typing import Any

from data import DataConfig, SourceConfig
from data.config import BadInputConfig
from data.sources.bad_input import Counts
from data.sources.formats import plan, read
from data.sources.unit import Record
from data.stream.source_stream import SourceStream

ANY = BadInputConfig(empty_glob="skip")


def records(source: SourceConfig, num_lanes: int = 1, limit: int = 1 << 20, cut_long: bool = True) -> list[Record]:
    """All records of a source, in the order of its units."""
    found: list[Record] = []
    for unit in plan(source, num_lanes, ANY).units:
        found += read(unit, unit.first, source, limit, cut_long)
    return found


def texts(source: SourceConfig, num_lanes: int = 1, **options: Any) -> list[str]:
    return [record.text for record in records(source, num_lanes, **options) if not record.fault]


def stream_of(path: Path, format: str, **policies: str) -> tuple[list[str], Counts]:
    """The documents of a file under policies, and the counts."""
    source = SourceConfig.model_validate({"path": str(path), "format": format})
    config = DataConfig.model_validate(
        {"sources": [source], "num_epochs": 1, "num_lanes": 1, "max_document_bytes": 64, "bad_input": policies}
        | {"shuffle": False}
    )
    stream = SourceStream(plan(source, 1, config.bad_input), 0, 0, config, 0)
    found = []
    while (document := stream.next_document()) is not None:
        found.append(document.text)
    return found, stream.counts

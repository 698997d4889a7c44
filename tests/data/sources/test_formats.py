"""What holds for every format: damage is told, broken units end once, a source without text is refused."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import SourceConfig
from data.config import BadInputConfig
from data.sources.formats import plan, read
from tests.data.sources.reading import ANY, records, texts


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200), where=st.floats(0, 1), ending=st.sampled_from(["gz", "zst", "parquet", "arrow"])
)
def test_a_file_with_bytes_changed_is_read_or_told(tmp_path: Path, content: bytes, where: float, ending: str) -> None:
    """Never a crash: rows, or faults that say where."""
    rows = [f"row {i}" for i in range(50)]
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"text": rows}), path, row_group_size=20)
    elif ending == "arrow":
        with pa.ipc.new_file(str(path), pa.table({"text": rows}).schema) as writer:
            writer.write_table(pa.table({"text": rows}), max_chunksize=20)
    else:
        path.write_bytes({"gz": gzip.compress, "zst": zstandard.compress}[ending]("\n".join(rows).encode()))
    good = path.read_bytes()
    at = int(where * len(good))
    path.write_bytes(good[:at] + content + good[at + len(content) :])
    format = ending if ending in ("parquet", "arrow") else "text"
    for record in records(SourceConfig.model_validate({"path": str(path), "format": format}), 2):
        assert record.fault in ("", "broken_file", "encoding", "empty", "column", "too_long")
        assert record.location.startswith(str(path))


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_a_path_without_text(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match="matches no file"):
        plan(SourceConfig(path=str(tmp_path / "*.txt")), 4, BadInputConfig())
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(ValueError, match="matches only empty files"):
        plan(SourceConfig(path=str(tmp_path / "*.txt")), 4, BadInputConfig())
    (tmp_path / "full.txt").write_bytes(b"some\n" + content)
    assert texts(SourceConfig(path=str(tmp_path / "*.txt")), 4) == ["some"]
    assert texts(SourceConfig(path=str(tmp_path)), 4) == ["some"]


@pytest.mark.parametrize("ending", ["gz", "zst", "parquet"])
def test_a_broken_unit_is_told_once_also_by_a_resume(tmp_path: Path, ending: str) -> None:
    """The cursor behind the fault, which a saved state may hold, has nothing behind it."""
    rows = [f"row {i}" for i in range(3000)]
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"text": rows}), path)
        content = path.read_bytes()
        path.write_bytes(content[:2000] + b"x" * 2000 + content[4000:])
    else:
        content = {"gz": gzip.compress, "zst": zstandard.compress}[ending]("\n".join(rows).encode())
        path.write_bytes(content[: len(content) // 2])
    source = SourceConfig.model_validate({"path": str(path), "format": "parquet" if ending == "parquet" else "text"})
    [unit] = plan(source, 1, ANY).units
    *_, last = read(unit, unit.first, source, 1 << 20, cut_long=True)
    assert last.fault == "broken_file"
    assert (1 << 62) in last.cursor  # as in states saved by any version
    assert list(read(unit, last.cursor, source, 1 << 20, cut_long=True)) == []

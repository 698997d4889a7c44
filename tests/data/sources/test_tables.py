"""Parquet and Arrow: every row once from every cursor, faults of files and of cells."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data import SourceConfig
from data.sources.files import BrokenFileError
from data.sources.formats import plan, read
from data.sources.tables import record_batches
from tests.data.sources.reading import ANY, records, texts


@pytest.mark.parametrize("num_lanes", [1, 4, 40])
@pytest.mark.parametrize("format", ["parquet", "arrow", "arrow_file"])
def test_tables_are_read_once_from_every_cursor(tmp_path: Path, format: str, num_lanes: int) -> None:
    rows = [f"row {i}" for i in range(100)]
    table = pa.table({"id": range(100), "text": rows})
    path = tmp_path / "a.table"
    if format == "parquet":
        pq.write_table(table, path, row_group_size=30)
    else:
        new = pa.ipc.new_stream if format == "arrow" else pa.ipc.new_file
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    source = SourceConfig.model_validate({"path": str(path), "format": format.partition("_")[0]})
    assert sorted(texts(source, num_lanes)) == sorted(rows)
    for unit in plan(source, num_lanes, ANY).units[:5]:
        found = list(read(unit, unit.first, source, 100, True))
        for i, record in enumerate(found):
            assert list(read(unit, record.cursor, source, 100, True)) == found[i + 1 :]


def test_faults_of_tables(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "", "x" * 40 + " " + "y" * 40]}), tmp_path / "a.parquet")
    source = SourceConfig(path=str(tmp_path / "a.parquet"), format="parquet")
    assert [r.fault for r in records(source, limit=64, cut_long=False)] == ["", "column", "empty", "too_long"]
    assert [r.fault for r in records(source, limit=64)] == ["", "column", "empty", "too_long", "too_long"]
    other = SourceConfig(path=str(tmp_path / "a.parquet"), format="parquet", text_column="body")
    assert [r.detail for r in records(other)] == ["the column 'body' is missing"] * 4
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(content[:-20])
    broken = SourceConfig(path=str(tmp_path / "b.parquet"), format="parquet")
    assert [r.fault for r in records(broken, 5)] == ["broken_file"]
    binary = pa.array([b"ok", b"b\xffd"], pa.binary()).view(pa.binary())
    text = pa.StringArray.from_buffers(2, binary.buffers()[1], binary.buffers()[2])
    pq.write_table(pa.table({"text": text}), tmp_path / "c.parquet")
    invalid = records(SourceConfig(path=str(tmp_path / "c.parquet"), format="parquet"))
    assert [(r.text, r.fault) for r in invalid] == [("ok", ""), ("b\ufffdd", "encoding")]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_record_batches_of_a_whole_file(tmp_path: Path, format: str) -> None:
    table = pa.table({"id": range(100), "text": [f"row {i}" for i in range(100)]})
    path = str(tmp_path / "a.table")
    if format == "parquet":
        pq.write_table(table, path, row_group_size=30)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)
    assert pa.Table.from_batches(record_batches(path, format)).equals(table)
    assert pa.Table.from_batches(record_batches(path, format, columns=["text"])).equals(table.select(["text"]))
    [group] = record_batches(path, format, 3, ["text", "none"])
    assert group.to_pydict() == {"text": [f"row {i}" for i in range(90, 100)]}
    (tmp_path / "b.table").write_bytes(b"something else")
    with pytest.raises(BrokenFileError, match="is not readable as"):
        list(record_batches(str(tmp_path / "b.table"), format))

"""Every format gives the same rows, each with its place; nothing that cannot be read is passed over."""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from finetune.reading.rows import read_rows

ROWS = [{"text": 'rain, "snow"', "label": "a"}, {"text": "今天\n天气", "label": "b"}, {"text": "", "label": "c"}]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstandard.compress}


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """In the format and the compression that the name asks for."""
    table = pyarrow.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=2)
    elif path.suffix == ".arrow":
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    else:
        path.write_bytes(COMPRESS.get(path.suffix, bytes)(text_of(rows, path.suffixes[0]).encode()))
    return str(path)


def text_of(rows: list[dict[str, Any]], suffix: str) -> str:
    """csv or JSON lines."""
    if suffix == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize("form", ["csv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow"])
def test_every_format_gives_the_same_rows(form: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"r.{form}", ROWS)
    rows = list(read_rows(path))
    assert [row.values for row in rows] == ROWS
    assert all(row.place.startswith(f"{path}:") for row in rows)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_remote_file_and_a_byte_order_mark(form: str) -> None:
    fsspec.filesystem("memory").pipe(f"/rows.{form}", b"\xef\xbb\xbf" + text_of(ROWS, f".{form}").encode())
    assert [row.values for row in read_rows(f"memory://rows.{form}")] == ROWS


def test_tabs_and_lines(tmp_path: Path) -> None:
    (tmp_path / "r.tsv").write_text('text\tlabel\nit "is\ta\n', encoding="utf-8")
    (row,) = read_rows(str(tmp_path / "r.tsv"))
    assert row.values == {"text": 'it "is', "label": "a"}
    (tmp_path / "r.txt").write_text("one\n\nthree", encoding="utf-8")
    assert [row.values["text"] for row in read_rows(str(tmp_path / "r.txt"))] == ["one", "", "three"]


def test_the_place_is_the_line(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n')
    assert [row.place.rsplit(":", 1)[1] for row in read_rows(str(tmp_path / "r.jsonl"))] == ["1", "3"]


def test_a_squad_document_on_one_line_or_many(tmp_path: Path) -> None:
    answer = {"text": "rain", "answer_start": 0}
    questions = [
        {"id": 1, "question": "what", "answers": [answer]},
        {"id": 2, "question": "who", "answers": [answer], "is_impossible": True},
    ]
    document = {"data": [{"paragraphs": [{"context": "rain", "qas": questions}]}]}
    for indent in (None, 2):
        (tmp_path / "r.json").write_text(json.dumps(document, indent=indent))
        rows = [row.values for row in read_rows(str(tmp_path / "r.json"))]
        assert [row["answers"] for row in rows] == [[answer], []]
        assert rows[0] == {"id": "1", "question": "what", "context": "rain", "answers": [answer]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("r.jsonl", b'{"a": 1}\n{"a": \n', "r.jsonl:2: not a line of JSON"),
        ("r.jsonl", b'{"a": 1}\n[1]\n', "r.jsonl:2: not a JSON object"),
        ("r.jsonl", b'{"a": "\xff"}\n', "r.jsonl:1: not valid UTF-8"),
        ("r.csv", b"a,b\n1,2\n1\n", "r.csv:3: the header has 2 columns"),
        ("r.csv", b"a,b\n1,2,3\n", "r.csv:2: the header has 2 columns"),
        ("r.csv", b'a,b\n1,"2\n', "r.csv:.: unexpected end of data"),
        ("r.parquet", b"PAR1 not", "r.parquet: cannot read: the file is not readable as parquet"),
        ("r.jsonl.gz", b"not gzip", "r.jsonl.gz: cannot read: the file is corrupt"),
        ("r.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 5000)[:-20], "r.jsonl.gz: cannot read: the file is truncated"),
        ("r.json", b'{\n"data": [{"paragraphs": [{"qas": [{}]}]}]}', "not in SQuAD form at question 1"),
        ("r.xml", b"<a/>", "cannot tell the format from the name; allowed: csv"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_rows(str(tmp_path / name)))


def test_a_missing_file_and_a_wrong_hub_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*nowhere.csv: No such file"):
        list(read_rows(str(tmp_path / "nowhere.csv")))
    with pytest.raises(ValueError, match="is written hub:NAME:SPLIT"):
        list(read_rows("hub:imdb"))


def test_a_hub_on_loopback(root: Path) -> None:
    """Everything in over_hub.py."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).with_name("over_hub.py"))]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

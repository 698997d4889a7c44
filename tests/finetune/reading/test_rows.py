"""Every format gives the same rows, each with its place; nothing that cannot be read is passed over."""

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from finetune.reading.rows import read_rows

ROWS = [{"text": 'rain, "snow"', "label": "a"}, {"text": "今天\n天气", "label": "b"}, {"text": "", "label": "c"}]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """In the format that the name asks for."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return str(path)
    with (
        gzip.open(path, "wt", encoding="utf-8", newline="")
        if path.name.endswith(".gz")
        else path.open("w", encoding="utf-8", newline="") as file
    ):
        if name.endswith(".jsonl"):
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz", "r.jsonl", "r.jsonl.gz", "r.parquet"])
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, ROWS)
    rows = list(read_rows(path))
    assert [row.values for row in rows] == ROWS
    assert all(row.place.startswith(f"{path}:") for row in rows)


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
        ("r.jsonl", b'{"a": 1}\n{"a": \n', "r.jsonl:2: not valid JSON"),
        ("r.jsonl", b'{"a": 1}\n[1]\n', "r.jsonl:2: a row is a JSON object, not a list"),
        ("r.jsonl", b'{"a": "\xff"}\n', "not valid UTF-8"),
        ("r.csv", b"a,b\n1,2\n1\n", "r.csv:3: the header has 2 columns"),
        ("r.csv", b"a,b\n1,2,3\n", "r.csv:2: the header has 2 columns"),
        ("r.csv", b'a,b\n1,"2\n', "r.csv:.: unexpected end of data"),
        ("r.parquet", b"PAR1 not", "not valid parquet"),
        ("r.jsonl.gz", b"not gzip", "cannot read"),
        ("r.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 5000)[:-20], "cannot read"),
        ("r.json", b'{\n"data": [{"paragraphs": [{"qas": [{}]}]}]}', "not in SQuAD form at question 1"),
        ("r.xml", b"<a/>", "cannot tell the format from the name; allowed: csv"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_rows(str(tmp_path / name)))


def test_a_missing_file_and_a_wrong_hub_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere.csv: cannot read: No such file"):
        list(read_rows(str(tmp_path / "nowhere.csv")))
    with pytest.raises(ValueError, match="is written hub:NAME:SPLIT"):
        list(read_rows("hub:imdb"))


def test_a_hub_on_loopback(root: Path) -> None:
    """Everything in over_hub.py."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).with_name("over_hub.py"))]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

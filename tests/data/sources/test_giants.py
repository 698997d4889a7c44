"""A document of 100 MB in one line or cell, under every policy: what is read, counted, and the memory it takes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SIZE = 100_000_000
READ = """
import json, sys
from pathlib import Path
from data import DataConfig
from data.sources.formats import plan
from data.stream.source_stream import SourceStream

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

def documents(path, format, policy):
    config = DataConfig.model_validate({"sources": [{"path": path, "format": format}], "num_lanes": 1, "num_epochs": 1,
                                        "bad_input": {"too_long": policy}})
    stream = SourceStream(plan(config.sources[0], 1, config.bad_input), 0, 0, config, 0)
    while (document := stream.next_document()) is not None:
        yield document.text
    yield stream.counts

path, format, policy = sys.argv[1:]
small = list(documents(path + ".small", format, policy))  # everything is imported
before, size, ends, error = peak(), 0, [], ""
try:
    for text in documents(path, format, policy):
        if isinstance(text, str):
            size += len(text)
            ends += [text] if len(text) < 100 else []
        else:
            counts = text.to_json()
except ValueError as told:
    error, counts = str(told), None
print(json.dumps({"peak": peak() - before, "size": size, "ends": ends, "error": error, "counts": counts}))
"""


def write(path: Path, format: str, texts: list[str]) -> None:
    if format == "parquet":
        pq.write_table(pa.table({"text": texts}), path)
        return
    lines = texts if format == "text" else [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["replace", "skip", "error"])
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("format", ["text", "jsonl", "parquet"])
def test_a_document_of_100_mb(tmp_path: Path, root: Path, format: str, language: str, policy: str) -> None:
    """Text is streamed. A line of JSON is held whole where its text is wanted, a cell of a table always."""
    word = "word " if language == "en" else "天气很好我们去公园散步"
    giant = word * (SIZE // len(word.encode()))
    path = tmp_path / "giant"
    write(path, format, ["first", giant, "last"])
    write(Path(f"{path}.small"), format, ["first"])
    command = [sys.executable, "-c", READ, str(path), format, policy]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    print(format, language, policy, round(found["peak"] / SIZE, 2), "times the document")
    if policy == "error":
        assert "giant" in found["error"]
        assert "longer than 1048576 bytes (to go on: data.bad_input.too_long=skip or replace)" in found["error"]
    else:
        kind = "replaced" if policy == "replace" else "skipped"
        assert found["ends"] == ["first", "last"]
        assert found["size"] == len("firstlast") + (len(giant) if policy == "replace" else 0)
        assert found["counts"][kind]["too_long"] >= (SIZE >> 20 if policy == "replace" else 1)
        assert found["counts"]["read"] == found["counts"]["used"] + sum(found["counts"]["skipped"].values())
    streamed = format == "text" or (format == "jsonl" and policy != "replace")
    assert found["peak"] < (30_000_000 if streamed else 3.5 * SIZE if format == "jsonl" else 5.5 * SIZE)

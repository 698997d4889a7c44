"""`python -m data batches | inspect | verify`, as a user calls them."""

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from data.commands import batches, inspect, verify
from data.config import BadInputConfig, SourceConfig
from data.progress import progress_bar, watched
from data.sources.lines import read
from data.sources.unit import plan


@pytest.fixture
def run_file(tmp_path: Path, fx_ids: Path, tokenizer: str) -> Path:
    """A run's file, with sections that these commands pass over."""
    path = tmp_path / "run.yaml"
    values = {
        "run_dir": "runs/x",
        "tokenizer": tokenizer,
        "data": {"sources": [{"path": str(fx_ids)}], "sequence_length": 64, "rows_per_step": 8, "num_lanes": 4},
        "optimizer": {"learning_rate": 1e-3},
    }
    path.write_text(json.dumps(values))
    return path


@pytest.fixture
def printed(run_file: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[Any]]:
    def call(*arguments: str) -> list[Any]:
        batches.main([str(run_file), *arguments])
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return call


def test_batches_print_what_the_contract_says(printed: Callable[..., list[Any]]) -> None:
    lines = printed("--steps", "3")
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert set(line) == {"step", "hash", "input_ids", "labels", "documents", "fill"}
        assert len(line["hash"]) == 16
        assert len(line["input_ids"]) == len(line["labels"]) == len(line["documents"]) == 8
        assert {len(row) for row in line["input_ids"] + line["labels"]} == {64}
        assert 0.5 < line["fill"] <= 1


def test_batches_do_not_depend_on_processes_workers_or_start(printed: Callable[..., list[Any]]) -> None:
    straight = printed("--steps", "6")
    assert printed("--steps=6", "--processes=4", "--workers=1") == straight
    assert printed("--steps", "2", "--start", "4", "--processes", "2") == straight[4:]
    assert printed("--steps", "1", "data.mask.rate=0.3")[0]["documents"] == straight[0]["documents"]


def test_batches_end_with_the_epochs(printed: Callable[..., list[Any]]) -> None:
    lines = printed("--steps", "100", "data.num_epochs=1")
    documents = [document for line in lines for row in line["documents"] for document in row]
    assert len(documents) == len(set(documents)) == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["batches", "CONFIG", "--processes", "3"], "3 processes do not divide"),
        (["batches", "CONFIG", "--step", "3"], "unknown option --step"),
        (["batches", "CONFIG", "--steps", "many"], "--steps takes a number"),
        (["batches", "CONFIG", "data.lanes=3"], "num_lanes"),
        (["batches", "CONFIG", "data.sources=[{path: /no/such/*.txt}]"], "'/no/such/*.txt' matches no file"),
        (["batches", "CONFIG", "data.sources=[{hub: a, path: b}]"], "either 'path' or 'hub'"),
        (["batches", "CONFIG", "tokenizer=/nowhere"], "no tokenizer.json"),
        (["batches", "/nowhere.yaml"], "cannot read the config"),
        (["nothing"], "usage:"),
        (["verify"], "usage:"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(root: Path, run_file: Path, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "data", *(str(run_file) if a == "CONFIG" else a for a in arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_workers_need_no_room_in_dev_shm(root: Path, run_file: Path) -> None:
    """As in a container, which has 64 MB: workers that send tensors through shared memory would hang or crash."""
    small = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=256k tmpfs /dev/shm && exec "$@"', "_"]
    if os.geteuid() or subprocess.run([*small, "true"], capture_output=True).returncode:
        pytest.skip("needs root and the right to mount")
    command = [sys.executable, "-m", "data", "batches", str(run_file), "--workers", "2", "--steps", "3"]
    command = [*small, *command, "data.rows_per_step=1024"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_verify_reports_every_fault_of_every_source(
    run_file: Path, tmp_path: Path, fx_ids: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify.main([str(run_file)]) == 0
    assert json.loads(capsys.readouterr().out)["used"] == 100
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"text": "a"}\n{\n{"x": 1}\n{"text": "\xff"}\n\n')
    sources = json.dumps([{"path": str(fx_ids)}, {"path": str(bad), "format": "jsonl"}])
    expected = rf"1 x json_line \(first: {bad}:14\), 1 x column .*, 1 x encoding"
    with pytest.raises(ValueError, match=expected):
        verify.main([str(run_file), f"data.sources={sources}"])
    good, faulty = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert good["skipped"] == {}
    assert faulty["read"] == 5
    assert faulty["skipped"] == {"json_line": 1, "column": 1, "encoding": 1, "empty": 1}
    assert faulty["places"]["column"] == [f"{bad}:16"]
    missing = json.dumps([{"path": str(tmp_path / "*.none")}])
    with pytest.raises(ValueError, match="empty_glob"):
        verify.main([str(run_file), f"data.sources={missing}"])


def test_the_bar_counts_records_while_one_big_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.txt.gz"
    path.write_bytes(gzip.compress(b"a line of text\n" * 1234))
    source, out = SourceConfig(path=str(path), format="text"), io.StringIO()
    the_plan = plan(source, 1, BadInputConfig())
    with progress_bar() as bar:
        (unit,) = bar.track(the_plan.units)
        for number, _ in enumerate(watched(bar, read(unit, (unit.start, 0, 0), source, 100, False)), 1):
            if number == 1000:
                Console(file=out, width=100).print(bar.make_tasks_table(bar.tasks))
    assert "0 % 1,000 records" in out.getvalue()
    assert bar.tasks[0].fields["records"] == 1234


def test_inspect_shows_counts_and_rows(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect.main([str(run_file)]) == 0
    out = capsys.readouterr().out
    assert "processes may be 1, 2, 4" in out
    assert "8 rows of 64 = 512 tokens" in out
    assert "about 100" in out
    assert out.count("[CLS]") >= 3
    assert "[MASK]→" in out


def test_inspect_estimates_within_a_tenth(real_data: Path, tmp_path: Path, run_file: Path, tokenizer: str) -> None:
    from data import DataRun
    from data.sources.unit import plan
    from data.stream.cache import write_cache
    from data.tokenizer.load import load_tokenizer

    source = {"path": str(real_data / "pretrain" / "zh_news_books.jsonl.gz"), "format": "jsonl"}
    values = {"tokenizer": tokenizer, "data": {"sources": [source], "num_lanes": 1, "cache": str(tmp_path / "c")}}
    run = DataRun.model_validate(values)
    exact = write_cache(run)["sources"][0]
    loaded = load_tokenizer(tokenizer)
    the_plan = plan(run.data.sources[0], 1, run.data.bad_input)
    assert inspect.estimate(the_plan, loaded, run.data) == exact  # small: read whole


def test_batches_tell_what_was_skipped(tmp_path: Path, run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "some words"}\n{\n' * 20)
    source = json.dumps([{"path": str(bad), "format": "jsonl"}])
    skipping = [f"data.sources={source}", "data.bad_input.json_line=skip", "data.num_epochs=1"]
    batches.main([str(run_file), "--steps", "9", "--processes", "2", *skipping])
    assert f"{bad}: json_line: 20 skipped, 0 replaced; first at {bad}:" in capsys.readouterr().err

"""`python -m data batches`, and what every data command says about bad input."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.commands import batches


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


def test_batches_tell_what_was_skipped(tmp_path: Path, run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "some words"}\n{\n' * 20)
    source = json.dumps([{"path": str(bad), "format": "jsonl"}])
    skipping = [f"data.sources={source}", "data.bad_input.json_line=skip", "data.num_epochs=1"]
    batches.main([str(run_file), "--steps", "9", "--processes", "2", *skipping])
    assert f"{bad}: json_line: 20 skipped, 0 replaced; first at {bad}:" in capsys.readouterr().err

"""`make quickstart`, with its smallest sizes, in a copy of the tree; the full one is a slow test."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
STAGES = {"corpus", "tokenizer", "pretrain", "evaluate", "export", "classification", "matching", "fill-ins"}
KEYS = {
    "rows", "mlm_loss_first", "mlm_loss_last", "unigram_entropy", "mlm_accuracy", "steps_repeated", "resume_bit_exact",
    "tokens", "export", "export_max_difference", "classification", "matching", "fill_ins", "seconds",
}  # fmt: skip


def start(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The script of the copy in `folder`, started from elsewhere, with this Python first on the PATH."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [str(folder / "examples" / "quickstart.sh"), *arguments]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=1500)


def quickstart(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    done = start(folder, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "runs/quickstart/summary.json").read_text())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("examples", "configs", "data", "encoder", "finetune", "pretrain"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def check(summary: dict[str, Any]) -> None:
    assert summary.keys() == KEYS
    assert summary["resume_bit_exact"] is True
    assert summary["steps_repeated"] > 0
    assert summary["export_max_difference"] <= 1e-4
    assert {"pretrained", "from_scratch", "majority"} <= summary["classification"].keys()
    assert {"before", "after"} <= summary["matching"].keys()
    assert summary["seconds"].keys() == STAGES


def test_the_whole_road_with_the_smallest_sizes(copy: Path) -> None:
    output, summary = quickstart(copy, "--size", "tiny")
    check(summary)
    assert "kill -9 of both processes" in output
    again, same = quickstart(copy, "--size", "tiny")
    assert "Nothing is trained again" in again
    assert same == summary
    # interrupted: a stage whose output is not there is done again, the others are not
    (copy / "runs/quickstart/fill_ins.json").unlink()
    output, _ = quickstart(copy, "--size", "tiny")
    assert "[8/8]" in output
    assert "[7/8]" not in output
    # the results of one size are never shown as those of another
    refused = start(copy)
    assert refused.returncode == 1
    assert "holds a run of size tiny; --again removes it" in refused.stderr


def test_it_ends_at_the_first_command_that_fails_and_goes_on_from_there(copy: Path) -> None:
    tokenizer = copy / "configs" / "quickstart_tokenizer.yaml"
    right = tokenizer.read_text()
    tokenizer.write_text(right.replace("vocab_size", "vocabulary_size"))
    for headings in (["[1/8]", "[2/8]"], ["[2/8]"]):
        failed = start(copy, "--size", "tiny")
        assert failed.returncode == 2
        assert [line.split()[0] for line in failed.stdout.splitlines()] == headings
        assert "vocabulary_size" in failed.stderr
        assert "quickstart: exit code 2 from: python -m data.tokenizer" in failed.stderr


@pytest.mark.slow
def test_the_full_quickstart_learns(copy: Path) -> None:
    _, summary = quickstart(copy)
    check(summary)
    assert summary["mlm_loss_last"] <= summary["unigram_entropy"] - 2
    scores = summary["classification"]
    assert scores["pretrained"] > scores["from_scratch"]
    assert scores["pretrained"] > scores["majority"]

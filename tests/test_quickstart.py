"""`make quickstart`, with its smallest sizes, in a copy of the tree; the full one is a slow test."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
STAGES = {"corpus", "tokenizer", "pretrain", "evaluate", "export", "classification", "matching", "fill-ins"}


def quickstart(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    command = [sys.executable, "-m", "examples.quickstart", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "runs/quickstart/summary.json").read_text())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("benchmarks", "configs", "data", "encoder", "finetune", "pretrain"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def check(summary: dict[str, Any]) -> None:
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
    # interrupted: a stage that is not in the list of done ones is done again, the others are not
    stages = copy / "runs/quickstart/stages.json"
    done = json.loads(stages.read_text())
    del done["stages"]["fill-ins"]
    stages.write_text(json.dumps(done))
    output, _ = quickstart(copy, "--size", "tiny")
    assert "[8/8]" in output
    assert "[7/8]" not in output


@pytest.mark.slow
def test_the_full_quickstart_learns(copy: Path) -> None:
    _, summary = quickstart(copy)
    check(summary)
    assert summary["mlm_loss_last"] <= summary["unigram_entropy"] - 2
    scores = summary["classification"]
    assert scores["pretrained"] > scores["from_scratch"]
    assert scores["pretrained"] > scores["majority"]

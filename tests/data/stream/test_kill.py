"""kill -9 at random moments, also while the state is written, and on with another number of real gloo processes."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data import DataConfig


@pytest.mark.parametrize("num_kills", [5, pytest.param(int(os.environ.get("KILLS", "30")), marks=pytest.mark.slow)])
def test_kills_and_changing_processes_never_change_a_batch(
    tmp_path: Path,
    root: Path,
    config: Callable[..., DataConfig],
    tokenizer: str,
    run_steps: Any,
    hashes: Any,
    documents: Any,
    num_kills: int,
) -> None:
    num_steps = 300 * num_kills
    long = config(num_epochs=2000, rows_per_step=4)
    (tmp_path / "config.json").write_text(long.model_dump_json())
    script = str(Path(__file__).with_name("elastic.py"))
    arguments = [str(tmp_path / "config.json"), tokenizer, str(tmp_path), str(num_kills), str(num_steps)]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, script, *arguments], env=environment, check=True, timeout=600 + 10 * num_kills)
    killed_at = json.loads((tmp_path / "killed.json").read_text())
    assert len({step for step in killed_at if step}) > num_kills // 3, (
        f"hardly any kill hit a running step: {killed_at}"
    )
    steps = run_steps(long, tokenizer, num_steps, seed=7)
    straight = dict(enumerate(hashes(steps), 1))
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert {step for step, _, _ in log} == set(straight)
    assert [entry for entry in log if straight[entry[0]] != entry[1]] == []
    seen = Counter(piece for pieces in {step: pieces for step, _, pieces in log}.values() for piece in pieces)
    assert seen == Counter(documents(steps))

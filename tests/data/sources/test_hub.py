"""Hugging Face data sets as streams: a local folder here, a hub on loopback in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data import DataConfig

Make = Callable[..., DataConfig]


def test_a_folder_is_read_once(
    tmp_path: Path, config: Make, tokenizer: str, run_steps: Any, documents: Any, hashes: Any
) -> None:
    for shard in range(3):
        rows = [f"shard {shard} row {i} words" for i in range(20)]
        pq.write_table(pa.table({"text": rows}), tmp_path / f"train-{shard}.parquet")
    hub = config(sources=[{"hub": str(tmp_path)}], num_epochs=1)
    straight = run_steps(hub, tokenizer)
    found = documents(straight)
    assert len(found) == len(set(found)) == 60
    in_workers = hub.model_copy(update={"num_workers": 3})
    assert hashes(run_steps(in_workers, tokenizer)) == hashes(straight)
    again = run_steps(in_workers, tokenizer, state=straight[0][0].state)
    assert hashes(again) == hashes(straight[1:])


def test_a_hub_on_loopback(root: Path) -> None:
    """Everything in over_hub.py."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "pytest", "-q", str(Path(__file__).with_name("over_hub.py"))]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

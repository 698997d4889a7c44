"""launch/slurm.sh under a real Slurm on loopback, where the fixtures of ../shared/cluster and its packages are."""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretrain_runs import read_metrics

FIXTURES = Path(__file__).parents[3] / "shared" / "cluster" / "fixtures.py"
if not FIXTURES.exists():
    pytest.skip("needs ../shared/cluster", allow_module_level=True)
spec = importlib.util.spec_from_file_location("cluster_fixtures", FIXTURES)
assert spec
assert spec.loader
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)
slurm = fixtures.slurm


@pytest.mark.slow
def test_a_preempted_job_saves_is_requeued_and_ends(
    slurm: Any, write_config: Callable[..., Path], tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    config = write_config(training={"num_steps": 400, "rows_per_device": 2}, checkpoint={"save_every": 10_000})
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm.env |= {"PATH": path, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    options = ("--ntasks-per-node=2", "--gpus-per-node=0", f"--output={tmp_path}/log")
    job = slurm.out("sbatch", "--parsable", *options, str(root / "launch" / "slurm.sh"), str(config), cwd=root)

    def steps() -> int:
        return (folder / "metrics.jsonl").read_text().count('"train"') if (folder / "metrics.jsonl").exists() else 0

    deadline = time.monotonic() + 60
    while steps() < 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert steps() >= 5, (tmp_path / "log").read_text()
    slurm.out("scancel", "--signal=USR1", "--batch", job)  # what --signal=B:USR1@120 sends before a time limit
    slurm.wait(job, "COMPLETED", s=120)
    starts = read_metrics(folder, "start")
    assert [entry["processes"] for entry in starts] == [2, 2]
    assert starts[1]["resumed_from"]
    assert json.loads((folder / "status.json").read_text()) == {"state": "done", "step": 400, "reason": ""}
    assert [entry["step"] for entry in read_metrics(folder)] == list(range(1, 401))

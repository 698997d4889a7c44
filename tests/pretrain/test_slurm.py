"""launch/slurm.sh under a real Slurm on loopback, where the fixtures of ../shared/cluster and its packages are."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretrain_runs import read_metrics, read_metrics_safely, run

FIXTURES = Path(__file__).parents[3] / "shared" / "cluster" / "fixtures.py"
if not FIXTURES.exists():
    pytest.skip("needs ../shared/cluster", allow_module_level=True)
spec = importlib.util.spec_from_file_location("cluster_fixtures", FIXTURES)
assert spec
assert spec.loader
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)
slurm = fixtures.slurm


Write = Callable[..., Path]


@pytest.fixture
def submit(slurm: Any, tmp_path: Path, root: Path) -> Callable[..., str]:
    """`submit(config, *options)`: sbatch launch/slurm.sh with two processes on one node; the job's number."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm.env |= {"PATH": path, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}

    def job(config: Path, *options: str) -> str:
        given = ("--ntasks-per-node=2", "--gpus-per-node=0", f"--output={tmp_path}/log", *options)
        script = str(root / "launch" / "slurm.sh")
        return str(slurm.out("sbatch", "--parsable", *given, script, str(config), cwd=root))

    return job


def wait_for_steps(folder: Path, count: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while len(read_metrics_safely(folder, "train")) < count:
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "no log"
        time.sleep(0.1)


@pytest.mark.slow
def test_a_preempted_job_saves_is_requeued_and_ends(
    slurm: Any, submit: Callable[..., str], write_config: Write, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    config = write_config(training={"num_steps": 400, "rows_per_device": 2}, checkpoint={"save_every": 10_000})
    job = submit(config)
    wait_for_steps(folder, 5, tmp_path / "log")
    slurm.out("scancel", "--signal=USR1", "--batch", job)  # what --signal=B:USR1@120 sends before a time limit
    slurm.wait(job, "COMPLETED", s=120)
    starts = read_metrics(folder, "start")
    assert [entry["processes"] for entry in starts] == [2, 2]
    assert starts[1]["resumed_from"]
    assert json.loads((folder / "status.json").read_text()) == {"state": "done", "step": 400, "reason": ""}
    assert [entry["step"] for entry in read_metrics(folder)] == list(range(1, 401))


@pytest.mark.slow
def test_a_job_whose_time_runs_out_goes_on_to_the_losses_of_the_straight_run(
    slurm: Any, submit: Callable[..., str], write_config: Write, tmp_path: Path
) -> None:
    """A limit of one minute, with workers: Slurm warns by itself, the script requeues, until the run is done."""
    values = {"training": {"num_steps": 4000, "rows_per_device": 2}, "checkpoint": {"save_every": 100_000}}
    encoder = {"num_layers": 4, "hidden_size": 64, "num_heads": 2, "hidden_dropout": 0.1}
    job = submit(write_config(**values, encoder=encoder, data__num_workers=1), "--time=1", "--signal=B:USR1@30")
    slurm.wait(job, "COMPLETED", s=280)
    assert run(write_config("straight", **values, encoder=encoder), processes=2)[0] == 0
    history = read_metrics(tmp_path / "run")
    assert len(read_metrics(tmp_path / "run", "start")) >= 2  # else the limit was not reached
    straight = [(entry["step"], entry["loss"], entry["batch_hash"]) for entry in read_metrics(tmp_path / "straight")]
    assert [(entry["step"], entry["loss"], entry["batch_hash"]) for entry in history] == straight


@pytest.mark.slow
def test_srun_alone_and_an_array_of_retries(
    slurm: Any, submit: Callable[..., str], write_config: Write, tmp_path: Path, root: Path
) -> None:
    config = write_config(training={"num_steps": 6, "rows_per_device": 2})
    command = ("srun", "--ntasks=2", "--nodes=1", "--overcommit", sys.executable, "-m", "pretrain", str(config))
    slurm.out(*command, cwd=root)  # with MASTER_ADDR, as this Slurm's host names lead nowhere
    assert [entry["processes"] for entry in read_metrics(tmp_path / "run", "start")] == [2]
    job = submit(write_config("tried", training={"num_steps": 6, "rows_per_device": 2}), "--array=1-2%1")
    for task in (1, 2):  # the second finds the run complete, and ends well
        slurm.wait(f"{job}_{task}", "COMPLETED", s=120)
    assert json.loads((tmp_path / "tried" / "status.json").read_text())["state"] == "done"
    assert [entry["step"] for entry in read_metrics(tmp_path / "tried")] == list(range(1, 7))


@pytest.mark.slow
def test_the_doctor_by_srun_alone(submit: Callable[..., str], slurm: Any, write_config: Write, root: Path) -> None:
    """`submit` gives this Slurm's environment. srun passes the exit code on, where launchers make it 1."""
    command = ["srun", "--ntasks=2", "--nodes=1", "--overcommit", sys.executable, "-m", "pretrain.doctor"]
    command.append(str(write_config()))
    output = slurm.out(*command, cwd=root)
    assert "pass  processes: 2 on 1 host(s): 2 on " in output
    assert "pass  all-reduce: gloo, sums right" in output
    failed = subprocess.run(
        [*command, "data.num_lanes=3"], cwd=root, env=slurm.env, capture_output=True, text=True, timeout=60
    )
    assert failed.returncode == 2, failed.stdout + failed.stderr
    assert "error: 1 of 20 checks failed: number of processes\n" in failed.stderr

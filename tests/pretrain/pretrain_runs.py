"""Start real runs under each launcher, and read what they wrote."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def read_metrics(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of one kind in a run's history."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def read_metrics_safely(run: Path, kind: str = "start") -> list[dict[str, Any]]:
    """As `read_metrics`, passing over lines that a kill tore; empty where there is no history yet."""
    path, entries = run / "metrics.jsonl", []
    for line in (path.read_text() if path.exists() else "").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return [entry for entry in entries if entry["kind"] == kind]


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
LAUNCHERS: dict[str, list[str]] = {
    "none": [sys.executable, "-m", "pretrain"],
    "torchrun": [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node={n}", "-m", "pretrain",
    ],
    "elastic": [
        sys.executable, "-m", "torch.distributed.run", "--rdzv_backend=c10d", "--rdzv_endpoint=127.0.0.1:{port}",
        "--rdzv_id={port}", "--nnodes=1", "--nproc_per_node={n}", "--max_restarts=2", "-m", "pretrain",
    ],
    "accelerate": [
        sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file",
        "launch/accelerate_2cpu.yaml", "--num_processes={n}", "--main_process_port=0", "-m", "pretrain",
    ],
    "deepspeed": [
        sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus={n}", "--master_port={port}",
        "--module", "pretrain",
    ],
}  # fmt: skip


def start(
    config: Path,
    *overrides: str,
    processes: int = 1,
    launcher: str = "torchrun",
    module: str = "pretrain",
) -> "subprocess.Popen[str]":
    """Start `python -m pretrain` (or a module beside this file) on so many processes from the repository's root."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [part.format(n=processes, port=port) for part in LAUNCHERS[launcher][:-1]]
    return subprocess.Popen(
        [*command, module, str(config), *overrides],
        cwd=Path(__file__).parents[2],
        env={**ENVIRONMENT, "PYTHONPATH": f"{Path(__file__).parents[2]}:{Path(__file__).parent}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that a test can signal the whole job as a group
    )


def run(config: Path, *overrides: str, **how: Any) -> tuple[int, str]:
    """Start, wait (two minutes at most); exit code and output."""
    process = start(config, *overrides, **how)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def run_cases(script: Path, folder: Path, processes: int, *arguments: str) -> dict[str, Any]:
    """What a script of cases (`engines/distributed_cases.py`) writes into `folder`, run by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    root = Path(__file__).parents[2]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(root)}
    command += [str(script), str(folder), *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())

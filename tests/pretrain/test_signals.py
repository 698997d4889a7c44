"""Signals that reach any process of a job at any moment: the launcher, the whole process group, one rank.

With two data workers a rank, as the presets have them: a worker that died of the signal would end the job before it
could save.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pretrain_runs import read_metrics, read_metrics_safely, run, start

from pretrain.__main__ import main
from pretrain.checkpoint.format import checkpoint_step, find_checkpoints

Write = Callable[..., Path]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
TARGETS = ("launcher", "group", "rank")


def send(job: "subprocess.Popen[str]", number: signal.Signals, target: str, folder: Path) -> None:
    if target == "rank":
        starts = read_metrics_safely(folder)
        living = [pid for pid in starts[-1]["pids"] if psutil.pid_exists(pid)] if starts else []
        if living:
            os.kill(living[-1], number)
            return
    with suppress(ProcessLookupError):
        os.killpg(job.pid, number) if target == "group" else job.send_signal(number)


def wait_for_the_end(job: "subprocess.Popen[str]", seconds: float = 90.0) -> str:
    """Wait for every process of the job, which a launcher that died first leaves behind; what they printed."""
    output, _ = job.communicate(timeout=seconds)  # ends when the last process closes the pipe
    return output


def assert_saved(folder: Path, output: str) -> int:
    """The newest checkpoint is that of the last finished step, and the status says so; the step."""
    status = json.loads((folder / "status.json").read_text())
    assert status["state"] in ("preempted", "done"), (status, output)
    whole = find_checkpoints(folder / "checkpoints").whole
    newest = checkpoint_step(whole[-1]) if whole else 0
    finished = max((entry["step"] for entry in read_metrics_safely(folder, "train")), default=0)
    assert newest == finished == status["step"], (status, newest, finished, output)
    return newest


def values(num_steps: int) -> dict[str, Any]:
    return {
        "data__num_workers": 2, "engine": {"name": "deepspeed", "zero_stage": 1},
        "training": {"num_steps": num_steps, "rows_per_device": 2}, "checkpoint": {"save_every": 10_000},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("launcher", "target", "number"),
    [
        ("torchrun", "group", signal.SIGTERM),
        ("accelerate", "launcher", signal.SIGUSR1),
        ("deepspeed", "launcher", signal.SIGTERM),
        ("torchrun", "rank", signal.SIGINT),
    ],
)
def test_a_signal_to_any_process_saves_the_finished_step(
    write_config: Write, tmp_path: Path, launcher: str, target: str, number: signal.Signals
) -> None:
    config, folder = write_config(**values(200)), tmp_path / "run"
    job = start(config, processes=2, launcher=launcher)
    deadline = time.monotonic() + 60
    while not read_metrics_safely(folder, "train") and time.monotonic() < deadline:
        time.sleep(0.02)
    send(job, number, target, folder)
    assert assert_saved(folder, wait_for_the_end(job)) < 200
    main([str(config), "engine={name: ddp}"])  # goes on as one process, to the batches of a straight run
    main([str(write_config("straight", **values(200))), "engine={name: ddp}", "data.num_workers=0"])
    found, straight = (
        {entry["step"]: (entry["batch_hash"], round(entry["loss"], 4)) for entry in read_metrics(tmp_path / name)}
        for name in ("run", "straight")
    )
    assert found == straight


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed"])
def test_twenty_signals_at_random_moments_lose_nothing(write_config: Write, tmp_path: Path, launcher: str) -> None:
    """At any moment: imports, group start, DeepSpeed's initialisation, a step, an evaluation, a save."""
    (tmp_path / "held.txt").write_text("bal bel bil bol\n" * 400)
    evaluation = {"every": 7, "rows": 64, "sources": [{"path": str(tmp_path / "held.txt")}]}
    shape = {"num_layers": 4, "hidden_size": 64, "num_heads": 2, "hidden_dropout": 0.1}
    changes = {**values(600), "evaluation": evaluation, "checkpoint": {"save_every": 5}, "encoder": shape}
    config, folder = write_config(**changes), tmp_path / "run"
    rng, signalled_in_training = random.Random(launcher), 0
    for _ in range(20):
        before = len(read_metrics_safely(folder, "train"))
        job = start(config, processes=2, launcher=launcher)
        time.sleep(rng.uniform(0.2, 14.0))
        send(job, rng.choice(SIGNALS), rng.choice(TARGETS), folder)
        output = wait_for_the_end(job)
        if len(read_metrics_safely(folder, "train")) > before:
            signalled_in_training += 1
            assert_saved(folder, output)
        assert "failed: " not in output, output  # what a rank says; the launchers print traces of their own
    assert run(config, processes=2, launcher=launcher)[0] == 0
    assert run(write_config("straight", **changes), processes=2, launcher=launcher)[0] == 0
    keys = ("loss", "batch_hash", "learning_rate")
    found, straight = (
        {entry["step"]: [entry[key] for key in keys] for entry in read_metrics_safely(tmp_path / name, "train")}
        for name in ("run", "straight")
    )
    assert found == straight
    evaluations = [
        {entry["step"]: entry["loss"] for entry in read_metrics_safely(tmp_path / name, "eval")}
        for name in ("run", "straight")
    ]
    assert evaluations[0] == evaluations[1]
    print(f"{launcher}: 20 signals, {signalled_in_training} of them after a step of their start")

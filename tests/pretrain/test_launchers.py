"""Each launcher for real, with two processes; then what goes wrong in the world outside the process."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pretrain_runs import ENVIRONMENT, read_metrics, run, start
from safetensors.torch import load_file

from pretrain.__main__ import main

Write = Callable[..., Path]
ROOT = Path(__file__).parents[2]


def status(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "status.json").read_text())


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def steps_so_far(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_text().count('"kind": "train"') if path.exists() else 0


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed", "none"])
def test_r14_every_launcher_trains_and_saves_the_same_run(write_config: Write, tmp_path: Path, launcher: str) -> None:
    engine = {"name": "deepspeed", "zero_stage": 1}
    trackers = {"trackers": ["wandb"]}
    config = write_config(engine=engine, logging=trackers, training={"num_steps": 4, "rows_per_device": 2})
    processes = 1 if launcher == "none" else 2
    code, output = run(config, "checkpoint.save_every=2", processes=processes, launcher=launcher)
    assert code == 0, output
    folder = tmp_path / "run"
    assert status(folder) == {"state": "done", "step": 4, "reason": ""}
    started = read_metrics(folder, "start")[0]
    assert started["processes"] == len(set(started["pids"])) == processes
    # r39: one tracking run whatever the number of processes; r14: the sharded save came back
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 1
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["step_00000002", "step_00000004"]
    losses = [entry["loss"] for entry in read_metrics(folder)]
    rates = [entry["learning_rate"] for entry in read_metrics(folder)]
    reference_config = write_config("reference", training={"num_steps": 4, "rows_per_device": 2})
    main([str(reference_config)])
    reference = read_metrics(tmp_path / "reference")
    assert losses == pytest.approx([entry["loss"] for entry in reference], abs=1e-5)
    assert rates == [entry["learning_rate"] for entry in reference]


def test_r18_r39_four_processes_have_the_same_rates_one_tracking_run_and_a_bit_equal_resume(
    write_config: Write, tmp_path: Path
) -> None:
    training = {"num_steps": 5, "rows_per_device": 2}
    rates = {}
    for processes in (1, 4):
        config = write_config(f"of_{processes}", training=training, logging={"trackers": ["wandb"]})
        if processes == 1:
            main([str(config)])
        else:
            code, output = run(config, "checkpoint.save_every=2", processes=processes)
            assert code == 0, output
        folder = tmp_path / f"of_{processes}"
        rates[processes] = [
            (entry["learning_rate"], entry["masked_tokens"], entry["tokens"]) for entry in read_metrics(folder)
        ]
        assert len(list((folder / "wandb").glob("offline-run-*"))) == 1
    assert rates[1] == rates[4]
    _assert_resume_is_bit_equal(write_config("of_4", training=training), tmp_path / "of_4", 4)


def _assert_resume_is_bit_equal(config: Path, folder: Path, processes: int) -> None:
    """Go on from step 2 of a finished run: from three ranks on, the order of a sum depends on its place in a bucket."""
    final = max(folder.glob("checkpoints/step_*"))
    losses, weights = [entry["loss"] for entry in read_metrics(folder)], load_file(final / "model.safetensors")
    for checkpoint in folder.glob("checkpoints/step_*"):
        if checkpoint.name > "step_00000002":
            shutil.rmtree(checkpoint)
    code, output = run(config, "checkpoint.save_every=2", processes=processes)
    assert code == 0, output
    assert [entry["loss"] for entry in read_metrics(folder)] == losses + losses[2:]
    for name, tensor in load_file(final / "model.safetensors").items():
        assert torch.equal(tensor, weights[name]), name


def test_r06_r08_ranks_that_run_out_at_different_times_end_together(write_config: Write, tmp_path: Path) -> None:
    for number, count in enumerate((10, 1, 7)):
        texts = [f"bal bel bil {'bol ' * (6 if i % 2 else 1)}" for i in range(count)]
        (tmp_path / f"{number}.txt").write_text("\n".join(texts) + "\n")
    source = [{"path": str(tmp_path / "*.txt"), "format": "text"}]
    training = {"num_steps": 100, "rows_per_device": 1}
    config = write_config(
        data__sources=source, data__num_epochs=1, data__rows_per_step=2, data__num_lanes=2, training=training
    )
    code, output = run(config, processes=2)
    assert code == 0, output
    folder = tmp_path / "run"
    last = read_metrics(folder)[-1]["step"]
    assert 0 < last < 100
    assert status(folder) == {"state": "done", "step": last, "reason": ""}
    assert (folder / "checkpoints" / f"step_{last:08d}" / "COMPLETE").exists()


def test_bad_input_exits_with_2_and_one_line(write_config: Write) -> None:
    code, output = run(write_config(encoder__num_headz=3), launcher="none")
    assert code == 2
    assert output.count("\n") == 1
    assert "unknown key 'encoder.num_headz'; did you mean 'encoder.num_heads'?" in output


def test_ranks_with_different_configurations_are_refused(write_config: Write, tmp_path: Path) -> None:
    """As when a host has an older copy of the file: no launcher here, each rank gets its own command line."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    config, ranks = str(write_config()), []
    for rank, rate in enumerate(("0.001", "0.002")):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, "-m", "pretrain", config, f"optimizer.learning_rate={rate}"]
        environment = ENVIRONMENT | place
        ranks.append(subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=100)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [2, 2], errors
    assert all("another configuration" in error and "optimizer.learning_rate" in error for error in errors), errors
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert status(tmp_path / "run")["state"] == "bad_input"


def test_ranks_whose_local_copies_of_the_text_differ_are_refused(write_config: Write, tmp_path: Path) -> None:
    """As when each node has its own copy of the corpus: a relative path, and each rank in a folder of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    config, ranks = str(write_config(data__sources=[{"path": "text.txt"}])), []
    for rank in range(2):
        node = tmp_path / f"node{rank}"
        node.mkdir()
        (node / "text.txt").write_text(f"bal bel bil bol {'bul' if rank else 'dal'}\n" * 200)
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**ENVIRONMENT, **place, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "pretrain", config]
        ranks.append(subprocess.Popen(command, cwd=node, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=100)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [2, 2], errors
    assert all("has other data than rank" in error and "'text.txt' changed" in error for error in errors), errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_asks_to_be_requeued(write_config: Write, tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    config = write_config(training={"num_steps": 2000, "rows_per_device": 2}, checkpoint={"save_every": 1000})
    process = start(config, launcher="none")
    until(lambda: steps_so_far(folder) >= 3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75, output
    reached = status(folder)
    assert reached["state"] == "preempted"
    assert (folder / "checkpoints" / f"step_{reached['step']:08d}" / "COMPLETE").exists()


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_job_and_the_run_goes_on_bit_equal(write_config: Write, tmp_path: Path) -> None:
    engine = {"name": "deepspeed", "zero_stage": 2}
    training = {"num_steps": 60, "rows_per_device": 2}
    straight = write_config("straight", engine=engine, training=training)
    assert run(straight, processes=2)[0] == 0
    killed = write_config("killed", engine=engine, training=training, checkpoint={"save_every": 5})
    folder = tmp_path / "killed"
    process = start(killed, processes=2)
    until(lambda: steps_so_far(folder) >= 8)
    os.kill(read_metrics(folder, "start")[0]["pids"][1], signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert run(killed, processes=2)[0] == 0
    by_step = {entry["step"]: (entry["loss"], entry["batch_hash"]) for entry in read_metrics(folder)}
    expected = {entry["step"]: (entry["loss"], entry["batch_hash"]) for entry in read_metrics(tmp_path / "straight")}
    assert by_step == expected


@pytest.mark.slow
def test_an_elastic_job_restarts_itself_and_goes_on(write_config: Write, tmp_path: Path) -> None:
    """c10d rendezvous with --max_restarts: a rank is killed, torchrun starts all of them again."""
    training = {"num_steps": 60, "rows_per_device": 2}
    assert run(write_config("straight", training=training), processes=2)[0] == 0
    values = {"training": training, "checkpoint": {"save_every": 5}, "data__num_workers": 1}
    folder, process = tmp_path / "killed", start(write_config("killed", **values), processes=2, launcher="elastic")
    until(lambda: steps_so_far(folder) >= 8)
    os.kill(read_metrics(folder, "start")[0]["pids"][1], signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert len(read_metrics(folder, "start")) == 2
    assert status(folder) == {"state": "done", "step": 60, "reason": ""}
    by_step = {entry["step"]: (entry["loss"], entry["batch_hash"]) for entry in read_metrics(folder)}
    expected = {entry["step"]: (entry["loss"], entry["batch_hash"]) for entry in read_metrics(tmp_path / "straight")}
    assert by_step == expected


def test_a_hung_rank_ends_the_job_within_the_limit_and_every_stack_is_kept(write_config: Write, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = write_config(training={"num_steps": 5000, "rows_per_device": 2}, engine={"timeout_seconds": 8})
    process = start(config, processes=2, module="hanging_rank")
    until(lambda: (folder / "hangs").exists())
    began = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 25  # the limit, and the launcher's own time
    assert process.returncode != 0
    stacks = [(folder / f"stacks_rank_{rank}.txt").read_text() for rank in (0, 1)]
    assert "hang" in stacks[1]
    assert all("train_step" in stack or "hang" in stack for stack in stacks)
    assert status(folder)["state"] == "failed"
    assert "no progress for 8 s (engine.timeout_seconds)" in status(folder)["reason"]
    assert output.count("failed: rank ") == 2


def test_the_rank_that_meets_bad_input_is_the_one_that_is_quoted(write_config: Write, tmp_path: Path) -> None:
    """The other rank's lost connection is a consequence, and must not hide the reason."""
    for number in range(8):
        texts = [f"bal bel bil {'bol ' * 6}" for _ in range(12)]
        (tmp_path / f"{number}.txt").write_bytes(
            "\n".join(texts).encode() + (b"\n\xff\xfe\n" if number == 1 else b"\n")
        )
    source = [{"path": str(tmp_path / "*.txt"), "format": "text"}]
    config = write_config(
        data__sources=source, data__rows_per_step=2, data__num_lanes=2, data__window_documents=2,
        training={"num_steps": 500, "rows_per_device": 1},
    )  # fmt: skip
    code, output = run(config, processes=2)
    assert code != 0
    found = status(tmp_path / "run")
    assert found["state"] == "bad_input", output
    assert "1.txt" in found["reason"]
    assert found["reason"].startswith("rank 1: ")


def test_a_full_disk_keeps_the_last_whole_checkpoint(write_config: Write, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        # about 0.65 MB a checkpoint: two or three fit
        config = write_config(run_dir=str(disk / "run"), checkpoint={"save_every": 2, "keep_last": 50})
        code, output = run(config, processes=2)
        folder = disk / "run"
        assert code == 1
        assert "no checkpoint was written" in output
        assert "the disk is full" in output
        assert re.search(rf"{folder}/checkpoints/step_\d+: the disk is full \(\d+ bytes needed, \d+ free\)", output)
        assert read_metrics(folder)[-1]["step"] == 20  # it went on, on both ranks, to the last step
        assert status(folder)["state"] == "failed"
        assert "the last checkpoint could not be saved" in status(folder)["reason"]
        assert "bytes needed" in status(folder)["reason"]
        whole = sorted((folder / "checkpoints").glob("step_*/COMPLETE"))
        assert whole
        newest = load_file(whole[-1].parent / "model.safetensors")
        assert all(bool(torch.isfinite(tensor).all()) for tensor in newest.values())
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
def test_the_torchrun_script_starts_again_after_a_preemption(write_config: Write, tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "run"
    config = write_config(training={"num_steps": 300, "rows_per_device": 2}, checkpoint={"save_every": 1000})
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = subprocess.Popen(["launch/torchrun.sh", "1", str(config)], cwd=root, env={**os.environ, "PATH": path})
    until(lambda: steps_so_far(folder) >= 5)
    os.kill(read_metrics(folder, "start")[0]["pids"][0], signal.SIGUSR1)
    assert script.wait(timeout=120) == 0
    assert len(read_metrics(folder, "start")) == 2
    assert status(folder) == {"state": "done", "step": 300, "reason": ""}
    assert [entry["step"] for entry in read_metrics(folder)] == list(range(1, 301))

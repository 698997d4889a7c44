"""ZeRO-2 over two hosts, by each launcher; and a cable that is pulled in the middle of a run."""

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pretrain_runs import ENVIRONMENT, read_metrics
from two_hosts import TwoHosts, possible

from pretrain.__main__ import main

Write = Callable[..., Path]
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LIMIT = 15.0  # engine.timeout_seconds

LAUNCHERS: dict[str, list[str]] = {
    "torchrun": [
        "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", "--node_rank={rank}", "--master_addr=hosta",
        "--master_port={port}", "-m", "pretrain",
    ],
    "deepspeed": [
        "deepspeed.launcher.runner", "--hostfile={hostfile}", "--no_ssh", "--node_rank={rank}", "--master_addr=hosta",
        "--master_port={port}", "--module", "pretrain",
    ],
    "accelerate": [
        "accelerate.commands.accelerate_cli", "launch", "--use_deepspeed", "--deepspeed_multinode_launcher=standard",
        "--num_machines=2", "--num_processes=2", "--machine_rank={rank}", "--main_process_ip=hosta",
        "--main_process_port={port}", "--mixed_precision=no", "-m", "pretrain",
    ],
}  # fmt: skip
BY_FILE = [
    "accelerate.commands.accelerate_cli", "launch", "--config_file", "launch/accelerate_2nodes.yaml",
    "--num_processes=2", "--machine_rank={rank}", "--main_process_ip=hosta", "--main_process_port={port}",
    "-m", "pretrain",
]  # fmt: skip


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    """Two fresh hosts; skips where they cannot be made."""
    if not possible():
        pytest.skip("needs root, iproute2 and the right to make network namespaces")
    pair = TwoHosts()
    try:
        pair.up()
        yield pair
    finally:
        pair.down()


def launch(hosts: TwoHosts, launcher: str, config: Path, folder: Path) -> list[Any]:
    """One launcher a host, as on a cluster without ssh."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "hostfile").write_text("hosta slots=1\nhostb slots=1\n")
    processes = []
    for rank, host in enumerate("ab"):
        command = [
            part.format(rank=rank, port=port, hostfile=folder / "hostfile")
            for part in (LAUNCHERS | {"file": BY_FILE})[launcher]
        ]
        log = folder / f"log_{launcher}_{host}"
        processes.append(
            hosts.start(host, [sys.executable, "-m", *command, str(config)], log, cwd=ROOT, env=ENVIRONMENT)
        )
    return processes


def logs(folder: Path) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("log_*")))


def history(run: Path) -> dict[int, tuple[float, str]]:
    return {entry["step"]: (entry["loss"], entry["batch_hash"]) for entry in read_metrics(run)}


def zero2(write_config: Write, name: str, steps: int, **changes: Any) -> Path:
    engine = {"name": "deepspeed", "zero_stage": 2, "timeout_seconds": LIMIT}
    return write_config(name, engine=engine, training={"num_steps": steps, "rows_per_device": 2}, **changes)


@pytest.mark.parametrize("launcher", [*LAUNCHERS, "file"])
def test_two_hosts_train_as_one_process_does(
    write_config: Write, tmp_path: Path, hosts: TwoHosts, launcher: str
) -> None:
    main([str(write_config("alone"))])
    config = zero2(write_config, "both", 20)
    for process in launch(hosts, launcher, config, tmp_path):
        assert process.wait(timeout=120) == 0, logs(tmp_path)
    expected, found = history(tmp_path / "alone"), history(tmp_path / "both")
    assert [batch for _, batch in found.values()] == [batch for _, batch in expected.values()]
    assert [loss for loss, _ in found.values()] == pytest.approx([loss for loss, _ in expected.values()], abs=1e-5)
    assert json.loads((tmp_path / "both" / "status.json").read_text())["state"] == "done"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_cut_cable_ends_the_job_on_both_hosts_and_the_same_command_goes_on(
    write_config: Write, tmp_path: Path, hosts: TwoHosts, launcher: str
) -> None:
    config = zero2(write_config, "run", 40, checkpoint={"save_every": 5})
    run = tmp_path / "run"
    processes = launch(hosts, launcher, config, tmp_path)
    deadline = time.monotonic() + 90
    while len(list(run.glob("checkpoints/step_*/COMPLETE"))) < 2:
        assert time.monotonic() < deadline, logs(tmp_path)
        time.sleep(0.05)
    hosts.cable("down")
    began = time.monotonic()
    codes = [process.wait(timeout=120) for process in processes]
    took = time.monotonic() - began
    assert all(codes), logs(tmp_path)
    assert took < LIMIT + 30, took  # the launchers need some seconds of their own, more on a busy machine
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "failed"
    assert status["reason"].startswith("rank ")
    assert "no progress for 15 s (engine.timeout_seconds)" in status["reason"]
    for host in "ab":
        assert "failed: rank " in (tmp_path / f"log_{launcher}_{host}").read_text()
    assert not hosts.pids("a")
    assert not hosts.pids("b")
    hosts.cable("up")
    for process in launch(hosts, launcher, config, tmp_path):
        assert process.wait(timeout=120) == 0, logs(tmp_path)
    assert read_metrics(run, "start")[1]["resumed_from"]
    straight = zero2(write_config, "straight", 40)
    for process in launch(hosts, launcher, straight, tmp_path):
        assert process.wait(timeout=120) == 0, logs(tmp_path)
    assert history(run) == history(tmp_path / "straight")

"""What a process learns from its environment."""

import os
import subprocess
from typing import Any

import pytest
import torch

from configs import InputError
from pretrain.processes import find_processes

LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHER:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_s13_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "")
    monkeypatch.setenv("WORLD_SIZE", "")
    assert (find_processes().rank, find_processes().world_size) == (0, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"RANK": "first"}, "RANK='first' is not a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "-1"}, "WORLD_SIZE='-1' is not a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2 contradict"),
    ],
)
def test_s13_a_variable_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], message: str
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        find_processes()


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_a_task_that_sees_one_gpu_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun --gpus-per-task=1`: the local rank is above the number of devices that the task sees."""
    gpus(monkeypatch, 1)
    for name, value in {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "3"}.items():
        monkeypatch.setenv(name, value)
    assert find_processes().device == torch.device("cuda", 0)


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 2)
    for name, value in {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="local rank 2 has no GPU of its own: this machine shows 2"):
        find_processes()


SLURM_STEP = {
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[1-2]",
}  # fmt: skip


def test_srun_without_a_launcher_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM_STEP.items():
        monkeypatch.setenv(name, value)

    def scontrol(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command == ["scontrol", "show", "hostnames", "node[1-2]"]
        return subprocess.CompletedProcess(command, 0, stdout="node1\nnode2\n")

    monkeypatch.setattr(subprocess, "run", scontrol)
    processes = find_processes()
    assert (processes.rank, processes.world_size) == (1, 2)
    assert os.environ["MASTER_ADDR"] == "node1"
    assert os.environ["MASTER_PORT"].isdigit()


def test_a_container_without_scontrol_needs_the_first_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SLURM_STEP.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"scontrol does not name the hosts .*; set MASTER_ADDR to its first host"):
        find_processes()
    monkeypatch.setenv("MASTER_ADDR", "node1")
    assert find_processes().world_size == 2

"""The doctor in one process: options, and the checks of a machine that a test cannot change."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from configs import InputError, load_config
from pretrain.checkpoint.format import checkpoint_name
from pretrain.config import PretrainConfig
from pretrain.doctor import devices, machine, storage, verdict
from pretrain.doctor.__main__ import main
from pretrain.doctor.checks import CHECKS
from pretrain.doctor.examination import Examination
from pretrain.doctor.meeting import open_meeting
from pretrain.engines.base import EngineConfig
from pretrain.processes import Processes
from pretrain.runs.lock import FolderLock

GIGABYTE = 10**9


def examination(config: Path | None = None, hosts: dict[int, str] | None = None, device: str = "cpu") -> Examination:
    """Rank 0's, for what a check concludes."""
    x = Examination([str(config)], Processes(0, 1, torch.device(device)), "", open_meeting(0, 1, 1))
    x.meeting.hosts.update(hosts or {0: "a", 1: "a", 2: "b"})
    x.given_config = load_config(PretrainConfig, config) if config else None
    return x


def test_help_lists_the_checks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain.doctor", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("pretrain.doctor", run_name="__main__")
    shown = capsys.readouterr().out
    assert all(check.name in shown and check.meaning in shown for check in CHECKS)
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    "arguments", [[], ["c.yaml", "--fast"], ["c.yaml", "--limit-seconds=0"], ["c.yaml", "--limit-seconds"]]
)
def test_wrong_options_are_told_in_a_line(arguments: list[str]) -> None:
    with pytest.raises(InputError, match=r"usage|unknown option|a number above 0"):
        main(arguments)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "one"}, "the environment must name numbers, not RANK='one'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT must name rank 0's host"),
    ],
)
def test_an_incoherent_environment_is_told_in_a_line(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        main(["run.yaml"])


def test_a_configuration_that_is_wrong_ends_the_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text("run_dir: 1\n")
    assert main([str(tmp_path / "run.yaml"), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["failed"] == ["configuration"]
    assert found["checks"][-1]["name"] == "configuration"


def test_slurm_tasks_that_each_believe_to_be_alone(
    write_config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert main([str(write_config())]) == 2
    assert "FAIL  processes: Slurm started 4 tasks here, and each believes that it is alone" in capsys.readouterr().out


def test_a_run_that_goes_on_or_is_another_one(
    write_config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pretrain.runs.folder import RunFolder
    from pretrain.start import resolve

    path = write_config()
    config = resolve(load_config(PretrainConfig, path))
    folder = RunFolder(config.run_dir)
    folder.path.mkdir()
    folder.write_inputs(config)
    (folder.checkpoints / checkpoint_name(10)).mkdir(parents=True)
    before = sorted(folder.path.rglob("*"))
    lock = FolderLock(folder.path)
    assert main([str(path), "--json"]) == 0
    found = checks(capsys)
    assert (
        found["history"]["found"]
        == "a new run; not whole: step_00000010: half-written, it has no valid COMPLETE marker"
    )
    assert sorted(folder.path.rglob("*")) == before
    lock.acquire()
    assert main([str(path), "--json"]) == 0
    assert "is in use by another running process" in checks(capsys)["history"]["found"]
    lock.release()
    assert main([str(path), "--json", "seed=5"]) == 2
    assert "belongs to another run: 'seed' was 0" in checks(capsys)["history"]["found"]


def checks(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_a_check_that_raises_is_a_failed_one(
    write_config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore lines")

    monkeypatch.setattr(devices, "try_a_layer", explode)
    assert main([str(write_config())]) == 2
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL"))
    assert line.startswith("FAIL  attention: rank 0 (")
    assert "RuntimeError: CUDA error: no kernel image is available for execution on the device; install a torch" in line


def test_old_cards_are_told_their_kernel_and_that_bf16_is_slow(
    write_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(devices, "try_a_layer", lambda *_: None)
    config = write_config(engine={"precision": "bf16"}, encoder={"hidden_size": 64, "num_heads": 1})
    x = examination(config, device="cuda:0")
    found = devices.judge_attention(x, [devices.look_at_attention(x)])
    assert found.level == "pass"
    assert found.found.startswith("kernel 'grouped' (the flash kernel needs compute capability 8.0)")
    card = {"type": "cuda", "name": "Tesla T4", "id": "a 1", "capability": [7, 5], "idle_gpu": False}
    slow = devices.judge_devices(x, [card])
    assert slow.line("devices") == (
        "warn  devices: 1 x Tesla T4: compute capability 7.5 emulates bf16, slowly; set engine.precision: fp32"
    )


def card(**changes: Any) -> dict[str, Any]:
    return {"type": "cuda", "name": "H100", "id": "a 1", "capability": [9, 0], "idle_gpu": False, **changes}


@pytest.mark.parametrize(
    ("cards", "level", "found"),
    [
        ([card(), card(id="a 2"), card(id="b 1")], "pass", "3 x H100"),
        ([card(), card(), card(id="b 1")], "FAIL", "ranks 0-1 (a) share a GPU"),
        ([card(), card(type="cpu", id="")], "FAIL", "cuda on rank 0 (a), cpu on rank 1 (a)"),
        ([card(), card(id="a 2"), card(id="b 1", name="A100")], "warn", "H100 on ranks 0-1 (a), A100 on rank 2 (b)"),
        ([card(type="cpu", id="", idle_gpu=True)], "warn", "the CPU, though there is a GPU that this torch cannot use"),
    ],
)
def test_devices(cards: list[dict[str, Any]], level: str, found: str, write_config: Any) -> None:
    concluded = devices.judge_devices(examination(write_config()), cards)
    assert concluded.level == level
    assert concluded.found.startswith(found)


def test_memory_of_the_model(write_config: Any) -> None:
    x = examination(write_config(), device="cuda")

    def concluded(free: float, taken: float = 0) -> str:
        finding = {"needed": 10 * GIGABYTE, "free": free * GIGABYTE, "taken": taken * GIGABYTE}
        return devices.judge_memory(x, [finding, finding]).level

    assert [concluded(9), concluded(12), concluded(80), concluded(70, taken=10)] == ["FAIL", "warn", "pass", "warn"]
    on_cpu = [{"needed": 10 * GIGABYTE, "free": 18 * GIGABYTE, "taken": 0}] * 2
    assert devices.judge_memory(examination(write_config(), hosts={0: "a", 1: "a"}), on_cpu).level == "FAIL"
    assert devices.judge_memory(examination(write_config(), hosts={0: "a", 1: "b"}), on_cpu).level == "pass"


def test_bytes_a_parameter_costs_a_rank() -> None:
    def cost(stage: Any, precision: Any) -> float:
        return devices.bytes_per_parameter(EngineConfig(name="deepspeed", zero_stage=stage, precision=precision), 4)

    assert devices.bytes_per_parameter(EngineConfig(), 4) == 16
    assert [cost(stage, "fp32") for stage in (1, 2, 3)] == [11, 8, 5]
    assert [cost(stage, "bf16") for stage in (1, 2, 3)] == [7, 5.5, 4]


def test_hosts_that_cannot_be_reached_by_their_name(write_config: Any) -> None:
    findings = [{"world_size": 3, "address": "10.0.0.1", "tasks": 1}] * 2 + [
        {"world_size": 3, "address": "127.0.1.1", "tasks": 1}
    ]
    concluded = machine.judge_processes(examination(), findings)
    assert concluded.level == "warn"
    assert concluded.found == (
        "3 on 2 host(s): 2 on a, 1 on b; the own host name has no address that others could reach on rank 2 (b)"
    )


def test_cores_shared_by_the_processes_of_a_host(write_config: Any) -> None:
    x = examination(write_config(data__num_workers=3))
    finding = {"cores": [0, 1, 2, 3], "wanted": 4, "threads": 1}
    concluded = machine.judge_cores(x, [finding] * 3)
    assert concluded.found == "a gives 4 core(s) to 8 busy threads and data workers"
    apart = [finding, {**finding, "cores": [4, 5, 6, 7]}, finding]
    assert machine.judge_cores(x, apart).level == "pass"


def test_shared_memory_of_a_container() -> None:
    small = {"total": 64 << 20, "free": 60 << 20}
    assert machine.judge_shared_memory(examination(), [small]).level == "pass"
    concluded = machine.judge_shared_memory(examination(device="cuda"), [small, small])
    assert concluded.found == "62.9 MB of 67.1 MB free on ranks 0-1 (a), 1.07 GB are wise"


def test_checkpoints_that_a_run_keeps(write_config: Any) -> None:
    def kept(**policy: Any) -> int:
        config = write_config(training={"num_steps": 100}, data__rows_per_step=8, checkpoint=policy)
        return storage.kept_checkpoints(load_config(PretrainConfig, config))

    assert kept(save_every=10, keep_last=3) == 4
    assert kept(save_every=10, keep_last=30) == 10
    assert kept(save_every=10, keep_last=1, keep_every=20) == 7
    assert kept(save_every=10, keep_last=1, keep_every=15) == 5  # only every 30th step has a checkpoint to keep


def test_ranks_are_named_by_host() -> None:
    hosts = {**dict.fromkeys(range(8), "a"), **dict.fromkeys(range(8, 11), "b")}
    assert verdict.name_ranks([3], hosts) == "rank 3 (a)"
    assert verdict.name_ranks([0, 1, 2, 5, 8, 10, 12], hosts) == "ranks 0-2, 5 (a), 8, 10 (b) and 12 (not seen yet)"
    assert verdict.describe_difference(["x", "x"], hosts) == ""
    assert verdict.describe_difference(["y", *["x"] * 9], hosts) == "x on ranks 1-7 (a) and 8-9 (b), y on rank 0 (a)"

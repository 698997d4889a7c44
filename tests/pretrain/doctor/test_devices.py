"""What is concluded of devices that this machine has not: cards old, shared, of two kinds, full."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pretrain.doctor import devices
from pretrain.doctor.examination import Examination
from pretrain.engines.base import EngineConfig

Examine = Callable[..., Examination]
GIGABYTE = 10**9


def test_old_cards_are_told_their_kernel_and_that_bf16_is_slow(
    examine: Examine, write_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(devices, "try_a_layer", lambda *_: None)
    config = write_config(engine={"precision": "bf16"}, encoder={"hidden_size": 64, "num_heads": 1})
    examination = examine(config, device="cuda:0")
    found = devices.judge_attention(examination, [devices.look_at_attention(examination)])
    assert found.level == "pass"
    assert found.found.startswith("kernel 'grouped' (the flash kernel needs compute capability 8.0)")
    card = {"type": "cuda", "name": "Tesla T4", "id": "a 1", "capability": [7, 5], "idle_gpu": False}
    slow = devices.judge_devices(examination, [card])
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
def test_devices(examine: Examine, cards: list[dict[str, Any]], level: str, found: str, write_config: Any) -> None:
    concluded = devices.judge_devices(examine(write_config()), cards)
    assert concluded.level == level
    assert concluded.found.startswith(found)


def test_memory_of_the_model(examine: Examine, write_config: Any) -> None:
    examination = examine(write_config(), device="cuda")

    def concluded(free: float, taken: float = 0) -> str:
        finding = {"needed": 10 * GIGABYTE, "free": free * GIGABYTE, "taken": taken * GIGABYTE}
        return devices.judge_memory(examination, [finding, finding]).level

    assert [concluded(9), concluded(12), concluded(80), concluded(70, taken=10)] == ["FAIL", "warn", "pass", "warn"]
    on_cpu = [{"needed": 10 * GIGABYTE, "free": 18 * GIGABYTE, "taken": 0}] * 2
    assert devices.judge_memory(examine(write_config(), hosts={0: "a", 1: "a"}), on_cpu).level == "FAIL"
    assert devices.judge_memory(examine(write_config(), hosts={0: "a", 1: "b"}), on_cpu).level == "pass"


def test_bytes_a_parameter_costs_a_rank() -> None:
    def cost(stage: Any, precision: Any) -> float:
        return devices.bytes_per_parameter(EngineConfig(name="deepspeed", zero_stage=stage, precision=precision), 4)

    assert devices.bytes_per_parameter(EngineConfig(), 4) == 16
    assert [cost(stage, "fp32") for stage in (1, 2, 3)] == [11, 8, 5]
    assert [cost(stage, "bf16") for stage in (1, 2, 3)] == [7, 5.5, 4]

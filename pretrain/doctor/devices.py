"""Checks of what computes: the device of each rank, its attention kernel, a step of one layer, memory for the model."""

import os
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from configs import InputError
from encoder import Documents, EncoderConfig, MaskedLanguageModel, attention_kernel, why_not_flash
from pretrain.doctor.examination import Examination, Finding
from pretrain.doctor.verdict import Verdict, describe_difference, failed, in_bytes, passed, warned
from pretrain.engines.base import EngineConfig

NATIVE_BFLOAT16 = (8, 0)  # compute capability
FULL = 0.7  # share of the memory beyond which little is left for activations
USED_BY_OTHERS = 2 << 30  # bytes on a device beyond what this process's own context takes
LENGTHS = (16, 24)  # documents of the step that is tried


def dtype_of(config: EngineConfig) -> torch.dtype:
    """The arithmetic of the layers."""
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def look_at_devices(examination: Examination) -> Finding:
    """The device of this process, after a first operation on it. InputError where it has none."""
    if examination.device_fault:
        raise InputError(examination.device_fault)
    device = examination.processes.device
    torch.ones(8, device=device).sum().item()
    if device.type == "cpu":
        idle = any(Path("/dev").glob("nvidia[0-9]*")) and os.environ.get("CUDA_VISIBLE_DEVICES") != ""
        return {"type": "cpu", "name": "CPU", "id": "", "capability": None, "idle_gpu": idle}
    properties = torch.cuda.get_device_properties(device)
    return {
        "type": device.type, "name": properties.name, "id": f"{socket.gethostname()} {properties.uuid}",
        "capability": list(torch.cuda.get_device_capability(device)), "idle_gpu": False,
    }  # fmt: skip


def judge_devices(examination: Examination, findings: list[Finding]) -> Verdict:
    """The same kind everywhere, one for each rank."""
    kinds = describe_difference([finding["type"] for finding in findings], examination.meeting.hosts)
    if kinds:
        return failed(kinds, "see what nvidia-smi and torch.cuda.is_available() say on the ranks without a GPU")
    identifiers = [finding["id"] for finding in findings if finding["id"]]
    twice = [rank for rank, finding in enumerate(findings) if identifiers.count(finding["id"]) > 1]
    if twice:
        return failed(
            f"{examination.name(twice)} share a GPU", "give each process its own: LOCAL_RANK counts from 0 on each host"
        )
    idle = [rank for rank, finding in enumerate(findings) if finding["idle_gpu"]]
    if idle:
        remedy = "install a CUDA build of torch that the driver can run, or set CUDA_VISIBLE_DEVICES= to mean the CPU"
        return warned(f"the CPU, though there is a GPU that this torch cannot use on {examination.name(idle)}", remedy)
    names = describe_difference([finding["name"] for finding in findings], examination.meeting.hosts)
    if names:
        return warned(names, "the slowest device sets the pace; ask for one kind")
    old = [finding["capability"] for finding in findings if finding["capability"] and _lacks_bfloat16(finding)]
    found = f"{len(findings)} x {findings[0]['name']}"
    if old and examination.config.engine.precision == "bf16":
        shown = ".".join(map(str, old[0]))
        return warned(f"{found}: compute capability {shown} emulates bf16, slowly", "set engine.precision: fp32")
    return passed(found)


def _lacks_bfloat16(finding: Finding) -> bool:
    return tuple(finding["capability"]) < NATIVE_BFLOAT16


def look_at_attention(examination: Examination) -> Finding:
    """Forward and backward of one layer of the run's shape, with the kernel that it gets."""
    if examination.device_fault:
        raise InputError(examination.device_fault)
    config, dtype = examination.config.encoder, dtype_of(examination.config.engine)
    device = examination.processes.device
    try_a_layer(config, device, dtype)
    return {"kernel": attention_kernel(device, dtype, config), "reason": why_not_flash(device, dtype, config)}


def try_a_layer(config: EncoderConfig, device: torch.device, dtype: torch.dtype) -> None:
    """Raise what torch raises when a layer of this shape cannot be trained on the device."""
    one_layer = config.model_copy(update={"num_layers": 1, "vocab_size": 64, "max_length": max(LENGTHS)})
    torch.manual_seed(0)
    model = MaskedLanguageModel(one_layer).to(device)
    ids = torch.arange(sum(LENGTHS), device=device)
    masked = torch.arange(0, sum(LENGTHS), 4, device=device)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = model(ids, Documents.from_lengths(list(LENGTHS)).to(device), masked, ids[masked]).loss_sum
    loss.backward()
    if not torch.isfinite(loss):
        raise ArithmeticError(f"a step of one layer gives the loss {loss.item()}")


def judge_attention(examination: Examination, findings: list[Finding]) -> Verdict:
    """The kernel by name, and why it is not the fast one."""
    difference = describe_difference([finding["kernel"] for finding in findings], examination.meeting.hosts)
    if difference:
        return warned(difference, "the slowest rank sets the pace; ask for one kind of device")
    kernel, reason = findings[0]["kernel"], findings[0]["reason"]
    found = f"kernel '{kernel}'" + (f" ({reason})" if reason else "") + "; a layer runs forward and backward"
    return passed(found)


def look_at_memory(examination: Examination) -> Finding:
    """Bytes of weights, gradients and moments on this rank, and those that are free (on a CPU: for the whole host)."""
    config, device = examination.completed, examination.processes.device
    needed = config.encoder.num_parameters() * bytes_per_parameter(config.engine, examination.processes.world_size)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        taken = total - free - torch.cuda.memory_reserved(device)
        return {"needed": needed, "free": free, "taken": taken}
    return {"needed": needed, "free": psutil.virtual_memory().available, "taken": 0}


def bytes_per_parameter(config: EngineConfig, world_size: int) -> float:
    """Bytes that a parameter costs one rank, activations not counted.

    ZeRO divides moments and master weights over the ranks (stage 1), the gradients too (2), all weights too (3).
    """
    if config.name == "ddp":
        return 16  # weight, gradient, two moments
    working = 2 if config.precision == "bf16" else 4
    stage = config.zero_stage or 1
    weight = working / world_size if stage == 3 else working
    gradient = working / world_size if stage >= 2 else working
    return weight + gradient + 12 / world_size  # the last: fp32 master weight and two moments


def judge_memory(examination: Examination, findings: list[Finding]) -> Verdict:
    """Whether the model's states fit, and who else is on the device."""
    if examination.processes.device.type == "cpu":
        of_host = Counter(examination.meeting.hosts.values())
        findings = [
            f | {"free": f["free"] / of_host[examination.meeting.hosts[rank]]} for rank, f in enumerate(findings)
        ]
    needed, free = max(f["needed"] for f in findings), min(f["free"] for f in findings)
    found = (
        f"{in_bytes(needed)} a rank for weights, gradients and moments (activations come on top), {in_bytes(free)} free"
    )
    remedy = "take more processes with engine.zero_stage 2 or 3, or a smaller encoder"
    short = _ranks(findings, 1.0)
    if short:
        return failed(f"{found}: too little on {examination.name(short)}", remedy)
    taken = [rank for rank, finding in enumerate(findings) if finding["taken"] > USED_BY_OTHERS]
    if taken:
        return warned(
            f"{found}; others use the device of {examination.name(taken)}", "look for their processes with nvidia-smi"
        )
    tight = _ranks(findings, FULL)
    return warned(f"{found}: tight on {examination.name(tight)}", remedy) if tight else passed(found)


def _ranks(findings: Sequence[Finding], share: float) -> list[int]:
    """The ranks whose model takes more than a share of what is free."""
    return [rank for rank, finding in enumerate(findings) if finding["needed"] > share * finding["free"]]

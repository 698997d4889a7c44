"""Accelerate with the settings that this package needs: the process group, the device, autocast."""

import os
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from configs import InputError
from finetune.config import Precision


def make_accelerator(precision: Precision = "fp32") -> Accelerator:
    """The process group of this launch (none, torchrun or accelerate launch). Call it after every check of the input.

    Buffers (position numbers, all constant) are not broadcast: processes may cut a step into different numbers of
    forward passes. On CPUs under torchrun, accelerate takes every process for the only one unless gloo is named.
    """
    cuda = torch.cuda.is_available()
    handlers: list[Any] = [DistributedDataParallelKwargs(broadcast_buffers=False)]
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not cuda:
        handlers.append(InitProcessGroupKwargs(backend="gloo"))
    return Accelerator(cpu=not cuda, mixed_precision="bf16" if precision == "bf16" else "no", kwargs_handlers=handlers)


def refuse_deepspeed() -> None:
    """InputError under an accelerate configuration that asks for DeepSpeed, whose engine would update the weights at
    every micro-batch and leave a part of them in the folder.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() in ("1", "true", "yes"):
        raise InputError(
            "fine-tuning does not run under DeepSpeed: take an accelerate configuration without it, such as "
            "launch/accelerate_8gpu.yaml (distributed_type: MULTI_GPU)"
        )


def is_first_process() -> bool:
    """Whether this process of the launch is the one that writes; known before there is a process group."""
    return int(os.environ.get("RANK", "0")) == 0

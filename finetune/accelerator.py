"""Accelerate, made to tell the truth on CPUs: several gloo processes are several processes."""

import os
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

Precision = Literal["fp32", "bf16"]


def make_accelerator(precision: Precision = "fp32") -> Accelerator:
    """The process group of this launch (none, torchrun or accelerate launch). Call it after every check of the input.

    Buffers (position numbers, all constant) are not broadcast: processes may cut a step into different numbers of
    forward passes. On CPU under torchrun accelerate believes in one process on every rank unless it is given gloo by
    name.
    """
    cuda = torch.cuda.is_available()
    handlers: list[Any] = [DistributedDataParallelKwargs(broadcast_buffers=False)]
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not cuda:
        handlers.append(InitProcessGroupKwargs(backend="gloo"))
    return Accelerator(cpu=not cuda, mixed_precision="bf16" if precision == "bf16" else "no", kwargs_handlers=handlers)

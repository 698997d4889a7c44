"""Accelerate, made to tell the truth on CPUs: several gloo processes are several processes."""

import os
from typing import Literal

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

Precision = Literal["fp32", "bf16"]


def make_accelerator(precision: Precision = "fp32") -> Accelerator:
    """The process group of this launch (none, torchrun or accelerate launch). Call it after every check of the input.

    On CPU under torchrun accelerate believes in one process on every rank unless it is given gloo by name.
    """
    cuda = torch.cuda.is_available()
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    handlers = [InitProcessGroupKwargs(backend="gloo")] if many and not cuda else []
    return Accelerator(
        cpu=not cuda, mixed_precision="bf16" if precision == "bf16" else "no", kwargs_handlers=handlers or None
    )

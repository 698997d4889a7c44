"""Run under torchrun by test_two_processes.py: each case trains on two ranks and must equal one process.

Two steps of AdamW with two accumulated micro-batches a rank, loss = sum over masked tokens / their number on all
ranks. Prints one line of JSON: the largest difference of a weight from the plain one-process run, by case.
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn

from encoder import Documents, EncoderConfig, MaskedLanguageModel

STEPS, MICRO_BATCHES, ROW = 2, 2, 32
SIZE = {"num_layers": 3, "hidden_size": 64, "num_heads": 2, "vocab_size": 203, "max_length": ROW}
SHAPES = {"rope": {"position": "rope"}, "learned": {"position": "learned", "hidden_dropout": 0.1}}
CASES = [
    (engine, shape, every)
    for engine in ("ddp", "zero1", "zero2", "zero3")
    for shape, every in (("rope", 0), ("rope", 1), ("learned", 2))
]


def make_batch(step: int, micro_batch: int, rank: int) -> tuple[Tensor, Documents, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + 10 * micro_batch + rank)
    input_ids = torch.randint(5, 203, (2 * ROW,), generator=generator)
    # rank 1 has no masked token in its last micro-batch: every rank must still take part (R02)
    count = 0 if rank == 1 and micro_batch == 1 else 5 + 2 * rank + step
    masked = torch.randperm(2 * ROW, generator=generator)[:count]
    return input_ids, Documents.from_piece_lengths([[10, 15 + rank], [32]], ROW), masked, input_ids[masked]


def num_masked(step: int) -> int:
    return sum(len(make_batch(step, m, r)[2]) for m in range(MICRO_BATCHES) for r in range(2))


def seeded_loss(model: nn.Module, step: int, micro_batch: int, rank: int) -> Tensor:
    """The share of one micro-batch in the step's loss, with dropout that depends on its place only."""
    torch.manual_seed(1000 + 100 * step + 10 * micro_batch + rank)
    return model(*make_batch(step, micro_batch, rank)).loss_sum / num_masked(step)


def new_model(shape: str, every: int) -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel(EncoderConfig.model_validate(SIZE | SHAPES[shape] | {"gradient_checkpointing": every}))


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def train_alone(shape: str) -> dict[str, Tensor]:
    model = new_model(shape, 0)
    optimizer = new_optimizer(model)
    for step in range(STEPS):
        for micro_batch in range(MICRO_BATCHES):
            for rank in range(2):
                seeded_loss(model, step, micro_batch, rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


def train_ddp(shape: str, every: int) -> dict[str, Tensor]:
    model = new_model(shape, every)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = new_optimizer(model)
    for step in range(STEPS):
        for micro_batch in range(MICRO_BATCHES):
            last = micro_batch == MICRO_BATCHES - 1
            with contextlib.nullcontext() if last else wrapped.no_sync():
                (2 * seeded_loss(wrapped, step, micro_batch, dist.get_rank())).backward()  # DDP takes the mean
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


def train_zero(stage: int, shape: str, every: int) -> dict[str, Tensor]:
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # the default clips to a norm of 1
    }
    model = new_model(shape, every)
    engine, *_ = deepspeed.initialize(model=model, optimizer=new_optimizer(model), config=settings)
    for step in range(STEPS):
        for micro_batch in range(MICRO_BATCHES):
            loss = seeded_loss(engine, step, micro_batch, dist.get_rank())
            engine.backward(2 * MICRO_BATCHES * loss)  # it takes the mean over ranks and micro-batches
            engine.step()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    engine.destroy()
    return weights


def run_cases() -> Iterator[tuple[str, float]]:
    expected = {shape: train_alone(shape) for shape in SHAPES}
    for engine, shape, every in CASES:
        stage = engine.removeprefix("zero")
        weights = train_zero(int(stage), shape, every) if stage.isdigit() else train_ddp(shape, every)
        assert weights.keys() == expected[shape].keys()
        difference = max(float((weights[name] - expected[shape][name]).abs().max()) for name in weights)
        yield f"{engine}-{shape}-{every}", difference


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled for minutes
    os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.init_distributed("gloo")
    differences = dict(run_cases())
    if dist.get_rank() == 0:
        print(json.dumps(differences), flush=True)
    dist.barrier()
    dist.destroy_process_group()

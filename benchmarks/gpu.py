"""Training throughput on one CUDA device: tokens per second, MFU and memory, in bf16 with fp32 weights.

    python -m benchmarks.gpu [base large] [lengths=512,1024,4096] [compile=true] [steps=20]

One line of JSON a case. MFU counts the multiply-adds of the model (3 × forward, recomputation not counted) against the
device's dense bf16 peak. The kernel is named, and proven by the profiler's kernel names.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.inputs import MASK_RATE, shape_of
from encoder import Documents, EncoderConfig, MaskedLanguageModel, attention_kernel
from pretrain.monitor.hardware import peak_flops

PRESETS = ("base", "large")
TOKENS = 65_536  # a step
VOCAB_SIZE = 32_768


def packed_batch(length: int, seed: int) -> tuple[Tensor, Documents, Tensor, Tensor]:
    """Full rows of `length` tokens, half of them one document, half of them documents of random lengths."""
    generator = torch.Generator().manual_seed(seed)
    pieces = []
    for row in range(TOKENS // length):
        cuts = torch.randperm(length - 1, generator=generator)[: 0 if row % 2 else 3].sort().values + 1
        bounds = [0, *cuts.tolist(), length]
        pieces.append([end - start for start, end in itertools.pairwise(bounds)])
    input_ids = torch.randint(5, VOCAB_SIZE, (TOKENS,), generator=generator)
    masked = torch.randperm(TOKENS, generator=generator)[: int(MASK_RATE * TOKENS)]
    documents = Documents.from_piece_lengths(pieces, length).to("cuda")
    return input_ids.cuda(), documents, masked.cuda(), input_ids[masked].cuda()


def measure(name: str, length: int, checkpointing: int, compiled: bool, steps: int) -> dict[str, object]:
    """Tokens per second, MFU and peak memory of `steps` training steps after 5 that warm up."""
    config = EncoderConfig(
        **shape_of(name), vocab_size=VOCAB_SIZE, max_length=length, gradient_checkpointing=checkpointing
    )
    torch.manual_seed(0)
    model = MaskedLanguageModel(config).cuda()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [packed_batch(length, seed) for seed in range(4)]
    torch.cuda.reset_peak_memory_stats()

    def step(number: int) -> None:
        batch = batches[number % len(batches)]
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(*batch).loss_sum / len(batch[2])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for number in range(5):
        step(number)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(steps):
        step(number)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / steps
    lengths = torch.tensor([n for count, n in batches[0][1].groups for _ in range(count)], dtype=torch.float64)
    flops = 3 * config.flops_per_token(float((lengths**2).sum() / lengths.sum()), MASK_RATE) * TOKENS
    peak = peak_flops(torch.device("cuda"))
    return {
        "model": name,
        "length": length,
        "checkpointing": checkpointing,
        "compile": compiled,
        "kernel": attention_kernel("cuda", torch.bfloat16, config),
        "flash_in_profile": flash_runs(step),
        "tokens_per_second": round(TOKENS / seconds),
        "mfu": round(flops / seconds / peak, 3) if peak else None,
        "peak_memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def flash_runs(step: Callable[[int], None]) -> bool:
    """True when a flash attention kernel runs in a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(0)
        torch.cuda.synchronize()
    return any("flash" in event.key.lower() for event in profile.key_averages())


def main(arguments: list[str]) -> None:
    """Every preset at every length, with and without gradient checkpointing."""
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    names = [argument for argument in arguments if "=" not in argument] or PRESETS
    lengths = [int(length) for length in options.get("lengths", "512,1024,4096").split(",")]
    compiled, steps = options.get("compile", "false") == "true", int(options.get("steps", 20))
    for name in names:
        for length in lengths:
            for checkpointing in (0, 1):
                print(json.dumps(measure(name, length, checkpointing, compiled, steps)), flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])

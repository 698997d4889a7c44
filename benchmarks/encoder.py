"""The encoder beside transformers' of the same shape: tokens per second, arithmetic and memory, on this machine.

    python -m benchmarks.encoder speed small natural [dropout=0.1] [steps=9]
    python -m benchmarks.encoder memory base [1048576]

Both sides train (forward, backward, AdamW) on the same documents and the same masks, in turn, in one process; figures
are medians. One thread, unless OMP_NUM_THREADS says more. Documents: paragraphs of en_news_wiki_web in file order, cut
at the row's length (`natural`), or cut into rows of that length (`full`). The peer pads to the longest document of its
batch and computes logits for every token; tokens are counted without padding. `arithmetic` is the ratio of
multiply-adds that the two sides need.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from tokenizers import BertWordPieceTokenizer
from torch import Tensor, nn

from benchmarks.inputs import DATA, MASK_RATE, lines_of, shape_of
from configs import IGNORED_LABEL
from encoder import Documents, EncoderConfig, MaskedLanguageModel

PAD, CLS, SEP, MASK, VOCAB_SIZE = 0, 101, 102, 103, 30_522


class Size(NamedTuple):
    """A shape, the longest document in tokens, and documents in a batch."""

    num_layers: int
    hidden_size: int
    num_heads: int
    length: int
    rows: int


SIZES = {
    "small": Size(**shape_of("small"), length=128, rows=32),
    "base": Size(**shape_of("base"), length=512, rows=8),
}


class Batch(NamedTuple):
    """Documents with their masks, as either side wants them."""

    packed: tuple[Tensor, Documents, Tensor, Tensor]
    padded: dict[str, Tensor | None]
    lengths: list[int]


def paragraphs() -> Iterator[list[int]]:
    """Token ids of every paragraph, in file order."""
    tokenizer = BertWordPieceTokenizer(str(DATA / "vocab" / "bert-base-uncased.vocab.txt"), lowercase=True)
    for line in lines_of("pretrain/en_news_wiki_web"):
        for paragraph in filter(str.strip, json.loads(line)["text"].split("\n")):
            yield tokenizer.encode(paragraph, add_special_tokens=False).ids


def documents(kind: str, size: Size) -> Iterator[list[int]]:
    """Documents of at most `size.length` tokens; all of that length when `kind` is full."""
    content, remainder = size.length - 2, list[int]()
    for ids in paragraphs():
        if kind == "natural":
            yield [CLS, *ids[:content], SEP]
            continue
        remainder += ids
        while len(remainder) >= content:
            yield [CLS, *remainder[:content], SEP]
            remainder = remainder[content:]


def batches(kind: str, size: Size, steps: int) -> list[Batch]:
    """`steps` batches of `size.rows` documents, 15 % of their tokens masked."""
    source, generator = documents(kind, size), torch.Generator().manual_seed(0)
    return [_batch([next(source) for _ in range(size.rows)], generator) for _ in range(steps)]


def _batch(rows: list[list[int]], generator: torch.Generator) -> Batch:
    lengths = [len(row) for row in rows]
    ids = torch.tensor([token for row in rows for token in row])
    chosen = (torch.rand(len(ids), generator=generator) < MASK_RATE) & (ids != CLS) & (ids != SEP)
    masked_index = chosen.nonzero()[:, 0]
    targets = ids[masked_index]
    ids = torch.where(chosen, MASK, ids)
    labels = torch.full_like(ids, IGNORED_LABEL)
    labels[masked_index] = targets
    shape = (len(rows), max(lengths))
    keep = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    padded = {
        "input_ids": torch.full(shape, PAD).masked_scatter(keep, ids),
        "labels": torch.full(shape, IGNORED_LABEL).masked_scatter(keep, labels),
        "attention_mask": None if keep.all() else keep.long(),
    }
    return Batch((ids, Documents.from_lengths(lengths), masked_index, targets), padded, lengths)


def our_config(size: Size, dropout: float, gradient_checkpointing: int = 0) -> EncoderConfig:
    """Pre-LN, learned positions, GELU: the shape of RobertaPreLayerNorm."""
    return EncoderConfig(
        num_layers=size.num_layers,
        hidden_size=size.hidden_size,
        num_heads=size.num_heads,
        position="learned",
        vocab_size=VOCAB_SIZE,
        max_length=size.length,
        embedding_dropout=dropout,
        hidden_dropout=dropout,
        attention_dropout=dropout,
        gradient_checkpointing=gradient_checkpointing,
    )


def peer_model(size: Size, dropout: float) -> nn.Module:
    """transformers' RobertaPreLayerNorm with SDPA."""
    from transformers import AutoConfig, AutoModelForMaskedLM  # our side does not load it, in memory either

    config = AutoConfig.for_model(
        "roberta-prelayernorm",
        vocab_size=VOCAB_SIZE,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=4 * size.hidden_size,
        max_position_embeddings=size.length + 1,
        pad_token_id=PAD,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa").train()


def our_step(model: nn.Module, batch: Batch) -> Tensor:
    """Mean loss of our side."""
    loss: Tensor = model(*batch.packed).loss_sum / len(batch.packed[2])
    return loss


def peer_step(model: nn.Module, batch: Batch) -> Tensor:
    """Mean loss of the peer."""
    loss: Tensor = model(**batch.padded).loss
    return loss


def timed_step(
    step: Callable[[nn.Module, Batch], Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
) -> float:
    """Seconds of one training step."""
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    step(model, batch).backward()
    optimizer.step()
    return time.perf_counter() - start


def flops(config: EncoderConfig, batch: Batch) -> tuple[float, float]:
    """Floating point operations of a training step: ours and the peer's."""
    tokens, padded = sum(batch.lengths), len(batch.lengths) * max(batch.lengths)
    seen = sum(length**2 for length in batch.lengths) / tokens
    ours = config.flops_per_token(seen, len(batch.packed[2]) / tokens) * tokens
    return 3 * ours, 3 * config.flops_per_token(max(batch.lengths), 1.0) * padded


def matmul_rate(size: Size, tokens: int) -> float:
    """Floating point operations a second of the feed-forward layer's product and its two gradients, float32."""
    x, w = torch.randn(tokens, size.hidden_size), torch.randn(4 * size.hidden_size, size.hidden_size)
    y = torch.empty(tokens, 4 * size.hidden_size)
    start = time.perf_counter()
    torch.mm(x, w.T, out=y)
    torch.mm(y, w, out=x)
    torch.mm(y.T, x, out=w)
    return 3 * 2 * tokens * w.numel() / (time.perf_counter() - start)


def speed(name: str, kind: str, dropout: float = 0.0, steps: int = 9) -> dict[str, float]:
    """Train both sides in turn on the same batches and compare."""
    size = SIZES[name]
    config = our_config(size, dropout)
    torch.manual_seed(0)
    sides = [(our_step, MaskedLanguageModel(config)), (peer_step, peer_model(size, dropout))]
    ready = [(step, model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)) for step, model in sides]
    seconds, rates, work = list[list[float]](), list[float](), list[tuple[float, float]]()
    tokens = []
    for number, batch in enumerate(batches(kind, size, steps + 1)):
        pair = [timed_step(step, model, optimizer, batch) for step, model, optimizer in ready]
        rate = matmul_rate(size, sum(batch.lengths))
        if number:  # the first one warms up
            seconds.append(pair)
            rates.append(rate)
            work.append(flops(config, batch))
            tokens.append(sum(batch.lengths))
    median = statistics.median
    return {
        "ours_tokens_per_second": median(n / pair[0] for n, pair in zip(tokens, seconds, strict=True)),
        "peer_tokens_per_second": median(n / pair[1] for n, pair in zip(tokens, seconds, strict=True)),
        "ratio": median(pair[1] / pair[0] for pair in seconds),
        "arithmetic": median(theirs / ours for ours, theirs in work),
        "gflops_per_second": median(w[0] / pair[0] for w, pair in zip(work, seconds, strict=True)) / 1e9,
        "matmul_gflops_per_second": median(rates) / 1e9,
        "of_matmul_rate": median(w[0] / p[0] / r for w, p, r in zip(work, seconds, rates, strict=True)),
        "peer_of_matmul_rate": median(w[1] / p[1] / r for w, p, r in zip(work, seconds, rates, strict=True)),
    }


def peak_memory(side: str, name: str) -> float:
    """MiB at the peak of two training steps on 16 full rows, in this process, weights and optimizer included."""
    size = SIZES[name]._replace(rows=16)
    every = int(side == "ours_checkpointed")
    step, model = (
        (peer_step, peer_model(size, 0.0))
        if side == "peer"
        else (our_step, MaskedLanguageModel(our_config(size, 0.0, every)))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for batch in batches("full", size, 2):
        timed_step(step, model, optimizer, batch)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory(name: str, threshold: str | None = None) -> dict[str, float]:
    """`peak_memory` of the three sides, each in a process of its own, and the ratios to the peer's.

    With a `threshold` in bytes, larger tensors go back to the system when they are freed, on every side alike;
    without, glibc's heap keeps what its own rule of thumb says.
    """
    environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": threshold} if threshold else {})
    peaks = {}
    for side in ("peer", "ours", "ours_checkpointed"):
        command = [sys.executable, "-m", "benchmarks.encoder", "peak", side, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        peaks[side] = float(done.stdout.splitlines()[-1])
    return peaks | {f"{side}_to_peer": peaks[side] / peaks["peer"] for side in ("ours", "ours_checkpointed")}


def main(arguments: list[str]) -> None:
    """Run what the module's docstring names; prints one JSON object."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    what, *rest = arguments
    options = dict(argument.split("=", 1) for argument in rest if "=" in argument)
    plain = [argument for argument in rest if "=" not in argument]
    if what == "peak":
        print(peak_memory(*plain))
    elif what == "memory":
        print(json.dumps({key: round(value, 3) for key, value in memory(*plain).items()}))
    else:
        dropout, steps = float(options.get("dropout", 0)), int(options.get("steps", 9))
        print(json.dumps({key: round(value, 3) for key, value in speed(*plain, dropout, steps).items()}))


if __name__ == "__main__":
    main(sys.argv[1:])

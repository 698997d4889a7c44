"""`python -m data batches`: the global batches of a run as JSON lines, for looking at them and for comparing runs."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import orjson

from configs import InputError, load_config
from data import hashing
from data.config import DataRun
from data.stream.loader import Batch, BatchLoader
from data.stream.state import counts_of, merge_states

FLAGS = ("--steps", "--start", "--processes", "--workers")


def main(arguments: list[str]) -> int:
    """Print one object a step: steps start + 1 … start + steps, resumed from the state after step `start`."""
    flags, rest = _flags(arguments)
    if not rest:
        raise InputError(
            "usage: python -m data batches CONFIG --steps N [--start K] [--processes W] [--workers n] [...]"
        )
    if "--workers" in flags:
        rest.append(f"data.num_workers={flags['--workers']}")
    run = load_config(DataRun, rest[0], rest[1:], ignore_other_sections=True)
    world_size, start = flags.get("--processes", 1), flags.get("--start", 0)
    state = None
    if start:
        for _, batches in zip(range(start), global_batches(run, world_size), strict=False):
            state = merge_states([batch.state for batch in batches])
    batches = []
    with contextlib.suppress(BrokenPipeError):
        for _, batches in zip(range(flags.get("--steps", 1)), global_batches(run, world_size, state), strict=False):
            print(orjson.dumps(to_json(batches)).decode(), flush=True)
    if batches:
        _tell_skipped(merge_states([batch.state for batch in batches]), run)
    return 0


def _tell_skipped(state: dict[str, Any], run: DataRun) -> None:
    for source, counts in zip(run.data.sources, counts_of(state), strict=True):
        for kind, places in counts.places.items():
            skipped, replaced = counts.skipped.get(kind, 0), counts.replaced.get(kind, 0)
            what = f"{skipped} skipped, {replaced} replaced; first at {places[0]}"
            print(f"{source.path or source.hub}: {kind}: {what}", file=sys.stderr)


def _flags(arguments: list[str]) -> tuple[dict[str, int], list[str]]:
    flags: dict[str, int] = {}
    rest = []
    pending = iter(arguments)
    for argument in pending:
        name, equals, value = argument.partition("=")
        if name not in FLAGS:
            if argument.startswith("-"):
                raise InputError(f"unknown option {argument}; allowed: {', '.join(FLAGS)}")
            rest.append(argument)
            continue
        value = value if equals else next(pending, "")
        if not value.isdigit():
            raise InputError(f"{name} takes a number, not '{value}'")
        flags[name] = int(value)
    return flags, rest


def global_batches(run: DataRun, world_size: int, state: dict[str, Any] | None = None) -> Iterator[list[Batch]]:
    """The batches of all ranks, step by step, until a whole step has no token (num_epochs are over)."""
    loaders = [
        BatchLoader(run.data, run.tokenizer, run.seed, rank=rank, world_size=world_size, state=state)
        for rank in range(world_size)
    ]
    for batches in zip(*loaders, strict=True):
        if sum(batch.tokens for batch in batches) == 0:
            return
        yield list(batches)


def to_json(batches: list[Batch]) -> dict[str, Any]:
    """One step as commands.md describes it, rows in the run's order."""
    world_size, num_rows = len(batches), sum(len(batch.input_ids) for batch in batches)
    places = [(k % world_size, k // world_size) for k in range(num_rows)]
    size = num_rows * batches[0].input_ids.shape[1]
    return {
        "step": batches[0].step,
        "hash": hashing.format_hash(sum(batch.hash for batch in batches)),
        "input_ids": [batches[rank].input_ids[row].tolist() for rank, row in places],
        "labels": [batches[rank].labels[row].tolist() for rank, row in places],
        "documents": [batches[rank].documents[row] for rank, row in places],
        "fill": sum(batch.tokens for batch in batches) / size,
    }

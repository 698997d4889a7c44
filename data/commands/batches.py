"""`python -m data batches`: the global batches of a run as JSON lines, for looking at them and for comparing runs."""

import contextlib
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import orjson

from configs import InputError, load_config
from data import hashing
from data.config import DataRun
from data.stream.loader import Batch, BatchLoader
from data.stream.state import State, counts_of, merge_states

USAGE = "python -m data batches CONFIG --steps N [--start K] [--processes W] [--workers n] [key=value ...]"
FLAGS = ("--steps", "--start", "--processes", "--workers")


def main(arguments: list[str]) -> int:
    """Print one object a step: steps start + 1 … start + steps, resumed from the state after step `start`."""
    flags, rest = _parse_flags(arguments)
    if not rest:
        raise InputError(f"usage: {USAGE}")
    if "--workers" in flags:
        rest.append(f"data.num_workers={flags['--workers']}")
    run = load_config(DataRun, rest[0], rest[1:], ignore_other_sections=True)
    world_size = flags.get("--processes", 1)
    state = None
    for step in itertools.islice(global_steps(run, world_size), flags.get("--start", 0)):
        state = merge_states([batch.state for batch in step])
    step = []
    with contextlib.suppress(BrokenPipeError):
        for step in itertools.islice(global_steps(run, world_size, state), flags.get("--steps", 1)):
            print(orjson.dumps(to_json(step)).decode(), flush=True)
    if step:
        _print_faults(merge_states([batch.state for batch in step]), run)
    return 0


def global_steps(run: DataRun, world_size: int, state: State | None = None) -> Iterator[list[Batch]]:
    """Each step as the batches of all ranks, until a whole step has no token (num_epochs are over)."""
    loaders = [
        BatchLoader(run.data, run.tokenizer, run.seed, rank=rank, world_size=world_size, state=state)
        for rank in range(world_size)
    ]
    for batch_of_rank in zip(*loaders, strict=True):
        if sum(batch.tokens for batch in batch_of_rank) == 0:
            return
        yield list(batch_of_rank)


def to_json(step: list[Batch]) -> dict[str, Any]:
    """One step, from the batches of all ranks, with its rows in the run's order."""
    world_size, num_rows = len(step), sum(len(batch.input_ids) for batch in step)
    places = [(step[k % world_size], k // world_size) for k in range(num_rows)]
    size = num_rows * step[0].input_ids.shape[1]
    return {
        "step": step[0].step,
        "hash": hashing.format_hash(sum(batch.hash for batch in step)),
        "input_ids": [batch.input_ids[row].tolist() for batch, row in places],
        "labels": [batch.labels[row].tolist() for batch, row in places],
        "documents": [batch.piece_ids[row] for batch, row in places],
        "fill": sum(batch.tokens for batch in step) / size,
    }


def _print_faults(state: State, run: DataRun) -> None:
    for source, counts in zip(run.data.sources, counts_of(state), strict=True):
        for fault, places in counts.places.items():
            skipped, replaced = counts.skipped.get(fault, 0), counts.replaced.get(fault, 0)
            what = f"{skipped} skipped, {replaced} replaced; first at {places[0]}"
            print(f"{source.title}: {fault}: {what}", file=sys.stderr)


def _parse_flags(arguments: list[str]) -> tuple[dict[str, int], list[str]]:
    """The numbers of the options, and the other arguments."""
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

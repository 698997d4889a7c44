"""Predictions of a stream of rows, in order, on any number of processes, each row once, in bounded memory.

Rows are read in chunks; a chunk is tokenised, sorted by length, cut into batches under a token budget, and the
batches are dealt to the processes; the small per-row predictions are gathered and put back in order. The plan is the
same on every process, so batches (and with them every score) do not depend on how many there are. Cost: one chunk of
rows and its predictions.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from finetune.reading.batching import token_budget, token_budget_batches
from finetune.reading.rows import Row
from finetune.tasks.protocol import Example, Task

CHUNK = 2048  # rows read, sorted and gathered together


def predictions(
    task: Task, model: torch.nn.Module, rows: Iterable[Row], max_tokens: int | None, accelerator: Accelerator
) -> Iterator[tuple[Any, Any]]:
    """Yield (target, prediction) of every row, in order, on every process. `model` is an unwrapped one."""
    stream = iter(rows)
    while chunk := list(islice(stream, CHUNK)):
        examples = task.encode(chunk, training=False)
        yield from _chunk_predictions(task, model, examples, max_tokens, accelerator)


def _chunk_predictions(
    task: Task, model: torch.nn.Module, examples: list[Example], max_tokens: int | None, accelerator: Accelerator
) -> Iterator[tuple[Any, Any]]:
    batches = token_budget_batches(
        [example.length for example in examples], token_budget(max_tokens, accelerator.device)
    )
    found: dict[int, Any] = {}
    was_training = model.training
    model.eval()
    with torch.inference_mode(), accelerator.autocast():
        for batch in batches[accelerator.process_index :: accelerator.num_processes]:
            found.update(zip(batch, task.predict(model, [examples[i] for i in batch]), strict=True))
    model.train(was_training)
    if accelerator.num_processes > 1:
        for part in gather_object([found]):
            found.update(part)
    for index, example in enumerate(examples):
        yield example.target, found[index]

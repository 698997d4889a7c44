"""Predictions of a stream of rows, in order, on any number of processes, each row once, in bounded memory.

Rows are read in chunks; a chunk is tokenised, sorted by length, split into batches under a token budget, and the
batches are dealt to the processes; the small per-row predictions are gathered and put back in order. The plan is the
same on every process, so batches (and with them every score) do not depend on how many there are. Cost: one chunk of
rows and its predictions.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from finetune.config import ColumnMapping
from finetune.reading.batching import token_budget, token_budget_batches
from finetune.reading.columns import read_roles
from finetune.reading.rows import Row
from finetune.tasks.protocol import Example, Task

ROWS_PER_CHUNK = 2048  # rows read, sorted and gathered together


class Predictor:
    """Runs models of one task over rows; `max_tokens` of a batch, padding included (None: what suits the device)."""

    def __init__(self, task: Task[Any], accelerator: Accelerator, max_tokens: int | None) -> None:
        self.task, self.accelerator = task, accelerator
        self.budget = token_budget(max_tokens, accelerator.device)

    def predictions(self, model: torch.nn.Module, rows: Iterable[Row]) -> Iterator[tuple[Any, Any]]:
        """Yield (target, prediction) of every row, in order, on every process. `model` is an unwrapped one."""
        stream = iter(rows)
        while chunk := list(islice(stream, ROWS_PER_CHUNK)):
            examples = self.task.encode(chunk, training=False)
            yield from zip((example.target for example in examples), self._predict(model, examples), strict=True)

    def _predict(self, model: torch.nn.Module, examples: list[Example]) -> list[Any]:
        """The predictions of a chunk, in order."""
        batches = token_budget_batches([example.length for example in examples], self.budget)
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        predicted: dict[int, Any] = {}
        was_training = model.training
        model.eval()
        with torch.inference_mode(), self.accelerator.autocast():
            for batch in batches[rank::processes]:
                predicted.update(zip(batch, self.task.predict(model, [examples[i] for i in batch]), strict=True))
        model.train(was_training)
        if processes > 1:
            for part in gather_object([predicted]):
                predicted.update(part)
        return [predicted[i] for i in range(len(examples))]

    def score_files(self, model: torch.nn.Module, paths: Sequence[str], columns: ColumnMapping) -> dict[str, Any]:
        """Scores over the rows of all files, with how many texts were truncated or read in windows.

        With several files, `files` has the scores of each.
        """
        self.task.inputs.take_counts()
        pairs = {
            path: list(self.predictions(model, read_roles(path, self.task.scoring_roles, columns))) for path in paths
        }
        scores: dict[str, Any] = dict(self.task.score([pair for part in pairs.values() for pair in part]))
        if len(pairs) > 1:
            scores["files"] = {path: self.task.score(part) for path, part in pairs.items()}
        return scores | {f"{name}_texts": count for name, count in self.task.inputs.take_counts().items()}

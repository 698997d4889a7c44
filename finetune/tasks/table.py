"""The table of tasks: which columns each reads (the most specific kind first) and the class that knows the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finetune.config import FinetuneConfig
from finetune.reading.columns import Kind
from finetune.reading.inputs import Inputs
from finetune.reading.rows import Row
from finetune.tasks.answering import Answering
from finetune.tasks.classification import Classification
from finetune.tasks.matching import Matching
from finetune.tasks.protocol import Task
from finetune.tasks.tagging import Tagging


@dataclass(frozen=True)
class TaskRow:
    """A row of the table: kinds of files to train on, to score and to predict, as tuples of roles; the task's class."""

    train: Sequence[Kind]
    test: Sequence[Kind]
    predict: Sequence[Kind]
    task: Any

    @property
    def roles(self) -> list[str]:
        """Every role that a column may be mapped to."""
        return list(dict.fromkeys(role for kind in (*self.train, *self.test) for role in kind))


TASKS = {
    "classification": TaskRow(
        train=[("text_a", "text_b", "label"), ("text", "label")],
        test=[("text_a", "text_b", "label"), ("text", "label")],
        predict=[("text_a", "text_b"), ("text",)],
        task=Classification,
    ),
    "matching": TaskRow(
        train=[("text_a", "text_b", "negative"), ("text_a", "text_b", "score"), ("text_a", "text_b"), ("text",)],
        test=[("text_a", "text_b", "score"), ("query", "target")],
        predict=[("text_a", "text_b")],
        task=Matching,
    ),
    "tagging": TaskRow(train=[("tokens", "tags")], test=[("tokens", "tags")], predict=[("tokens",)], task=Tagging),
    "answering": TaskRow(
        train=[("question", "context", "answers")],
        test=[("question", "context", "answers")],
        predict=[("question", "context")],
        task=Answering,
    ),
}


def make_task(config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> Task:
    """The configured task, with what it learns from its training rows (class names, kind, range of scores)."""
    return TASKS[config.task].task.from_training_rows(config, inputs, rows)

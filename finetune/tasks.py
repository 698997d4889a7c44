"""The table of tasks: which columns each reads (the most specific kind first) and the class that knows the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finetune import classification, matching
from finetune.columns import Kind
from finetune.config import FinetuneConfig
from finetune.inputs import Inputs
from finetune.protocol import Task
from finetune.rows import Row


@dataclass(frozen=True)
class TaskRow:
    """A row of the table: kinds of training files and of scored files, as tuples of roles, and the task's class."""

    train: Sequence[Kind]
    test: Sequence[Kind]
    task: Any

    @property
    def roles(self) -> list[str]:
        """Every role that a column may be mapped to."""
        return list(dict.fromkeys(role for kind in (*self.train, *self.test) for role in kind))


TASKS = {
    "classification": TaskRow(classification.TRAIN_KINDS, classification.TEST_KINDS, classification.Classification),
    "matching": TaskRow(matching.TRAIN_KINDS, matching.TEST_KINDS, matching.Matching),
}


def make_task(config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> Task:
    """The configured task, with what it learns from its training rows (class names, kind, range of scores)."""
    return TASKS[config.task].task.from_training_rows(config, inputs, rows)

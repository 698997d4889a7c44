"""The table of tasks: the one place where a task's name meets its class."""

from typing import Any

from finetune.config import TaskName
from finetune.tasks.answering import Answering
from finetune.tasks.classification import Classification
from finetune.tasks.matching import Matching
from finetune.tasks.protocol import Task
from finetune.tasks.tagging import Tagging

TASKS: dict[TaskName, type[Task[Any]]] = {
    "classification": Classification,
    "matching": Matching,
    "tagging": Tagging,
    "answering": Answering,
}

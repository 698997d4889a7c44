"""What the rest of the package asks of a task: one object per run, which knows its head, its loss and its scores.

The rows that a task gets have roles for keys (`reading.columns`). Its losses are sums and its examples carry weights,
so that a step does not depend on how many processes share a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor, nn

from configs import InputError
from finetune.config import FinetuneConfig, TaskName
from finetune.folder.description import ModelDescription
from finetune.folder.write import new_model_folder
from finetune.reading.columns import RoleSet
from finetune.reading.inputs import Encoding, Inputs
from finetune.reading.rows import Row


@dataclass(frozen=True, slots=True)
class Example:
    """One row (or one window of it), tokenised: its encodings, its target, its weight in the loss."""

    encodings: list[Encoding]
    target: Any = None
    weight: float = 1.0

    @property
    def length(self) -> int:
        """Tokens."""
        return sum(len(encoding["input_ids"]) for encoding in self.encodings)


ExampleT = TypeVar("ExampleT", bound=Example)


class Task(ABC, Generic[ExampleT]):
    """Base of the tasks. What has a value here is what most tasks have; the rest is each task's own."""

    name: ClassVar[TaskName]
    metrics: ClassVar[tuple[str, ...]]  # of which `metric` is one; the first is the default
    training_roles: ClassVar[Sequence[RoleSet]]  # the most specific set first, here and below
    scoring_roles: ClassVar[Sequence[RoleSet]]
    prediction_roles: ClassVar[Sequence[RoleSet]]
    output_names: ClassVar[tuple[str, ...]] = ("logits",)  # of the tensors that the model returns
    outputs_per_token: ClassVar[bool] = False  # those tensors are (rows, tokens, …)
    # the loss compares the rows of a batch: batches are whole, of equal size and not grouped by length
    compares_rows: ClassVar[bool] = False

    def __init__(self, description: ModelDescription, inputs: Inputs, max_tokens: int | None = None) -> None:
        """The task of a folder, or of the one that a training will write; `max_tokens` of a batch, padding included.

        InputError for a metric that the task does not compute; without one the task's own is taken.
        """
        self.metric = description.metric or self.metrics[0]
        if self.metric not in self.metrics:
            raise InputError(f"metric: {self.name} has no '{self.metric}'; allowed: {', '.join(self.metrics)}")
        self.description = description.model_copy(update={"task": self.name, "metric": self.metric})
        self.inputs, self.max_tokens = inputs, max_tokens
        self.labels = description.labels or []  # class names or tags by id; empty where the task has none
        self.label_ids = {name: i for i, name in enumerate(self.labels)}

    @classmethod
    def default_metric(cls, config: FinetuneConfig) -> str:
        """The metric of a configuration that names none."""
        return cls.metrics[0]

    @classmethod
    @abstractmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> Self:
        """The task to train, with what it learns from its rows (class names, range of scores)."""

    @abstractmethod
    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        """The model with its head, pretrained or (`from_scratch`) random, fp32, on the CPU."""

    @abstractmethod
    def target(self, row: Row) -> Any:
        """What is right for the row, None where it holds no answer; InputError naming a row whose answer is wrong."""

    @abstractmethod
    def encode(self, rows: Sequence[Row], *, training: bool) -> list[ExampleT]:
        """Tokenise and check rows: one example per row (when training, answering gives one per window)."""

    @abstractmethod
    def loss(self, model: nn.Module, examples: list[ExampleT]) -> Tensor:
        """Sum of the losses of this process's examples, a scalar; over all processes they add up to the whole."""

    @abstractmethod
    def predict(self, model: nn.Module, examples: list[ExampleT]) -> list[Any]:
        """One small prediction per example (never logits of a whole set); called in eval mode without gradients."""

    @abstractmethod
    def score(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        """Scores of (target, prediction) of each row, `metric` among them; at least one row."""

    @abstractmethod
    def output(self, prediction: Any) -> dict[str, Any]:
        """The prediction as a row of `finetune.predict`."""

    def majority(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        """Scores on the targets `test` of always answering with the most frequent target of `train`.

        Only tasks with labels have it; the configuration refuses it for the others.
        """
        raise NotImplementedError(self.name)

    def diagnose(self, model: nn.Module, examples: Sequence[ExampleT]) -> dict[str, float]:
        """Numbers about a model beside its scores, from training examples; {} where the task has none."""
        return {}

    def save(self, model: Any, folder: Path) -> None:
        """Write a folder that plain transformers (or sentence-transformers) loads, with `finetune.json`."""
        with new_model_folder(folder, self.inputs, self.description) as path:
            model.save_pretrained(path)

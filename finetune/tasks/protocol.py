"""What the engine asks of a task. A task is one object a run: it knows its head, its loss and its metric."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from finetune.reading.inputs import Encoding, Inputs
from finetune.reading.rows import Row


@dataclass(frozen=True, slots=True)
class Example:
    """One row (or one window of it), tokenised: its encodings, what is right, its share in the loss.

    `layout` says where things are in the encodings: first pieces of words (tagging), offsets of windows (answering).
    """

    encodings: list[Encoding]
    target: Any = None
    weight: float = 1.0
    layout: Any = None

    @property
    def length(self) -> int:
        """Tokens."""
        return sum(len(encoding["input_ids"]) for encoding in self.encodings)

    def weightless(self) -> "Example":
        """The same with no share in the loss."""
        return replace(self, weight=0.0)


class Task(Protocol):
    """The rows of the table in `tasks.py`. Rows that a task gets have their columns renamed to roles."""

    metric: str
    inputs: Inputs
    contrastive: bool  # the loss compares the rows of a batch: batches are whole and not grouped by length

    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        """The model with its head, pretrained or (`from_scratch`) random, fp32, on the CPU."""

    def target(self, row: Row) -> Any:
        """What is right for the row, None where it holds no answer; InputError naming a row whose answer is wrong."""

    def encode(self, rows: Sequence[Row], *, training: bool) -> list[Example]:
        """Tokenise and check rows: one example a row (when training, answering gives one a window)."""

    def weight(self, example: Example) -> float:
        """The example's part of the denominator of the loss."""

    def loss(self, model: nn.Module, examples: list[Example]) -> Tensor:
        """Sum of the losses of this process's examples, a scalar; over all processes they add up to the whole."""

    def predict(self, model: nn.Module, examples: list[Example]) -> list[Any]:
        """One small prediction an example (never logits of a whole set); called in eval mode without gradients."""

    def score(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        """Scores of (target, prediction) of each row, `metric` among them; at least one row."""

    def diagnose(self, model: nn.Module, examples: Sequence[Example]) -> dict[str, float]:
        """Numbers about a model beside its scores, from training examples; {} where the task has none."""

    def majority(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        """Scores on the targets `test` of always answering with the most frequent target of `train`."""

    def output(self, prediction: Any) -> dict[str, Any]:
        """The prediction as a row of `finetune.predict`."""

    def save(self, model: nn.Module, folder: Path) -> None:
        """Write a folder that plain transformers (or sentence-transformers) loads, with `finetune.json`."""

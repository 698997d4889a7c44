"""Tagging of words (BIO, BIOES or BMEO), with transformers' own head (`AutoModelForTokenClassification`).

A word is learned and predicted at its first piece. Words without one, which lie beyond the model's length or vanish in
the tokenizer, get `O`. Scores are entity F1 by seqeval; its scheme has no `M-` (middle), which is read as `I-`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForTokenClassification

from configs import InputError
from finetune.config import FinetuneConfig
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_model
from finetune.reading.inputs import Inputs
from finetune.reading.rows import Row
from finetune.tasks.protocol import Example, Task

OUTSIDE = "O"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggingExample(Example):
    """A row of words; its weight is the number of words that are learned."""

    first_pieces: list[int]  # of each word the position of its first piece, -1 where it has none


class Tagging(Task[TaggingExample]):
    """The task for one run; the first label is `O`."""

    name = "tagging"
    metrics = ("f1", "precision", "recall", "accuracy")
    training_roles = (("tokens", "tags"),)
    scoring_roles = training_roles
    prediction_roles = (("tokens",),)
    outputs_per_token = True

    @classmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> Self:
        """The task with the configured tags, or those of the training rows; `O` is always one of them."""
        tags = set(config.tagging.labels) or {tag for row in rows for tag in _words(row, "tags")}
        return cls(ModelDescription(metric=config.metric, labels=[OUTSIDE, *sorted(tags - {OUTSIDE})]), inputs)

    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        values = {"id2label": dict(enumerate(self.labels)), "label2id": self.label_ids}
        return load_model(AutoModelForTokenClassification, folder, from_scratch, **values)

    def target(self, row: Row) -> list[int] | None:
        if "tags" not in row.values:
            return None
        tags, tokens = _words(row, "tags"), _words(row, "tokens")
        if len(tags) != len(tokens):
            raise InputError(f"{row.place}: {len(tokens)} tokens but {len(tags)} tags")
        for tag in tags:
            if tag not in self.label_ids:
                raise InputError(f"{row.place}: unknown tag '{tag}'; allowed: {', '.join(self.labels)}")
        return [self.label_ids[tag] for tag in tags]

    def encode(self, rows: Sequence[Row], *, training: bool) -> list[TaggingExample]:
        targets = [self.target(row) for row in rows]
        encoded = self.inputs.encode_words([_words(row, "tokens") for row in rows])
        return [
            TaggingExample([encoding], target, sum(piece >= 0 for piece in first_pieces), first_pieces=first_pieces)
            for (encoding, first_pieces), target in zip(encoded, targets, strict=True)
        ]

    def _logits(self, model: nn.Module, examples: list[TaggingExample]) -> Tensor:
        """(words with a piece, tags), word by word, example by example."""
        device = next(model.parameters()).device
        logits = model(**self.inputs.pad([example.encodings[0] for example in examples], device)).logits.float()
        rows = [i for i, example in enumerate(examples) for piece in example.first_pieces if piece >= 0]
        pieces = [piece for example in examples for piece in example.first_pieces if piece >= 0]
        return logits[rows, pieces]

    def loss(self, model: nn.Module, examples: list[TaggingExample]) -> Tensor:
        logits = self._logits(model, examples)
        learned = [
            (tag, bool(example.weight))
            for example in examples
            for tag, piece in zip(example.target, example.first_pieces, strict=True)
            if piece >= 0
        ]
        targets, weights = torch.tensor(learned, device=logits.device).reshape(-1, 2).T
        return (cross_entropy(logits, targets, reduction="none") * weights).sum()

    def predict(self, model: nn.Module, examples: list[TaggingExample]) -> list[list[int]]:
        """A tag id for every word."""
        predicted = iter(self._logits(model, examples).argmax(-1).tolist())
        outside = self.label_ids[OUTSIDE]
        return [[next(predicted) if piece >= 0 else outside for piece in example.first_pieces] for example in examples]

    def score(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        rights = [[_seqeval_tag(self.labels[i]) for i in tags] for tags, _ in pairs]
        guesses = [[_seqeval_tag(self.labels[i]) for i in tags] for _, tags in pairs]
        return {
            "f1": float(f1_score(rights, guesses, zero_division=0)),
            "precision": float(precision_score(rights, guesses, zero_division=0)),
            "recall": float(recall_score(rights, guesses, zero_division=0)),
            "accuracy": float(accuracy_score(rights, guesses)),
            "n": len(rights),
        }

    def majority(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        most_frequent = Counter(tag for tags in train for tag in tags).most_common(1)[0][0]
        return self.score([(tags, [most_frequent] * len(tags)) for tags in test])

    def output(self, prediction: list[int]) -> dict[str, Any]:
        return {"tags": [self.labels[i] for i in prediction]}


def _words(row: Row, role: str) -> list[str]:
    words = row.values[role]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise InputError(f"{row.place}: '{role}' must be a list of one or more texts")
    return words


def _seqeval_tag(tag: str) -> str:
    return "I-" + tag[2:] if tag.startswith("M-") else tag

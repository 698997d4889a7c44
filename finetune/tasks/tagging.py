"""Tagging of words (BIO, BIOES or BMEO), with transformers' own head (`AutoModelForTokenClassification`).

A word is learned and predicted at its first piece. Words beyond the model's length get `O` and are counted as cut; so
do words that the tokenizer leaves without a piece. Scores are entity F1 by seqeval; its scheme has no `M-` (middle),
which is read as `I-`.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForTokenClassification

from configs import InputError
from finetune.config import FinetuneConfig, chosen_metric
from finetune.folder.load import load_model
from finetune.folder.write import write_folder
from finetune.reading.inputs import Inputs
from finetune.reading.rows import Row
from finetune.tasks.protocol import Example

METRICS = ("f1", "precision", "recall", "accuracy")
OUTSIDE = "O"


class Tagging:
    """The task for one run. `labels` are the tags by id, `O` first."""

    contrastive = False

    def __init__(self, config: FinetuneConfig, inputs: Inputs, labels: Sequence[str]):
        self.inputs, self.labels = inputs, list(labels)
        self.metric = chosen_metric(config, "f1", METRICS)
        self.ids = {name: i for i, name in enumerate(self.labels)}
        if config.pooling is not None:
            raise InputError("pooling: tagging has none, it reads every word")

    @classmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> "Tagging":
        """The task with the configured tags, or those of the training rows; `O` is always one of them."""
        tags = set(config.tagging.labels) or {tag for row in rows for tag in _words(row, "tags")}
        return cls(config, inputs, [OUTSIDE, *sorted(tags - {OUTSIDE})])

    @classmethod
    def from_facts(cls, config: FinetuneConfig, inputs: Inputs, facts: dict[str, Any]) -> "Tagging":
        """The task that a finished folder was trained for."""
        return cls(config, inputs, facts["labels"])

    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        values = {"id2label": dict(enumerate(self.labels)), "label2id": self.ids}
        return load_model(AutoModelForTokenClassification, folder, from_scratch, **values)

    def target(self, row: Row) -> list[int] | None:
        if "tags" not in row.values:
            return None
        tags, tokens = _words(row, "tags"), _words(row, "tokens")
        if len(tags) != len(tokens):
            raise InputError(f"{row.place}: {len(tokens)} tokens but {len(tags)} tags")
        for tag in tags:
            if tag not in self.ids:
                raise InputError(f"{row.place}: unknown tag '{tag}'; allowed: {', '.join(self.labels)}")
        return [self.ids[tag] for tag in tags]

    def encode(self, rows: Sequence[Row], *, training: bool) -> list[Example]:
        """The layout is, for each word, the position of its first piece, -1 where it has none."""
        targets = [self.target(row) for row in rows]
        encoded = self.inputs.encode_words([_words(row, "tokens") for row in rows])
        return [
            Example([encoding], target, sum(place >= 0 for place in places), places)
            for (encoding, places), target in zip(encoded, targets, strict=True)
        ]

    def weight(self, example: Example) -> float:
        return example.weight

    def _logits(self, model: nn.Module, examples: list[Example]) -> Tensor:
        """(words with a piece, tags), word by word, example by example."""
        device = next(model.parameters()).device
        logits = model(**self.inputs.pad([example.encodings[0] for example in examples], device)).logits.float()
        rows = [i for i, example in enumerate(examples) for place in example.layout if place >= 0]
        places = [place for example in examples for place in example.layout if place >= 0]
        return logits[rows, places]

    def loss(self, model: nn.Module, examples: list[Example]) -> Tensor:
        logits = self._logits(model, examples)
        kept = [
            (tag, bool(example.weight))
            for example in examples
            for tag, place in zip(example.target, example.layout, strict=True)
            if place >= 0
        ]
        targets, weights = torch.tensor(kept, device=logits.device).reshape(-1, 2).T
        return (cross_entropy(logits, targets, reduction="none") * weights).sum()

    def predict(self, model: nn.Module, examples: list[Example]) -> list[list[int]]:
        """A tag id for every word."""
        found = iter(self._logits(model, examples).argmax(-1).tolist())
        outside = self.ids[OUTSIDE]
        return [[next(found) if place >= 0 else outside for place in example.layout] for example in examples]

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

    def diagnose(self, model: nn.Module, examples: Sequence[Example]) -> dict[str, float]:
        return {}

    def majority(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        """Scores of giving every word the most frequent tag of `train`."""
        tag = Counter(tag for tags in train for tag in tags).most_common(1)[0][0]
        return self.score([(tags, [tag] * len(tags)) for tags in test])

    def output(self, prediction: list[int]) -> dict[str, Any]:
        return {"tags": [self.labels[i] for i in prediction]}

    def save(self, model: nn.Module, folder: Path) -> None:
        write_folder(model, self.inputs, folder, {"task": "tagging", "metric": self.metric, "labels": self.labels})


def _words(row: Row, role: str) -> list[str]:
    words = row.values[role]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise InputError(f"{row.place}: '{role}' must be a list of one or more texts")
    return words


def _seqeval_tag(tag: str) -> str:
    return "I-" + tag[2:] if tag.startswith("M-") else tag

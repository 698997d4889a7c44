"""Classification of one text or a pair, with transformers' own head (`AutoModelForSequenceClassification`).

Class names are those of the training file, numbers in numeric order ('2' before '10'), or `classification.labels`;
they are the model's `id2label`. The pooling is the one that the architecture's head has: ModernBERT can do cls and
mean, the others cls.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from configs import InputError
from finetune.config import FinetuneConfig, Pooling
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_model
from finetune.reading.inputs import Inputs
from finetune.reading.rows import Row
from finetune.tasks.protocol import Example, Task


class Classification(Task[Example]):
    """The task for one run; `class_weights` are the weights of the labels in the loss."""

    name = "classification"
    metrics = ("accuracy", "macro_f1", "matthews")
    training_roles = (("text_a", "text_b", "label"), ("text", "label"))
    scoring_roles = training_roles
    prediction_roles = (("text_a", "text_b"), ("text",))

    def __init__(self, description: ModelDescription, inputs: Inputs, max_tokens: int | None = None) -> None:
        super().__init__(description, inputs, max_tokens)
        trained_with = getattr(inputs.model_config, "classifier_pooling", None)
        self.head_values = _head_values(description.pooling or trained_with, inputs.model_config)
        self.class_weights = [1.0] * len(self.labels)
        self.label_smoothing = 0.0

    @classmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> Self:
        """The task with the class names of the training rows; InputError for fewer than two or unknown ones."""
        counts = Counter(str(row.values["label"]) for row in rows)
        options = config.classification
        labels = options.labels or label_names(counts)
        if len(labels) < 2:
            raise InputError(f"{config.train[0]}: classification needs two classes, the file has only {labels}")
        if "text_a" in rows[0].values and not inputs.has_segments:
            print(f"{config.model} has no segment ids: only SEP tells the two texts of a pair apart")
        task = cls(ModelDescription(metric=config.metric, labels=labels), inputs)
        task.head_values = _head_values(config.pooling, inputs.model_config)
        task.label_smoothing = options.label_smoothing
        if options.class_weights == "balanced":
            total = sum(counts.values())
            task.class_weights = [total / (len(labels) * max(1, counts.get(name, 0))) for name in labels]
        return task

    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        names = dict(enumerate(self.labels))
        values = {"id2label": names, "label2id": self.label_ids, "problem_type": "single_label_classification"}
        return load_model(AutoModelForSequenceClassification, folder, from_scratch, **values, **self.head_values)

    def encode(self, rows: Sequence[Row], *, training: bool) -> list[Example]:
        pair = "text_a" in rows[0].values
        texts = [row.values["text_a" if pair else "text"] for row in rows]
        encodings = self.inputs.encode(texts, [row.values["text_b"] for row in rows] if pair else None)
        targets = [self.target(row) for row in rows]
        return [
            Example([encoding], target, 1.0 if target is None else self.class_weights[target])
            for encoding, target in zip(encodings, targets, strict=True)
        ]

    def target(self, row: Row) -> int | None:
        if "label" not in row.values:
            return None
        name = str(row.values["label"])
        if name not in self.label_ids:
            raise InputError(f"{row.place}: unknown label '{name}'; allowed: {', '.join(self.labels)}")
        return self.label_ids[name]

    def _logits(self, model: nn.Module, examples: list[Example]) -> Tensor:
        device = next(model.parameters()).device
        return model(**self.inputs.pad([example.encodings[0] for example in examples], device)).logits.float()

    def loss(self, model: nn.Module, examples: list[Example]) -> Tensor:
        logits = self._logits(model, examples)
        targets = torch.tensor([example.target for example in examples], device=logits.device)
        weights = torch.tensor([example.weight for example in examples], device=logits.device)
        losses = cross_entropy(logits, targets, reduction="none", label_smoothing=self.label_smoothing)
        return (losses * weights).sum()

    def predict(self, model: nn.Module, examples: list[Example]) -> list[tuple[int, float, float | None]]:
        """(class id, its probability, loss of the right class or None) per example."""
        log_probabilities = self._logits(model, examples).log_softmax(-1).cpu()
        best, ids = log_probabilities.max(-1)
        losses = [
            None if example.target is None else -float(row[example.target])
            for example, row in zip(examples, log_probabilities, strict=True)
        ]
        return list(zip(ids.tolist(), best.exp().tolist(), losses, strict=True))

    def score(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        scores = classification_scores([right for right, _ in pairs], [guess for _, (guess, _, _) in pairs])
        return {**scores, "loss": sum(loss for _, (_, _, loss) in pairs) / len(pairs)}

    def majority(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        most_frequent = Counter(train).most_common(1)[0][0]
        return classification_scores(test, [most_frequent] * len(test))

    def output(self, prediction: tuple[int, float, float | None]) -> dict[str, Any]:
        return {"label": self.labels[prediction[0]], "score": prediction[1]}


def label_names(values: Iterable[Any]) -> list[str]:
    """Distinct labels as text; numbers in numeric order, other names in alphabetical order."""
    names = {str(value) for value in values}
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names)


def classification_scores(rights: Sequence[int], guesses: Sequence[int]) -> dict[str, float]:
    """accuracy, macro_f1 (over the classes that occur), matthews, n, and the share of the most frequent guess."""
    return {
        "accuracy": float(accuracy_score(rights, guesses)),
        "macro_f1": float(f1_score(rights, guesses, average="macro")),
        "matthews": float(matthews_corrcoef(rights, guesses)),
        "most_frequent_guess": float(np.bincount(guesses).max()) / len(guesses),
        "n": len(rights),
    }


def _head_values(pooling: Pooling | None, model_config: Any) -> dict[str, Any]:
    """Config values that give the head the asked pooling; InputError where the architecture's head cannot."""
    has_choice = hasattr(model_config, "classifier_pooling")
    allowed = ("cls", "mean") if has_choice else ("cls",)
    if pooling is not None and pooling not in allowed:
        raise InputError(
            f"pooling: the {model_config.model_type} head for classification cannot do '{pooling}'; "
            f"allowed: {', '.join(allowed)}"
        )
    return {"classifier_pooling": pooling or "mean"} if has_choice else {}

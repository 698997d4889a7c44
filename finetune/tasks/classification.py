"""Classification of one text or a pair, with transformers' own head (`AutoModelForSequenceClassification`).

Class names are those of the training file, numbers in numeric order ('2' before '10'), or `classification.labels`;
they are the model's `id2label`. The pooling is the one that the architecture's head has: ModernBERT can do cls and
mean, the others cls.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

from configs import InputError
from finetune.config import FinetuneConfig, chosen_metric
from finetune.folder.load import load_model
from finetune.folder.write import write_folder
from finetune.reading.inputs import Inputs
from finetune.reading.rows import Row
from finetune.tasks.matching_metrics import classification_scores
from finetune.tasks.protocol import Example

METRICS = ("accuracy", "macro_f1", "matthews")


def label_names(values: Iterable[Any]) -> list[str]:
    """Distinct labels as text; numbers in numeric order, other names in alphabetical order."""
    names = {str(value) for value in values}
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names)


class Classification:
    """The task for one run. `labels` are the class names by id."""

    contrastive = False

    def __init__(self, config: FinetuneConfig, inputs: Inputs, labels: Sequence[str], counts: dict[str, int]):
        self.config, self.inputs, self.labels = config, inputs, list(labels)
        self.metric = chosen_metric(config, "accuracy", METRICS)
        self.ids = {name: i for i, name in enumerate(self.labels)}
        self.head_values = _head_values(config, inputs.model_config)
        self.class_weights = [1.0] * len(self.labels)
        if config.classification.class_weights == "balanced":
            total = sum(counts.values())
            self.class_weights = [total / (len(self.labels) * max(1, counts.get(name, 0))) for name in self.labels]

    @classmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> "Classification":
        """The task with the class names of the training rows; InputError for fewer than two or unknown ones."""
        counts = Counter(str(row.values["label"]) for row in rows)
        labels = config.classification.labels or label_names(counts)
        if len(labels) < 2:
            raise InputError(f"{config.train[0]}: classification needs two classes, the file has only {labels}")
        if "text_a" in rows[0].values and not inputs.has_segments:
            print(f"{config.model} has no segment ids: only SEP tells the two texts of a pair apart")
        return cls(config, inputs, labels, counts)

    @classmethod
    def from_facts(cls, config: FinetuneConfig, inputs: Inputs, facts: dict[str, Any]) -> "Classification":
        """The task that a finished folder was trained for."""
        return cls(config, inputs, facts["labels"], {})

    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        names = dict(enumerate(self.labels))
        values = {"id2label": names, "label2id": self.ids, "problem_type": "single_label_classification"}
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
        if name not in self.ids:
            raise InputError(f"{row.place}: unknown label '{name}'; allowed: {', '.join(self.labels)}")
        return self.ids[name]

    def weight(self, example: Example) -> float:
        return example.weight

    def _logits(self, model: nn.Module, examples: list[Example]) -> Tensor:
        device = next(model.parameters()).device
        return model(**self.inputs.pad([example.encodings[0] for example in examples], device)).logits.float()

    def loss(self, model: nn.Module, examples: list[Example]) -> Tensor:
        logits = self._logits(model, examples)
        targets = torch.tensor([example.target for example in examples], device=logits.device)
        weights = torch.tensor([example.weight for example in examples], device=logits.device)
        smoothing = self.config.classification.label_smoothing
        return (cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing) * weights).sum()

    def predict(self, model: nn.Module, examples: list[Example]) -> list[tuple[int, float, float | None]]:
        """(class id, its probability, loss of the right class or None) an example."""
        log_probabilities = self._logits(model, examples).log_softmax(-1).cpu()
        best, ids = log_probabilities.max(-1)
        losses = [
            None if e.target is None else -float(row[e.target])
            for e, row in zip(examples, log_probabilities, strict=True)
        ]
        return list(zip(ids.tolist(), best.exp().tolist(), losses, strict=True))

    def score(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        scores = classification_scores([right for right, _ in pairs], [guess for _, (guess, _, _) in pairs])
        return {**scores, "loss": sum(loss for _, (_, _, loss) in pairs) / len(pairs)}

    def diagnose(self, model: nn.Module, examples: Sequence[Example]) -> dict[str, float]:
        return {}

    def majority(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        """Scores on the targets `test` of always naming the most frequent class of `train`."""
        name = Counter(train).most_common(1)[0][0]
        return classification_scores(test, [name] * len(test))

    def output(self, prediction: tuple[int, float, float | None]) -> dict[str, Any]:
        return {"label": self.labels[prediction[0]], "score": prediction[1]}

    def save(self, model: nn.Module, folder: Path) -> None:
        write_folder(
            model, self.inputs, folder, {"task": "classification", "metric": self.metric, "labels": self.labels}
        )


def _head_values(config: FinetuneConfig, model_config: Any) -> dict[str, Any]:
    """Config values that give the head the asked pooling; InputError where the architecture's head cannot."""
    if hasattr(model_config, "classifier_pooling"):
        pooling = config.pooling or "mean"
        if pooling in ("cls", "mean"):
            return {"classifier_pooling": pooling}
        allowed = "cls, mean"
    elif config.pooling in (None, "cls"):
        return {}
    else:
        pooling, allowed = config.pooling, "cls"
    raise InputError(
        f"pooling: the {model_config.model_type} head for classification cannot do '{pooling}'; allowed: {allowed}"
    )

"""The baseline of words without context: a linear model on the embedding table of the encoder's folder.

It shows how far the words alone go, so what an encoder scores above it comes from reading them together. A text is the
mean of its pieces' vectors (special tokens apart). Classification: logistic regression on it, for a pair on
[u, v, |u - v|, u * v]; tagging: on the vector of each word's first piece; matching: the cosine of two means, with
nothing to learn. It stands in the place of the task's model, so the task itself scores it.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from transformers import AutoModel

from finetune.folder.load import load_model
from finetune.folder.pooling import pool
from finetune.reading.inputs import Inputs
from finetune.tasks.protocol import Example, Task
from finetune.tasks.tagging import TaggingExample


class WordVectors(nn.Module):
    """Called like the task's model: gives `.logits` (rows, classes) or (rows, length, tags), or vectors (rows, width).

    `per_token`: one vector per token instead of their mean; `pair`: the two texts of a row, told apart by SEP.
    """

    def __init__(self, table: Tensor, inputs: Inputs, *, per_token: bool, pair: bool):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table)
        self.specials = nn.Buffer(torch.tensor(inputs.tokenizer.all_special_ids))
        self.sep = inputs.tokenizer.sep_token_id
        self.per_token, self.pair = per_token, pair
        self.head: nn.Linear | None = None

    def features(self, input_ids: Tensor) -> Tensor:
        """(rows, length) -> (rows, width), (rows, 4 x width) for a pair, or (rows, length, width) per token."""
        vectors = self.table(input_ids)
        if self.per_token:
            return vectors
        words = ~torch.isin(input_ids, self.specials)
        if not self.pair:
            return pool(vectors, words, "mean")
        first = (input_ids == self.sep).cumsum(1) == 0
        u, v = (pool(vectors, words & part, "mean") for part in (first, ~first))
        return torch.cat([u, v, (u - v).abs(), u * v], -1)

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        features = self.features(input_ids)
        return SimpleNamespace(logits=self.head(features)) if self.head else features


def word_vector_model(task: Task[Any], folder: str, examples: Sequence[Example]) -> WordVectors:
    """The baseline for `task`, fitted on its training examples where the task has labels to learn.

    InputError for a folder whose encoder does not load.
    """
    table = load_model(AutoModel, folder).get_input_embeddings().weight.detach().clone()
    separators = examples[0].encodings[0]["input_ids"].count(task.inputs.tokenizer.sep_token_id) if examples else 0
    pair = task.name == "classification" and separators > 1
    model = WordVectors(table, task.inputs, per_token=task.outputs_per_token, pair=pair)
    if task.labels:
        model.head = _fit(*_training_points(model, examples), len(task.labels))
    return model


def _training_points(model: WordVectors, examples: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Features (points, n) and class ids (points,): one point per example, or in tagging per word."""
    points, targets = [], []
    for example in examples:
        features = model.features(torch.tensor([example.encodings[0]["input_ids"]]))[0]
        if isinstance(example, TaggingExample):
            tagged = zip(example.first_pieces, example.target, strict=True)
            learned = [(piece, tag) for piece, tag in tagged if piece >= 0]
            points.append(features[[piece for piece, _ in learned]])
            targets += [tag for _, tag in learned]
        else:
            points.append(features[None])
            targets.append(example.target)
    return torch.cat(points).numpy(), np.array(targets)


def _fit(points: np.ndarray, targets: np.ndarray, classes: int) -> nn.Linear:
    """scikit-learn's logistic regression on standardised features, as one linear layer."""
    scaler = StandardScaler().fit(points)
    regression = LogisticRegression(max_iter=300).fit(scaler.transform(points), targets)
    weight, bias = regression.coef_, regression.intercept_
    if len(regression.classes_) == 2:  # one row stands for both classes
        weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
    scaled = weight / scaler.scale_
    head = nn.Linear(points.shape[1], classes)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(float("-inf"))  # a class without a training row is never predicted
        head.weight[regression.classes_] = torch.tensor(scaled, dtype=torch.float32)
        head.bias[regression.classes_] = torch.tensor(bias - scaled @ scaler.mean_, dtype=torch.float32)
    return head

"""Sentence matching: SimCSE without labels, with positives, with hard negatives; pairs with scores (CoSENT or cosine).

Without labels a sentence is its own positive under another dropout, so dropout must be on: an encoder trained with 0
gets 0.1, with a message. The MLP on top exists only without labels and only while training; what is saved, scored and
served is the pooled encoder. A batch is encoded in length-sorted parts that fit the caches; the loss sees it whole.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoModel

from configs import InputError
from finetune.config import FinetuneConfig, MatchingConfig, Pooling
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_model
from finetune.folder.onnx_graph import SENTENCE_OUTPUT
from finetune.folder.pooling import SentenceEncoder, stored_pooling, write_sentence_files
from finetune.folder.write import new_model_folder
from finetune.reading.batching import token_budget, token_budget_batches
from finetune.reading.columns import RoleSet, has_roles, number_of
from finetune.reading.inputs import Inputs
from finetune.reading.rows import Row, column_names
from finetune.tasks.matching_loss import contrastive_loss, cosent_loss, cosine_loss
from finetune.tasks.matching_metrics import retrieval_scores, similarity_scores, space_scores
from finetune.tasks.protocol import Example, Task

UNSUPERVISED: RoleSet = ("text",)
PAIRS: RoleSet = ("text_a", "text_b")
SCORED_PAIRS: RoleSet = ("text_a", "text_b", "score")
TRIPLES: RoleSet = ("text_a", "text_b", "negative")
RETRIEVAL: RoleSet = ("query", "target")
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "attention_dropout", "mlp_dropout"
)  # fmt: skip
DIAGNOSED_ROWS = 128


class Matching(Task[Example]):
    """The task for one run; `trained_on`: the roles of its training rows, which decide the loss."""

    name = "matching"
    metrics = ("spearman", "mrr", "recall@1", "recall@5", "recall@10")
    training_roles = (TRIPLES, SCORED_PAIRS, PAIRS, UNSUPERVISED)
    scoring_roles = (SCORED_PAIRS, RETRIEVAL)
    prediction_roles = (PAIRS,)
    output_names = SENTENCE_OUTPUT
    compares_rows = True

    def __init__(self, description: ModelDescription, inputs: Inputs, max_tokens: int | None = None) -> None:
        super().__init__(description, inputs, max_tokens)
        self.pooling: Pooling = description.pooling or "mean"
        self.trained_on = tuple(description.trained_on or PAIRS)
        self.options = MatchingConfig()
        self.score_range = (0.0, 1.0)
        self.dropout: dict[str, float] = {}  # to set in the model's config

    @classmethod
    def default_metric(cls, config: FinetuneConfig) -> str:
        """mrr where the first scored file is one of queries and targets, else spearman."""
        scored = [*config.dev, *config.test]
        retrieval = scored and has_roles(column_names(scored[0]), RETRIEVAL, config.columns)
        return "mrr" if retrieval else "spearman"

    @classmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> Self:
        """The task for the roles of the training rows; InputError when their scores are all the same."""
        scores = [number_of(row, "score") for row in rows if "score" in row.values] or [0.0, 1.0]
        if min(scores) == max(scores):
            raise InputError(f"{config.train[0]}: all scores are {scores[0]}: there is nothing to learn")
        stored = stored_pooling(config.model)
        if config.pooling and stored and config.pooling != stored:
            print(f"pooling: {config.pooling} as configured; {config.model} was made for {stored}")
        description = ModelDescription(
            metric=config.metric or cls.default_metric(config), trained_on=list(rows[0].values),
            pooling=config.pooling or stored or "mean", temperature=config.matching.temperature,
        )  # fmt: skip
        task = cls(description, inputs, config.training.max_tokens_per_device)
        task.options = config.matching
        task.score_range = (min(scores), max(scores))
        task.dropout = task._dropout_values()
        return task

    def _dropout_values(self) -> dict[str, float]:
        """The dropout probabilities to set in the model's config: none where its own ones do."""
        names = [name for name in DROPOUTS if hasattr(self.inputs.model_config, name)]
        wanted = self.options.dropout
        if self.trained_on != UNSUPERVISED:
            return {} if wanted is None else dict.fromkeys(names, wanted)
        if wanted == 0:
            raise InputError("matching.dropout: 0 leaves unsupervised SimCSE without two views of a sentence; use 0.1")
        own = max((getattr(self.inputs.model_config, name) or 0.0 for name in names), default=0.0)
        if wanted is None and own > 0:
            return {}
        print(f"dropout: {own} in the encoder, raised to {wanted or 0.1}: it is what makes the two views of a sentence")
        return dict.fromkeys(names, wanted or 0.1)

    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        encoder = load_model(AutoModel, folder, from_scratch, **self.dropout)
        return SentenceEncoder(encoder, self.pooling, with_projection=self.trained_on == UNSUPERVISED)

    def encode(self, rows: Sequence[Row], *, training: bool) -> list[Example]:
        """An example has the encodings of its 1-3 texts; the target is a score, in retrieval a digest of the text."""
        roles = [role for role in rows[0].values if role != "score"]
        encodings = [self.inputs.encode([row.values[role] for row in rows]) for role in roles]
        return [
            Example(list(texts), self.target(row))
            for row, texts in zip(rows, zip(*encodings, strict=True), strict=True)
        ]

    def target(self, row: Row) -> float | bytes | None:
        if "score" in row.values:
            return number_of(row, "score")
        if "target" in row.values:
            return hashlib.blake2b(row.values["target"].encode(), digest_size=16).digest()
        return None

    def _vectors(self, model: nn.Module, examples: list[Example]) -> list[Tensor]:
        """One (examples, width) per text of an example: length-sorted forward passes, joined in order."""
        count = len(examples[0].encodings)
        encodings = [example.encodings[i] for i in range(count) for example in examples]
        device = next(model.parameters()).device
        lengths = [len(encoding["input_ids"]) for encoding in encodings]
        batches = token_budget_batches(lengths, token_budget(self.max_tokens, device))
        vectors = [model(**self.inputs.pad([encodings[i] for i in batch], device)).float() for batch in batches]
        order = torch.tensor([i for batch in batches for i in batch], device=device)
        return list(torch.cat(vectors)[order.argsort()].chunk(count))

    def loss(self, model: nn.Module, examples: list[Example]) -> Tensor:
        if self.trained_on == UNSUPERVISED:  # the same text twice, each under its own dropout
            examples = [Example(example.encodings * 2) for example in examples]
        vectors = self._vectors(model, examples)
        if "score" not in self.trained_on:
            # a number (64 bits) that is the same for texts that the model cannot tell apart, on every process
            keys = [[hash(tuple(text["input_ids"])) for text in example.encodings] for example in examples]
            text_keys = torch.tensor(keys, device=vectors[0].device).unbind(1)
            negatives = vectors[2] if len(vectors) > 2 else None
            return contrastive_loss(vectors[0], vectors[1], negatives, self.options.temperature, text_keys)
        scores = torch.tensor([example.target for example in examples], device=vectors[0].device)
        if self.options.scored_loss == "cosent":
            return cosent_loss(vectors[0], vectors[1], scores, self.options.temperature)
        low, high = self.score_range
        return cosine_loss(vectors[0], vectors[1], (scores - low) / (high - low))

    def predict(self, model: nn.Module, examples: list[Example]) -> list[Any]:
        """A text's vector (width,), a scored pair's cosine, or a query's and its target's unit vectors (2, width)."""
        vectors = self._vectors(model, examples)
        if len(vectors) == 1:
            return list(vectors[0].cpu().numpy())
        left, right = (normalize(vector, dim=-1) for vector in vectors)
        if isinstance(examples[0].target, bytes):
            return list(torch.stack([left, right], 1).cpu().numpy())
        return (left * right).sum(-1).tolist()

    def score(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        scored = [(right, cosine) for right, cosine in pairs if not isinstance(right, bytes)]
        searched = [(right, vectors) for right, vectors in pairs if isinstance(right, bytes)]
        scores = similarity_scores(*zip(*scored, strict=True)) if scored else {}
        if searched:
            corpus = {right: vectors[1] for right, vectors in searched}  # the same text is one entry
            numbers = {right: number for number, right in enumerate(corpus)}
            queries = torch.from_numpy(np.stack([vectors[0] for _, vectors in searched]))
            rights = [numbers[right] for right, _ in searched]
            scores |= retrieval_scores(queries, torch.from_numpy(np.stack(list(corpus.values()))), rights)
        return {**scores, "n": len(pairs)}

    def diagnose(self, model: nn.Module, examples: Sequence[Example]) -> dict[str, float]:
        """`space_scores` of some training rows; a text's positive is itself under dropout where it has no other."""
        sample = [Example(example.encodings[:2]) for example in examples[:DIAGNOSED_ROWS]]
        if len(sample) < 2:
            return {}
        assert isinstance(model, SentenceEncoder)
        with torch.no_grad():
            vectors = self._vectors(model.eval(), sample)
            if len(vectors) == 1:
                model.encoder.train()
                vectors += self._vectors(model, sample)
                model.eval()
        return space_scores(*(normalize(vector, dim=-1).cpu() for vector in vectors))

    def output(self, prediction: Any) -> dict[str, Any]:
        return {"cosine": prediction} if isinstance(prediction, float) else {"vector": prediction.tolist()}

    def save(self, model: Any, folder: Path) -> None:
        shape = model.encoder.config
        with new_model_folder(folder, self.inputs, self.description) as path:
            model.encoder.save_pretrained(path)
            write_sentence_files(path, self.pooling, shape.hidden_size, shape.num_hidden_layers, self.inputs.max_length)

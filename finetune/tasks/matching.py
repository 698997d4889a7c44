"""Sentence matching: SimCSE without labels, with positives, with hard negatives; pairs with scores (CoSENT or cosine).

Without labels a sentence is its own positive under another dropout, so dropout must be on: an encoder trained with 0
gets 0.1, and that is said. The MLP on top exists only in that kind and only while training; what is saved, scored and
served is the pooled encoder. A batch is encoded in length-sorted parts that fit the caches; the loss sees it whole.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoModel

from configs import InputError
from finetune.config import FinetuneConfig, chosen_metric
from finetune.folder.load import load_model
from finetune.folder.pooling import pool, stored_pooling, write_sentence_files
from finetune.folder.write import write_folder
from finetune.reading.batching import token_budget, token_budget_batches
from finetune.reading.columns import has_roles, number_of
from finetune.reading.inputs import Encoding, Inputs
from finetune.reading.rows import Row
from finetune.tasks.matching_loss import contrastive_loss, cosent_loss, cosine_loss
from finetune.tasks.matching_metrics import retrieval_scores, similarity_scores, space_scores
from finetune.tasks.protocol import Example

METRICS = ("spearman", "mrr", "recall@1", "recall@5", "recall@10")
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_dropout", "attention_dropout", "mlp_dropout"
)  # fmt: skip


class SentenceEncoder(nn.Module):
    """An encoder and its pooling; `projection` (training only) is SimCSE's MLP on the pooled vector."""

    def __init__(self, encoder: Any, pooling: str, with_projection: bool):
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        width = encoder.config.hidden_size
        self.projection = nn.Sequential(nn.Linear(width, width), nn.Tanh()) if with_projection else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Padded inputs (rows, length) -> vectors (rows, width)."""
        first_last = self.pooling == "first_last"
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        output = self.encoder(**inputs, output_hidden_states=first_last)
        states = output.last_hidden_state
        if first_last:
            states = (output.hidden_states[1] + output.hidden_states[-1]) / 2
        vectors = pool(states, attention_mask, self.pooling)
        return self.projection(vectors) if self.projection is not None and self.training else vectors


class Matching:
    """The task for one run; `kind` is that of the training rows, `("text",)` being the unsupervised one."""

    def __init__(self, config: FinetuneConfig, inputs: Inputs, kind: tuple[str, ...], score_range: tuple[float, float]):
        self.config, self.inputs, self.kind, self.score_range = config, inputs, kind, score_range
        self.pooling = config.pooling or "mean"
        self.metric = chosen_metric(config, _default_metric(config), METRICS)
        self.contrastive = True
        self.dropout: dict[str, float] = {}

    @classmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> "Matching":
        """The task for the kind of the training rows; InputError when their scores are all the same."""
        scores = [number_of(row, "score") for row in rows if "score" in row.values] or [0.0, 1.0]
        if min(scores) == max(scores):
            raise InputError(f"{config.train[0]}: all scores are {scores[0]}: there is nothing to learn")
        stored = stored_pooling(config.model)
        if config.pooling and stored and config.pooling != stored:
            print(f"pooling: {config.pooling} as configured; {config.model} was made for {stored}")
        config = config.model_copy(update={"pooling": config.pooling or stored})
        task = cls(config, inputs, tuple(rows[0].values), (min(scores), max(scores)))
        task.dropout = task._dropout_values()
        return task

    @classmethod
    def from_facts(cls, config: FinetuneConfig, inputs: Inputs, facts: dict[str, Any]) -> "Matching":
        """The task for scoring a finished folder, or a bare encoder."""
        return cls(config, inputs, tuple(facts.get("kind", ("text_a", "text_b"))), (0.0, 1.0))

    def _dropout_values(self) -> dict[str, float]:
        """The dropout probabilities to set in the model's config: none where its own ones do."""
        names = [name for name in DROPOUTS if hasattr(self.inputs.model_config, name)]
        wanted = self.config.matching.dropout
        if self.kind != ("text",):
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
        return SentenceEncoder(encoder, self.pooling, with_projection=self.kind == ("text",))

    def encode(self, rows: Sequence[Row], *, training: bool) -> list[Example]:
        """An example has its 1-3 texts' encodings; the target is a score, or in retrieval a digest."""
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

    def weight(self, example: Example) -> float:
        return example.weight

    def _vectors(self, model: nn.Module, examples: list[Example]) -> list[Tensor]:
        """One (examples, width) a text of the example: length-sorted forward passes, joined in order."""
        count = len(examples[0].encodings)
        encodings = [example.encodings[i] for i in range(count) for example in examples]
        device = next(model.parameters()).device
        lengths = [len(encoding["input_ids"]) for encoding in encodings]
        batches = token_budget_batches(lengths, token_budget(self.config.training.max_tokens_per_device, device))
        vectors = [model(**self.inputs.pad([encodings[i] for i in batch], device)).float() for batch in batches]
        places = torch.tensor([i for batch in batches for i in batch], device=device)
        return list(torch.cat(vectors)[places.argsort()].chunk(count))

    def loss(self, model: nn.Module, examples: list[Example]) -> Tensor:
        if self.kind == ("text",):  # the same text twice: two dropouts
            examples = [Example(example.encodings * 2) for example in examples]
        vectors = self._vectors(model, examples)
        options = self.config.matching
        if "score" not in self.kind:
            texts = [[text_key(text) for text in example.encodings] for example in examples]
            keys = torch.tensor(texts, device=vectors[0].device).unbind(1)
            negatives = vectors[2] if len(vectors) > 2 else None
            return contrastive_loss(vectors[0], vectors[1], negatives, options.temperature, keys)
        scores = torch.tensor([example.target for example in examples], device=vectors[0].device)
        if options.scored_loss == "cosent":
            return cosent_loss(vectors[0], vectors[1], scores, options.temperature)
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
        """The space of up to 128 training rows; a text's positive is itself under dropout where it has no other."""
        sample = [Example(example.encodings[:2]) for example in examples[:128]]
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

    def majority(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        raise AssertionError("refused by the config")

    def output(self, prediction: Any) -> dict[str, Any]:
        return {"cosine": prediction} if isinstance(prediction, float) else {"vector": prediction.tolist()}

    def save(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, SentenceEncoder)
        shape = model.encoder.config
        facts: dict[str, Any] = {
            "task": "matching",
            "metric": self.metric,
            "kind": list(self.kind),
            "pooling": self.pooling,
        }
        facts["temperature"] = self.config.matching.temperature

        def more(path: Path) -> None:
            write_sentence_files(path, self.pooling, shape.hidden_size, shape.num_hidden_layers, self.inputs.max_length)

        write_folder(model.encoder, self.inputs, folder, facts, more)


def text_key(encoding: Encoding) -> int:
    """A number (64 bits) that is the same for texts that the model cannot tell apart, on every process."""
    return hash(tuple(encoding["input_ids"]))


def _default_metric(config: FinetuneConfig) -> str:
    """mrr where the first scored file is one of queries and targets, else spearman."""
    scored = (*config.dev, *config.test)[:1]
    return "mrr" if scored and has_roles(scored[0], ("query", "target"), config.columns) else "spearman"

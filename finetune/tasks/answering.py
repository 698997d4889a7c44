"""Extractive question answering, with transformers' own head (`AutoModelForQuestionAnswering`).

A long context is cut into windows that overlap, every token in at least one; a window that does not hold the whole
answer learns CLS. The prediction is the best span over all windows, an exact slice of the context, or no answer where
CLS scores higher and the training questions had some without an answer. Scores are the official SQuAD script's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering

from configs import InputError
from finetune.config import FinetuneConfig, chosen_metric
from finetune.folder.load import load_model
from finetune.folder.write import write_folder
from finetune.reading.inputs import Inputs
from finetune.reading.rows import Row
from finetune.tasks.answering_spans import best_span, exact_match, locate, normalize_answer, overlap_f1, token_span
from finetune.tasks.protocol import Example

METRICS = ("f1", "exact_match")
WINDOWS_AT_ONCE = 32  # windows of one forward pass when predicting


class Answering:
    """The task for one run. `has_unanswerable`: the model learned to say that there is no answer."""

    contrastive = False

    def __init__(self, config: FinetuneConfig, inputs: Inputs, has_unanswerable: bool):
        self.inputs, self.options, self.has_unanswerable = inputs, config.answering, has_unanswerable
        self.lost_answers = 0  # training answers that no window holds whole: longer than the windows overlap
        self.metric = chosen_metric(config, "f1", METRICS)
        if config.pooling is not None:
            raise InputError("pooling: answering has none, it reads every token")

    @classmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> "Answering":
        """The task; questions without answers among the rows make the model answer '' when it sees none."""
        return cls(config, inputs, any(not _answers(row) for row in rows))

    @classmethod
    def from_facts(cls, config: FinetuneConfig, inputs: Inputs, facts: dict[str, Any]) -> "Answering":
        """The task that a finished folder was trained for."""
        return cls(config, inputs, bool(facts.get("has_unanswerable", False)))

    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        return load_model(AutoModelForQuestionAnswering, folder, from_scratch)

    def target(self, row: Row) -> list[str] | None:
        """The right texts of which something is left when normalised; [''] where there is none, as the script does."""
        if "answers" not in row.values:
            return None
        return [text for text, _ in _answers(row) if normalize_answer(text)] or [""]

    def encode(self, rows: Sequence[Row], *, training: bool) -> list[Example]:
        """Scoring: an example a row, with all its windows; training: one a window, its target (start, end) tokens."""
        examples: list[Example] = []
        for row in rows:
            context = row.values["context"]
            windows = self.inputs.encode_windows(row.values["question"], context, self.options.stride)
            if not training:
                layout = (context, [offsets for _, offsets in windows])
                examples.append(Example([encoding for encoding, _ in windows], self.target(row), 1.0, layout))
                continue
            place = _training_place(row)
            spans = [token_span(offsets, *place) if place else None for _, offsets in windows]
            self.lost_answers += place is not None and not any(spans)
            examples += [
                Example([encoding], span or (0, 0)) for (encoding, _), span in zip(windows, spans, strict=True)
            ]
        if training and self.lost_answers:
            print(
                f"{self.lost_answers} answers are in no window as a whole; a smaller answering.stride would hold them"
            )
        return examples

    def weight(self, example: Example) -> float:
        return example.weight

    def loss(self, model: nn.Module, examples: list[Example]) -> Tensor:
        """Mean of the cross-entropies of start and end, summed over windows."""
        device = next(model.parameters()).device
        batch = self.inputs.pad([example.encodings[0] for example in examples], device)
        output = model(**batch)
        targets = torch.tensor([example.target for example in examples], device=device)
        weights = torch.tensor([example.weight for example in examples], device=device)
        padding = batch["attention_mask"] == 0
        losses = [
            cross_entropy(logits.float().masked_fill(padding, -1e9), targets[:, i], reduction="none")
            for i, logits in enumerate((output.start_logits, output.end_logits))
        ]
        return ((losses[0] + losses[1]) / 2 * weights).sum()

    def predict(self, model: nn.Module, examples: list[Example]) -> list[dict[str, Any]]:
        """{answer, start, end, score} a row: characters of the context, and the span's logit sum less that of CLS."""
        device = next(model.parameters()).device
        encodings = [encoding for example in examples for encoding in example.encodings]
        logits: list[tuple[Any, Any]] = []
        for first in range(0, len(encodings), WINDOWS_AT_ONCE):
            output = model(**self.inputs.pad(encodings[first : first + WINDOWS_AT_ONCE], device))
            pair = (output.start_logits.float().cpu().numpy(), output.end_logits.float().cpu().numpy())
            logits += list(zip(*pair, strict=True))
        windows = iter(logits)
        return [self._best([next(windows) for _ in example.encodings], *example.layout) for example in examples]

    def _best(self, logits: list[tuple[Any, Any]], context: str, offsets: list[Any]) -> dict[str, Any]:
        spans = [
            span
            for (starts, ends), places in zip(logits, offsets, strict=True)
            if (span := best_span(starts, ends, places, self.options.max_answer_length))
        ]
        nothing = min(float(starts[0] + ends[0]) for starts, ends in logits)
        score, start, end = max(spans, default=(nothing, 0, 0))
        if self.has_unanswerable and nothing > score:
            start = end = 0
        return {"answer": context[start:end], "start": start, "end": end, "score": score - nothing}

    def score(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        exact = [exact_match(guess["answer"], rights) for rights, guess in pairs]
        f1 = [overlap_f1(guess["answer"], rights) for rights, guess in pairs]
        return {"f1": sum(f1) / len(f1), "exact_match": sum(exact) / len(exact), "n": len(f1)}

    def diagnose(self, model: nn.Module, examples: Sequence[Example]) -> dict[str, float]:
        return {}

    def majority(self, train: Sequence[Any], test: Sequence[Any]) -> dict[str, float]:
        """Scores of never answering."""
        return self.score([(rights, {"answer": ""}) for rights in test])

    def output(self, prediction: dict[str, Any]) -> dict[str, Any]:
        return prediction

    def save(self, model: nn.Module, folder: Path) -> None:
        facts = {"task": "answering", "metric": self.metric, "has_unanswerable": self.has_unanswerable}
        write_folder(model, self.inputs, folder, {**facts, "answering": self.options.model_dump()})


def _answers(row: Row) -> list[tuple[str, int]]:
    """(text, answer_start) of each answer, from SQuAD's list of maps or from datasets' map of lists."""
    answers = row.values["answers"]
    if isinstance(answers, dict) and set(answers) >= {"text", "answer_start"}:
        pairs = zip(answers["text"], answers["answer_start"], strict=False)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
    try:
        return [(str(answer["text"]), int(answer["answer_start"])) for answer in answers]
    except (TypeError, KeyError, ValueError):
        raise InputError(f"{row.place}: 'answers' must be a list of {{text, answer_start}}") from None


def _training_place(row: Row) -> tuple[int, int] | None:
    """Characters [start, end) of the first answer, moved to the nearest occurrence when answer_start is wrong."""
    answers = _answers(row)
    if not answers:
        return None
    text, answer_start = answers[0]
    start = locate(row.values["context"], text, answer_start)
    if start is None:
        raise InputError(f"{row.place}: the answer '{text}' is nowhere in the context")
    return start, start + len(text)

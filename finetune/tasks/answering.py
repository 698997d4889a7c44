"""Extractive question answering, with transformers' own head (`AutoModelForQuestionAnswering`).

A long context is cut into windows that overlap, every token in at least one; a window that does not hold the whole
answer learns CLS. The prediction is the best span over all windows, an exact slice of the context, or no answer where
CLS scores higher and the training questions had some without an answer. Scores are the official SQuAD script's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForQuestionAnswering

from configs import InputError
from finetune.config import AnsweringConfig, FinetuneConfig
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_model
from finetune.reading.inputs import Inputs, Offsets
from finetune.reading.rows import Row
from finetune.tasks.answering_spans import best_span, exact_match, locate, normalize_answer, overlap_f1, token_span
from finetune.tasks.protocol import Example, Task

WINDOWS_AT_ONCE = 32  # windows of one forward pass when predicting
Logits = tuple[np.ndarray, np.ndarray]  # start and end of a window, each (tokens,)


@dataclass(frozen=True, slots=True)
class AnsweringExample(Example):
    """A question with all windows of its context (`encodings`); in training one window, and nothing to read it by."""

    context: str = ""
    offsets: Sequence[Offsets] = ()  # of each window


class Answering(Task[AnsweringExample]):
    """The task for one run. `has_unanswerable`: the model learned to say that there is no answer."""

    name = "answering"
    metrics = ("f1", "exact_match")
    training_roles = (("question", "context", "answers"),)
    scoring_roles = training_roles
    prediction_roles = (("question", "context"),)
    output_names = ("start_logits", "end_logits")
    outputs_per_token = True

    def __init__(self, description: ModelDescription, inputs: Inputs, max_tokens: int | None = None) -> None:
        super().__init__(description, inputs, max_tokens)
        self.options = description.answering or AnsweringConfig()
        self.has_unanswerable = bool(description.has_unanswerable)
        self.lost_answers = 0  # training answers that no window holds whole: longer than the windows overlap

    @classmethod
    def from_training_rows(cls, config: FinetuneConfig, inputs: Inputs, rows: Sequence[Row]) -> Self:
        """The task; questions without answers among the rows make the model answer '' when it sees none."""
        has_unanswerable = any(not _answers(row) for row in rows)
        description = ModelDescription(
            metric=config.metric, has_unanswerable=has_unanswerable, answering=config.answering
        )
        return cls(description, inputs)

    def build(self, folder: str, *, from_scratch: bool) -> nn.Module:
        return load_model(AutoModelForQuestionAnswering, folder, from_scratch)

    def target(self, row: Row) -> list[str] | None:
        """The right texts of which something is left when normalised; [''] where there is none, as the script does."""
        if "answers" not in row.values:
            return None
        return [text for text, _ in _answers(row) if normalize_answer(text)] or [""]

    def encode(self, rows: Sequence[Row], *, training: bool) -> list[AnsweringExample]:
        """One example per row with all its windows; in training one per window, its target (start, end) tokens."""
        examples: list[AnsweringExample] = []
        for row in rows:
            context = row.values["context"]
            windows = self.inputs.encode_windows(row.values["question"], context, self.options.stride)
            if training:
                examples += self._training_windows(row, windows)
            else:
                encodings, offsets = [encoding for encoding, _ in windows], [offsets for _, offsets in windows]
                examples.append(AnsweringExample(encodings, self.target(row), context=context, offsets=offsets))
        if training and self.lost_answers:
            print(f"{self.lost_answers} answers are in no window as a whole: a smaller answering.stride can hold them")
        return examples

    def _training_windows(self, row: Row, windows: list[tuple[Any, Offsets]]) -> list[AnsweringExample]:
        answer = _first_answer(row)
        spans = [token_span(offsets, *answer) if answer else None for _, offsets in windows]
        self.lost_answers += answer is not None and not any(spans)
        return [
            AnsweringExample([encoding], span or (0, 0)) for (encoding, _), span in zip(windows, spans, strict=True)
        ]

    def loss(self, model: nn.Module, examples: list[AnsweringExample]) -> Tensor:
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

    def predict(self, model: nn.Module, examples: list[AnsweringExample]) -> list[dict[str, Any]]:
        """{answer, start, end, score} per row: characters of the context, and the span's logit sum less that of CLS."""
        device = next(model.parameters()).device
        encodings = [encoding for example in examples for encoding in example.encodings]
        logits: list[Logits] = []
        for first in range(0, len(encodings), WINDOWS_AT_ONCE):
            output = model(**self.inputs.pad(encodings[first : first + WINDOWS_AT_ONCE], device))
            starts, ends = (each.float().cpu().numpy() for each in (output.start_logits, output.end_logits))
            logits += zip(starts, ends, strict=True)
        windows = iter(logits)
        return [self._best_answer([next(windows) for _ in example.encodings], example) for example in examples]

    def _best_answer(self, windows: list[Logits], example: AnsweringExample) -> dict[str, Any]:
        spans = [
            span
            for (starts, ends), offsets in zip(windows, example.offsets, strict=True)
            if (span := best_span(starts, ends, offsets, self.options.max_answer_length))
        ]
        no_answer = min(float(starts[0] + ends[0]) for starts, ends in windows)
        score, start, end = max(spans, default=(no_answer, 0, 0))
        if self.has_unanswerable and no_answer > score:
            start = end = 0
        return {"answer": example.context[start:end], "start": start, "end": end, "score": score - no_answer}

    def score(self, pairs: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        exact = [exact_match(guess["answer"], rights) for rights, guess in pairs]
        f1 = [overlap_f1(guess["answer"], rights) for rights, guess in pairs]
        return {"f1": sum(f1) / len(f1), "exact_match": sum(exact) / len(exact), "n": len(f1)}

    def output(self, prediction: dict[str, Any]) -> dict[str, Any]:
        return prediction


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


def _first_answer(row: Row) -> tuple[int, int] | None:
    """Characters [start, end) of the first answer, moved to the nearest occurrence when answer_start is wrong."""
    answers = _answers(row)
    if not answers:
        return None
    text, answer_start = answers[0]
    start = locate(row.values["context"], text, answer_start)
    if start is None:
        raise InputError(f"{row.place}: the answer '{text}' is nowhere in the context")
    return start, start + len(text)

"""Spans of a context: finding an answer in a window, choosing the best one, comparing it with the right ones."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from finetune.reading.inputs import Offsets


def token_span(offsets: Offsets, start: int, end: int) -> tuple[int, int] | None:
    """First and last token of characters [start, end), None when the window does not hold all of them."""
    tokens = [(i, place) for i, place in enumerate(offsets) if place and place[0] < end and place[1] > start]
    if not tokens:
        return None
    (first, first_place), (last, last_place) = tokens[0], tokens[-1]
    return (first, last) if first_place[0] <= start and last_place[1] >= end else None


def best_span(
    starts: np.ndarray, ends: np.ndarray, offsets: Offsets, max_tokens: int, candidates: int = 20
) -> tuple[float, int, int] | None:
    """(score, first character, end character) of the best start <= end span of the context, None without a context.

    `starts` and `ends` are a window's logits (tokens,); the score is their sum at the span. The best end is looked for
    at the `candidates` best starts.
    """
    places = {i: place for i, place in enumerate(offsets) if place}
    inside = np.array(list(places), dtype=int)
    if not len(inside):
        return None
    best: tuple[float, int, int] | None = None
    for first in inside[np.argsort(-starts[inside], kind="stable")[:candidates]]:
        last_allowed = inside[(inside >= first) & (inside < first + max_tokens)]
        last = last_allowed[np.argmax(ends[last_allowed])]
        score = float(starts[first] + ends[last])
        if best is None or score > best[0]:
            best = (score, places[first][0], places[last][1])
    return best


def locate(context: str, text: str, answer_start: int) -> int | None:
    """Where `text` is in the context: at `answer_start`, else its occurrence nearest to it, None when nowhere."""
    if not text:
        return None
    starts = [match.start() for match in re.finditer(re.escape(text), context)]
    return min(starts, key=lambda start: abs(start - answer_start), default=None)


def normalize_answer(text: str) -> str:
    """The official SQuAD script's: lower case, no punctuation, no articles, single spaces."""
    text = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(guess: str, rights: Sequence[str]) -> float:
    """1 when the normalised guess equals one of the right answers (SQuAD)."""
    return float(any(normalize_answer(guess) == normalize_answer(right) for right in rights))


def overlap_f1(guess: str, rights: Sequence[str]) -> float:
    """Best F1 of words with a right answer (SQuAD 2.0: with an empty side, 1 when both are empty)."""
    return max(_f1(normalize_answer(guess).split(), normalize_answer(right).split()) for right in rights)


def _f1(guess: list[str], right: list[str]) -> float:
    if not guess or not right:
        return float(guess == right)
    same = sum((Counter(guess) & Counter(right)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(guess), same / len(right)
    return 2 * precision * recall / (precision + recall)

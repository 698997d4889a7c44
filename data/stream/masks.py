"""Masks: pure functions of (seed, row of the run, position or word); no generator, no state.

Every ordinary token (or word) is chosen with probability `rate` on its own, so a short row may have none. Costs about
20 ns a token for independent tokens. Special tokens and padding are never chosen; replacements never are special.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs import IGNORED_LABEL
from data import hashing
from data.config import MaskConfig
from data.tokenizer.load import WORD_BEGINS, SpecialIds

I32 = NDArray[np.int32]
_ID = np.uint32(WORD_BEGINS - 1)
MAX_SPAN = 10
_CONTINUE = 0.8  # SpanBERT: lengths are geometric with p = 0.2, at most 10 words


def threshold(probability: float) -> np.uint64:
    """The share of 64-bit numbers below it is `probability`."""
    return np.uint64(min(int(probability * 2.0**64), (1 << 64) - 1))


class Masker:
    """Hides tokens of rows; built once per loader."""

    def __init__(self, config: MaskConfig, special: SpecialIds, seed: int) -> None:
        self._unit = config.unit
        self._rate = threshold(config.rate)
        self._to_mask = threshold(config.replace[0])
        self._to_random = threshold(config.replace[0] + config.replace[1])
        self._keeps = config.replace[2] > 0
        self._special = special
        self._is_special = np.zeros(special.vocab_size, bool)
        self._is_special[list(special.every)] = True
        self._ordinary = np.flatnonzero(~self._is_special).astype(np.int32)
        self._key = hashing.key(seed, "masks")
        self._span_start = threshold(span_start_probability(config.rate))

    def __call__(self, rows: NDArray[np.uint32], numbers: Sequence[int]) -> tuple[I32, I32]:
        """Rows (r, T) of ids with word bits, their numbers in the run → masked ids and labels, each int32 (r, T)."""
        ids = (rows & _ID).astype(np.int32)
        labels = np.full(ids.shape, IGNORED_LABEL, np.int32)
        if not len(ids):
            return ids, labels
        keys = hashing.stream(self._key, np.array(numbers, np.uint64))[:, None]
        chosen = self._chosen(rows, ids, keys)
        row, column = np.nonzero(chosen)
        originals = ids[row, column]
        labels[row, column] = originals
        draw = hashing.stream(1, keys[row, 0] + column.astype(np.uint64))
        random = self._ordinary[(hashing.mix(draw) >> np.uint64(32)) * np.uint64(len(self._ordinary)) >> np.uint64(32)]
        masked = np.where(draw < self._to_random, random, originals) if self._keeps else random
        ids[row, column] = np.where(draw < self._to_mask, np.int32(self._special.mask), masked)
        return ids, labels

    def _chosen(self, rows: NDArray[np.uint32], ids: I32, keys: hashing.U64) -> NDArray[np.bool_]:
        ordinary = ~self._is_special[ids]
        if self._unit == "token":
            positions = np.arange(ids.shape[1], dtype=np.uint64)
            return (hashing.stream(0, keys + positions) < self._rate) & ordinary
        words: NDArray[Any] = np.cumsum((rows >= WORD_BEGINS) | ~ordinary, axis=1)
        if self._unit == "span":
            return self._spans(words, keys) & ordinary
        numbers = np.arange(words.max() + 1, dtype=np.uint64)
        return np.take_along_axis(hashing.stream(0, keys + numbers) < self._rate, words, axis=1) & ordinary

    def _spans(self, words: NDArray[Any], keys: hashing.U64) -> NDArray[np.bool_]:
        """Tokens covered by a span; spans may start before the row, and go on behind a boundary that they cross."""
        num_words = int(words.max()) + 1
        draws = hashing.stream(0, keys + np.arange(num_words + MAX_SPAN - 1).astype(np.uint64))
        row, start = np.nonzero(draws < self._span_start)
        lengths = span_lengths(hashing.mix(draws[row, start]))
        edges = np.zeros((len(words), num_words + 2 * MAX_SPAN), np.int32)
        np.add.at(edges, (row, start), 1)
        np.add.at(edges, (row, start + lengths), -1)
        covered = np.cumsum(edges, axis=1)[:, MAX_SPAN - 1 :] > 0
        return np.take_along_axis(covered, words, axis=1)


def span_lengths(draws: hashing.U64) -> NDArray[np.int64]:
    """Lengths 1-10 of spans in words: geometric with p = 0.2, cut at 10."""
    tails = np.array([threshold(_CONTINUE**length) for length in range(1, MAX_SPAN)])
    return 1 + (draws[:, None] < tails).sum(axis=1)


def span_start_probability(rate: float) -> float:
    """Probability that a span starts at a word, so that a word is covered by one with probability `rate`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        uncovered = float(np.prod([1 - middle * _CONTINUE**k for k in range(MAX_SPAN)]))
        low, high = (low, middle) if uncovered < 1 - rate else (middle, high)
    return (low + high) / 2

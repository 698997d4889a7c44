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
_ID_BITS = np.uint32(WORD_BEGINS - 1)
MAX_SPAN = 10
_LONGER = 0.8  # SpanBERT: span lengths are geometric with p = 0.2, so it continues with 0.8, for at most 10 words


def threshold(probability: float) -> np.uint64:
    """A random 64-bit number is below it with `probability`."""
    return np.uint64(min(int(probability * 2.0**64), (1 << 64) - 1))


class Masker:
    """Chooses tokens of rows and replaces them; built once per loader."""

    def __init__(self, config: MaskConfig, special: SpecialIds, seed: int) -> None:
        self._unit = config.unit
        self._below_rate = threshold(config.rate)
        self._below_mask = threshold(config.replace[0])
        self._below_random = threshold(config.replace[0] + config.replace[1])
        self._keeps_some = config.replace[2] > 0
        self._mask_id = special.mask
        self._is_special = np.zeros(special.vocab_size, bool)
        self._is_special[list(special.every)] = True
        self._ordinary_ids = np.flatnonzero(~self._is_special).astype(np.int32)
        self._key = hashing.key(seed, "masks")
        self._below_span_start = threshold(span_start_probability(config.rate))

    def __call__(self, rows: NDArray[np.uint32], numbers: Sequence[int]) -> tuple[I32, I32]:
        """Rows (r, T) of ids with word bits, their numbers in the run → masked ids and labels, each int32 (r, T)."""
        ids = (rows & _ID_BITS).astype(np.int32)
        labels = np.full(ids.shape, IGNORED_LABEL, np.int32)
        if not len(ids):
            return ids, labels
        keys = hashing.random_numbers(self._key, np.array(numbers, np.uint64))[:, None]
        row, column = np.nonzero(self._chosen(rows, ids, keys))
        originals = ids[row, column]
        labels[row, column] = originals
        draws = hashing.random_numbers(1, keys[row, 0] + column.astype(np.uint64))
        # 32 random bits, scaled to an index by a multiplication
        index = (hashing.mix(draws) >> np.uint64(32)) * np.uint64(len(self._ordinary_ids)) >> np.uint64(32)
        replacements = self._ordinary_ids[index]
        if self._keeps_some:
            replacements = np.where(draws < self._below_random, replacements, originals)
        ids[row, column] = np.where(draws < self._below_mask, np.int32(self._mask_id), replacements)
        return ids, labels

    def _chosen(self, rows: NDArray[np.uint32], ids: I32, keys: hashing.U64) -> NDArray[np.bool_]:
        ordinary = ~self._is_special[ids]
        if self._unit == "token":
            positions = np.arange(ids.shape[1], dtype=np.uint64)
            return (hashing.random_numbers(0, keys + positions) < self._below_rate) & ordinary
        words: NDArray[Any] = np.cumsum((rows >= WORD_BEGINS) | ~ordinary, axis=1)
        if self._unit == "span":
            return self._in_spans(words, keys) & ordinary
        numbers = np.arange(words.max() + 1, dtype=np.uint64)
        chosen_words = hashing.random_numbers(0, keys + numbers) < self._below_rate
        return np.take_along_axis(chosen_words, words, axis=1) & ordinary

    def _in_spans(self, words: NDArray[Any], keys: hashing.U64) -> NDArray[np.bool_]:
        """Tokens covered by a span; spans may start before the row, and may cross a boundary of pieces."""
        num_words = int(words.max()) + 1
        draws = hashing.random_numbers(0, keys + np.arange(num_words + MAX_SPAN - 1).astype(np.uint64))
        row, start = np.nonzero(draws < self._below_span_start)
        lengths = span_lengths(hashing.mix(draws[row, start]))
        edges = np.zeros((len(words), num_words + 2 * MAX_SPAN), np.int32)
        np.add.at(edges, (row, start), 1)
        np.add.at(edges, (row, start + lengths), -1)
        covered = np.cumsum(edges, axis=1)[:, MAX_SPAN - 1 :] > 0
        return np.take_along_axis(covered, words, axis=1)


def span_lengths(draws: hashing.U64) -> NDArray[np.int64]:
    """Lengths 1-10 of spans in words: geometric with p = 0.2, cut at 10."""
    longer_than = np.array([threshold(_LONGER**length) for length in range(1, MAX_SPAN)])
    return 1 + (draws[:, None] < longer_than).sum(axis=1)


def span_start_probability(rate: float) -> float:
    """Probability that a span starts at a word, so that a word is covered by one with probability `rate`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        uncovered = float(np.prod([1 - middle * _LONGER**k for k in range(MAX_SPAN)]))
        low, high = (low, middle) if uncovered < 1 - rate else (middle, high)
    return (low + high) / 2

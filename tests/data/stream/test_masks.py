"""Masks: who may be chosen, how often, by what it is replaced, for each unit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import IGNORED_LABEL
from data import MaskConfig
from data.stream.masks import Masker, span_lengths, span_start_probability
from data.tokenizer.load import WORD_BEGINS, SpecialIds

SPECIAL = SpecialIds(cls=2, sep=3, pad=0, mask=4, every=(0, 1, 2, 3, 4, 2000), vocab_size=2048)
LENGTH = 128


def rows(count: int, seed: int = 0) -> np.ndarray:
    """Rows of two pieces and padding; words of 1-4 tokens; some UNK inside."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(5, 1900, (count, LENGTH)).astype(np.uint32)
    ids[generator.random(ids.shape) < 0.02] = 1
    begins = generator.random(ids.shape) < 0.6
    begins[:, [1, 61]] = True
    ids[begins] |= WORD_BEGINS
    ids[:, [0, 60]], ids[:, [59, 119]] = 2, 3
    ids[:, 120:] = 0
    return ids


def masked(config: MaskConfig, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Original ids, masked ids, labels."""
    original = rows(count)
    ids, labels = Masker(config, SPECIAL, seed)(original, range(count))
    return (original & np.uint32(WORD_BEGINS - 1)).astype(np.int32), ids, labels


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_r01_only_ordinary_tokens_are_chosen_at_the_asked_rate(unit: Any) -> None:
    original, ids, labels = masked(MaskConfig(unit=unit), 2000)
    chosen = labels != IGNORED_LABEL
    eligible = ~np.isin(original, SPECIAL.every)
    assert not (chosen & ~eligible).any()
    assert (labels[chosen] == original[chosen]).all()
    assert (ids[~chosen] == original[~chosen]).all()
    count = eligible.sum()
    assert count > 200_000
    assert 0.1455 < chosen.sum() / count < 0.1545


def test_r01_share_in_every_place_of_a_row() -> None:
    """Spans too reach the first word as often as others: 4 sigma at each place."""
    for unit in ("token", "span"):
        original, _, labels = masked(MaskConfig.model_validate({"unit": unit}), 4000)
        for column in (1, 2, 30, 61, 118):
            eligible = ~np.isin(original[:, column], SPECIAL.every)
            share = (labels[eligible, column] != IGNORED_LABEL).mean()
            assert abs(share - 0.15) < 4 * (0.15 * 0.85 / eligible.sum()) ** 0.5


@pytest.mark.parametrize(
    ("replace", "lows", "highs"),
    [
        ((0.8, 0.1, 0.1), (0.787, 0.090, 0.090), (0.813, 0.110, 0.110)),
        ((0.5, 0.5, 0.0), (0.48, 0.48, -1), (0.52, 0.52, 0.002)),
        ((0.0, 0.0, 1.0), (-1, -1, 1), (0, 0, 1)),
        ((1.0, 0.0, 0.0), (1, -1, -1), (1, 0, 0)),
    ],
)
def test_r03_shares_of_mask_random_and_unchanged(replace: Any, lows: Any, highs: Any) -> None:
    original, ids, labels = masked(MaskConfig(replace=replace), 1000)
    chosen = labels != IGNORED_LABEL
    assert chosen.sum() > 15_000
    to_mask = (ids[chosen] == SPECIAL.mask).mean()
    same = (ids[chosen] == original[chosen]).mean()
    for share, low, high in zip((to_mask, 1 - to_mask - same, same), lows, highs, strict=True):
        assert low <= share <= high
    assert (labels[chosen] == original[chosen]).all()


def test_replacements_are_spread_over_the_ordinary_vocabulary() -> None:
    _, ids, labels = masked(MaskConfig(rate=1.0, replace=(0.0, 1.0, 0.0)), 500)
    random = ids[labels != IGNORED_LABEL]
    assert not np.isin(random, SPECIAL.every).any()
    counts = np.bincount(random, minlength=2048)[5:2000]
    assert (counts > 0).all()
    expected = counts.mean()
    assert ((counts - expected) ** 2 / expected).sum() < len(counts) + 4 * (2 * len(counts)) ** 0.5


def test_whole_words_are_chosen_or_not_at_once() -> None:
    original = rows(500)
    _, labels = Masker(MaskConfig(unit="word"), SPECIAL, 0)(original, range(500))
    chosen = labels != IGNORED_LABEL
    inside = (original < WORD_BEGINS) & ~np.isin(original, SPECIAL.every)
    inside[:, 1:] &= ~np.isin(original[:, :-1] & np.uint32(WORD_BEGINS - 1), SPECIAL.every)
    row, column = np.nonzero(inside)
    assert len(row) > 10_000
    assert (chosen[row, column] == chosen[row, column - 1]).all()


def test_spans_have_the_lengths_of_spanbert() -> None:
    lengths = span_lengths(np.random.default_rng(0).integers(0, 1 << 63, 100_000, dtype=np.uint64) * np.uint64(2))
    assert lengths.min() == 1
    assert lengths.max() == 10
    assert abs(lengths.mean() - (1 - 0.8**10) / 0.2) < 4 * 2.9 / 100_000**0.5
    assert abs((lengths == 1).mean() - 0.2) < 4 * (0.2 * 0.8 / 100_000) ** 0.5
    assert 0.035 < span_start_probability(0.15) < 0.038


def test_masks_depend_on_seed_and_row_number_only() -> None:
    original = rows(8)
    masker = Masker(MaskConfig(), SPECIAL, 3)
    ids, labels = masker(original, range(100, 108))
    for i in range(8):
        alone_ids, alone_labels = Masker(MaskConfig(), SPECIAL, 3)(original[i : i + 1], [100 + i])
        assert (alone_ids[0] == ids[i]).all()
        assert (alone_labels[0] == labels[i]).all()
    assert (Masker(MaskConfig(), SPECIAL, 4)(original, range(100, 108))[1] != labels).any()
    assert (masker(original, range(200, 208))[1] != labels).any()


def test_rates_of_zero_and_one() -> None:
    original, ids, labels = masked(MaskConfig(rate=0.0), 20)
    assert (labels == IGNORED_LABEL).all()
    assert (ids == original).all()
    original, _, labels = masked(MaskConfig(rate=1.0), 20)
    assert ((labels != IGNORED_LABEL) == ~np.isin(original, SPECIAL.every)).all()


def test_shares_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ValueError, match="three shares that sum to 1"):
        MaskConfig(replace=(0.8, 0.1, 0.2))


@settings(max_examples=150, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 5), st.integers(1, 40)),
    rate=st.sampled_from([0.0, 0.01, 0.15, 0.5, 0.999, 1.0]),
    to_mask=st.sampled_from([0.0, 0.3, 1.0]),
    unit=st.sampled_from(["token", "word", "chinese_word", "span"]),
    special_share=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 1 << 62),
)
def test_any_rows_keep_what_is_not_chosen(
    shape: tuple[int, int], rate: float, to_mask: float, unit: Any, special_share: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    original = generator.integers(0, SPECIAL.vocab_size, shape).astype(np.uint32)
    special = generator.random(shape) < special_share
    original[special] = generator.choice(SPECIAL.every, special.sum())
    rows = original | np.where(generator.random(shape) < 0.5, WORD_BEGINS, np.uint32(0))
    before = rows.copy()
    numbers = generator.integers(0, 1 << 40, shape[0]).tolist()
    config = MaskConfig(rate=rate, replace=(to_mask, 1 - to_mask, 0.0), unit=unit)
    ids, labels = Masker(config, SPECIAL, seed)(rows, numbers)
    chosen = labels != IGNORED_LABEL
    assert (rows == before).all()
    assert ids.shape == labels.shape == shape
    assert not (chosen & np.isin(original, SPECIAL.every)).any()
    assert (labels[chosen] == original[chosen]).all()
    assert (ids[~chosen] == original[~chosen]).all()
    assert ((ids[chosen] == SPECIAL.mask) | ~np.isin(ids[chosen], SPECIAL.every)).all()
    assert rate or not chosen.any()
    again = Masker(config, SPECIAL, seed)(rows[::-1].copy(), numbers[::-1])
    assert (again[0][::-1] == ids).all()
    assert (again[1][::-1] == labels).all()

"""Which rows go together."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.reading.batching import FORWARD_PASS_COST, SORTED_TOGETHER, epoch_batches, token_budget_batches


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 200))
def test_a_budget_holds_and_every_row_comes_once(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(20, 200))
def test_no_other_cut_of_the_sorted_rows_is_cheaper(lengths: list[int], budget: int) -> None:
    """Of the 2^(rows - 1) cuts: padded tokens and the share of a pass, no cut above the budget."""
    ordered = sorted(lengths, reverse=True)

    def cost(sizes: list[list[int]]) -> float:
        fits = all(len(part) == 1 or len(part) * part[0] <= budget for part in sizes)
        return sum(len(part) * part[0] + FORWARD_PASS_COST * budget for part in sizes) if fits else math.inf

    cuts = []
    for choice in range(2 ** (len(ordered) - 1)):
        edges = [0, *(i + 1 for i in range(len(ordered) - 1) if choice >> i & 1), len(ordered)]
        cuts.append(cost([ordered[a:b] for a, b in pairwise(edges)]))
    found = [[lengths[i] for i in batch] for batch in token_budget_batches(lengths, budget)]
    assert [length for batch in found for length in batch] == ordered
    assert cost(found) == pytest.approx(min(cuts))


@given(st.integers(1, 300), st.integers(1, 16), st.booleans(), st.integers(0, 3))
def test_an_epoch_has_every_row_once(count: int, size: int, by_length: bool, epoch: int) -> None:
    lengths = [i % 17 + 1 for i in range(count)]
    batches = epoch_batches(lengths, size, 0, epoch, by_length=by_length, drop_last=False)
    assert sorted(i for batch in batches for i in batch) == list(range(count))
    assert batches == epoch_batches(lengths, size, 0, epoch, by_length=by_length, drop_last=False)
    whole = epoch_batches(lengths, size, 0, epoch, by_length=by_length, drop_last=True)
    assert all(len(batch) == size for batch in whole) or len(whole) == 1


def test_epochs_differ_and_sorting_saves_padding() -> None:
    lengths = [(i * 7919) % 97 + 3 for i in range(8 * 2 * SORTED_TOGETHER * 2)]
    plans = [epoch_batches(lengths, 8, 0, e, by_length=True, drop_last=False) for e in (0, 1)]
    assert plans[0] != plans[1]
    plain = epoch_batches(lengths, 8, 0, 0, by_length=False, drop_last=False)
    padded = [sum(len(b) * max(lengths[i] for i in b) for b in plan) for plan in (plans[0], plain)]
    assert padded[0] < 0.75 * padded[1]


@pytest.mark.parametrize("count", [1, 5])
def test_the_only_batch_is_never_dropped(count: int) -> None:
    assert len(epoch_batches([1] * count, 8, 0, 0, by_length=False, drop_last=True)) == 1

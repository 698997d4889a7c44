"""The contrastive loss against sums written out by hand: a text is never its own wrong answer."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch.nn.functional import normalize

from finetune.tasks.matching_loss import contrastive_loss


def by_hand(vectors: Sequence[torch.Tensor], texts: Sequence[str], temperature: float) -> float:
    """The loss of rows of one letter a text (anchor, target, perhaps a negative), term by term."""
    unit = [normalize(vector, dim=-1) for vector in vectors]
    total = 0.0
    for i, row in enumerate(texts):
        right = math.exp(float(unit[0][i] @ unit[1][i]) / temperature)
        terms = [right]
        for side in range(1, len(vectors)):
            for j, other in enumerate(texts):
                answers_an_equal_anchor = side == 1 and other[0] == row[0]
                if other[side] not in row[:2] and not answers_an_equal_anchor:
                    terms.append(math.exp(float(unit[0][i] @ unit[side][j]) / temperature))
        total -= math.log(right / sum(terms))
    return total


@pytest.mark.parametrize(
    "texts",
    [
        ["aa", "bb", "aa", "cc"],  # unsupervised, a text twice
        ["ab", "ac", "de", "fb"],  # an anchor twice, a target twice
        ["ab", "ba", "cd", "ef"],  # a row's anchor is another's target
        ["abc", "dea", "fgb", "hij"],  # a negative that is another row's anchor or target
        ["ab", "cd", "ef", "gh"],  # all different
    ],
)
def test_equal_texts_are_not_each_others_negatives(texts: list[str]) -> None:
    torch.manual_seed(0)
    vectors = [torch.randn(4, 6) for _ in texts[0]]
    keys = [torch.tensor([ord(row[side]) for row in texts]) for side in range(len(texts[0]))]
    negatives = vectors[2] if len(vectors) > 2 else None
    loss = contrastive_loss(vectors[0], vectors[1], negatives, 0.5, keys)
    assert float(loss) == pytest.approx(by_hand(vectors, texts, 0.5), rel=1e-5)


def test_a_batch_of_one_text_alone_has_nothing_to_tell_apart() -> None:
    vectors = torch.randn(3, 6, requires_grad=True)
    keys = torch.zeros(3, dtype=torch.long)
    loss = contrastive_loss(vectors, vectors.detach().roll(1, 1), None, 0.05, [keys, keys])
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert vectors.grad is not None
    assert vectors.grad.isfinite().all()

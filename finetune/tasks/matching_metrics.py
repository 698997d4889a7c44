"""Scores of sentence vectors: similarity, retrieval, and the shape of their space. Spearman is scipy's."""

from collections.abc import Sequence

import torch
from scipy.stats import spearmanr
from torch import Tensor

RECALL_AT = (1, 5, 10)


def similarity_scores(rights: Sequence[float], cosines: Sequence[float]) -> dict[str, float]:
    """spearman (x 1, not x 100) of the cosines with the given scores, and n; 0 where one side is constant."""
    constant = len(set(rights)) < 2 or len(set(cosines)) < 2
    return {"spearman": 0.0 if constant else float(spearmanr(rights, cosines).statistic), "n": len(rights)}


def retrieval_scores(queries: Tensor, corpus: Tensor, rights: Sequence[int], block: int = 1024) -> dict[str, float]:
    """recall@k and mrr of exact cosine search, in blocks of queries: block x corpus similarities in memory at once.

    `queries` (q, d) and `corpus` (c, d) are unit vectors, `rights[i]` the row of `corpus` that answers query i. Ties
    count against the right answer, so constant vectors score 0.
    """
    ranks = []
    right_ids = torch.tensor(rights)
    for start in range(0, len(queries), block):
        similarities = queries[start : start + block] @ corpus.T
        right = similarities.gather(1, right_ids[start : start + block, None])
        ranks.append((similarities >= right).sum(1))  # the right one itself is one of them: rank 1 is the best
    rank = torch.cat(ranks).double()
    recalls = {f"recall@{k}": float((rank <= k).double().mean()) for k in RECALL_AT}
    return {**recalls, "mrr": float((1 / rank).mean()), "n": len(rank)}


def space_scores(left: Tensor, right: Tensor) -> dict[str, float]:
    """How the sentence vectors lie in space, from unit vectors of positive pairs: (rows, width) each, row by row.

    alignment: mean squared distance of positives; uniformity: log mean of exp(-2 x squared distance) over pairs of
    different rows (lower is more spread; Wang and Isola 2020); mean cosines of positives and of different rows.
    """
    cosines = left @ left.T
    others = cosines[~torch.eye(len(left), dtype=torch.bool)]
    positives = (left * right).sum(-1)
    return {
        "alignment": float((2 - 2 * positives).mean()),
        "uniformity": float((-2 * (2 - 2 * others)).exp().mean().log()),
        "cosine_of_positives": float(positives.mean()),
        "cosine_of_random_pairs": float(others.mean()),
    }

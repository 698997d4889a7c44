"""Scores from small per-row values; every row counts once. Spearman and F1 are scipy's and scikit-learn's."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch import Tensor

from configs import InputError

RECALL_AT = (1, 5, 10)


def classification_scores(rights: Sequence[int], guesses: Sequence[int]) -> dict[str, float]:
    """accuracy, macro_f1 (over the classes that occur), matthews, n, and the share of the most frequent guess."""
    if not rights:
        raise InputError("no rows to score")
    top = float(np.bincount(guesses).max()) / len(guesses)
    return {
        "accuracy": float(accuracy_score(rights, guesses)),
        "macro_f1": float(f1_score(rights, guesses, average="macro")),
        "matthews": float(matthews_corrcoef(rights, guesses)),
        "most_frequent_guess": top,
        "n": len(rights),
    }


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
        ids = right_ids[start : start + block, None]
        right = similarities.gather(1, ids)
        better = similarities >= right
        ranks.append(better.sum(1))  # the right one itself is one of them: rank 1 is the best
    rank = torch.cat(ranks).double()
    recalls = {f"recall@{k}": float((rank <= k).double().mean()) for k in RECALL_AT}
    return {**recalls, "mrr": float((1 / rank).mean()), "n": len(rank)}


def space_scores(left: Tensor, right: Tensor) -> dict[str, float]:
    """What the space of sentence vectors looks like, from unit vectors of positives (rows, width), row by row.

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

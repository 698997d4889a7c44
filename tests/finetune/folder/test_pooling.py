"""Pooling never sees padding, and a folder's pooling is the one that sentence-transformers uses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from finetune.config import Pooling
from finetune.embed import embed
from finetune.folder.pooling import pool, stored_pooling, write_sentence_files
from finetune.serving import parse_options

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
LONG = "rain and snow " * 10


def test_r38_mean_of_the_useful_rows_only() -> None:
    states = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 2.0]]])
    mask = torch.tensor([[1, 1, 0, 0]])
    for pooling in ("mean", "max", "cls"):
        assert pool(states, mask, pooling).tolist() == [[1.0, 0.0]]


def test_r38_a_row_without_tokens_is_finite() -> None:
    states = torch.randn(1, 3, 4)
    for pooling in POOLINGS:
        assert pool(states, torch.zeros(1, 3, dtype=torch.long), pooling).isfinite().all()


@pytest.mark.parametrize("architecture", ["bert", "roberta_prelayernorm", "modernbert"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_r38_a_line_alone_and_beside_a_longer_one_has_the_same_vector(
    architecture: str, pooling: str, make_encoder: Callable[[str], str], tmp_path: Path
) -> None:
    lines = ["big rain", "", " ", *[f"old {word}" for word in ("apple", "saw", "fog")], LONG]
    together = tmp_path / "all.txt"
    together.write_text("".join(line + "\n" for line in lines))
    out = str(tmp_path / "out.npy")
    vectors = []
    for budget in ("1", "100000"):  # each alone, then all in one padded batch
        options = parse_options([f"pooling={pooling}", f"max_tokens_per_device={budget}"])
        assert embed(make_encoder(architecture), str(together), out, options) == (len(lines), 32)
        vectors.append(np.load(out))
        assert np.isfinite(vectors[-1]).all()
    cosines = (vectors[0] * vectors[1]).sum(1) / np.linalg.norm(vectors[0], axis=1) / np.linalg.norm(vectors[1], axis=1)
    assert cosines.min() >= 0.99999


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_written_files_state_the_pooling(pooling: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_sentence_files(tmp_path, pooling, 8, 3, 64)
    assert stored_pooling(str(tmp_path)) == pooling


def test_a_pooling_that_we_cannot_do_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_sentence_files(tmp_path, "mean", 8, 3, 64)
    config = tmp_path / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"word_embedding_dimension": 8, "pooling_mode_weightedmean_tokens": True}))
    with pytest.raises(ValueError, match="cannot do"):
        stored_pooling(str(tmp_path))


def test_vectors_of_a_hub_sentence_encoder_equal_its_own_librarys(minilm: str, tmp_path: Path) -> None:
    lines = ["A man plays a guitar.", "Somebody is making music.", "It rains. " * 40, ""]
    source = tmp_path / "lines.txt"
    source.write_text("".join(line + "\n" for line in lines))
    embed(minilm, str(source), str(tmp_path / "out.npy"), parse_options([]))
    ours = np.load(tmp_path / "out.npy")
    theirs = SentenceTransformer(minilm).encode(lines)
    assert (ours / np.linalg.norm(ours, axis=1, keepdims=True) * theirs).sum(1).min() >= 0.99999

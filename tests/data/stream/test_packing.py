"""Packing: nothing lost, no row too long, the fullest rows leave, pieces wait once; sources mixed by tokens."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import BatchLoader, DataConfig
from data.stream.packing import FILL, MAX_CARRIED_ROWS, Piece, cut, pack


def pieces_of(lengths: list[int], name: str = "d") -> list[Piece]:
    return [Piece(f"{name}{i}", None, np.arange(length, dtype=np.uint32)) for i, length in enumerate(lengths)]


@given(length=st.integers(1, 500), sequence_length=st.integers(3, 64))
def test_parts_of_a_document_join_to_it(length: int, sequence_length: int) -> None:
    [document] = pieces_of([length])
    parts = cut(document, sequence_length)
    assert np.concatenate([part.ids for part in parts]).tolist() == list(range(length))
    assert all(part.length <= sequence_length for part in parts)
    assert all(part.length == sequence_length for part in parts[:-1])
    assert len({part.id for part in parts}) == len(parts)
    assert [p.ids.tolist() for part in parts for p in cut(part, 3)] == [[i] for i in range(length)]
    if len(parts) > 1:
        assert [part.id for part in parts] == [f"d0#{part.ids[0]}" for part in parts]
        assert [p.id for part in parts for p in cut(part, 3)] == [f"d0#{i}" for i in range(length)]


@settings(max_examples=300, deadline=None)
@given(
    old=st.lists(st.integers(1, 62), max_size=10),
    new=st.lists(st.integers(1, 250), max_size=60),
    flush=st.booleans(),
)
def test_nothing_is_lost_and_no_row_is_too_long(old: list[int], new: list[int], flush: bool) -> None:
    carried = pieces_of(old, "old")
    pieces = [part for document in pieces_of(new, "new") for part in cut(document, 64)]
    rows, left = pack(carried, pieces, 64, flush=flush)
    out = [piece for row in rows for piece in row]
    assert tokens_of(out + left) == tokens_of(carried + pieces)
    assert all(0 < sum(piece.length for piece in row) <= 64 for row in rows)
    assert not any(piece.id.startswith("old") for piece in left)
    whole = {piece.id for piece in carried + pieces if piece.start is None}
    assert {piece.id for piece in out + left if piece.start is None} == whole
    assert all(piece.ids[0] == (piece.start or 0) for piece in out + left)
    if flush:
        assert not left
    assert sum(piece.length for piece in left) <= MAX_CARRIED_ROWS * 64
    if not old and not flush and not left:
        assert sum(piece.length for row in rows for piece in row) >= FILL * 64 * len(rows)
    again, _ = pack(carried, pieces, 64, flush=flush)
    assert [[piece.id for piece in row] for row in again] == [[piece.id for piece in row] for row in rows]


def tokens_of(pieces: list[Piece]) -> list[tuple[str, int]]:
    return sorted((piece.document, int(token)) for piece in pieces for token in piece.ids)


@pytest.mark.parametrize("name", ["en_books_speeches", "en_news_wiki_web", "zh_news_books"])
def test_rows_are_995_permille_full_on_real_text(
    real_data: Path, config: Callable[..., DataConfig], tokenizer: str, run_steps: Any, name: str
) -> None:
    """Windows of 256 documents, 8 lanes; a coarse tokenizer, so every document spans several rows."""
    source = {"path": str(real_data / "pretrain" / f"{name}.jsonl.gz"), "format": "jsonl"}
    real = config(sources=[source], sequence_length=512, rows_per_step=64, num_lanes=8, window_documents=256)
    steps = run_steps(real, tokenizer, 30)
    fill = sum(batch.tokens for [batch] in steps) / (30 * 64 * 512)
    assert fill >= 0.995


def test_sources_are_mixed_by_tokens(
    tmp_path: Path, config: Callable[..., DataConfig], tokenizer: str, run_steps: Any
) -> None:
    """Documents of 5 and of 50 words, weights 3 to 1: shares of the tokens, not of the documents."""
    (tmp_path / "short.txt").write_text("kula meni deba fi go\n" * 300)
    (tmp_path / "long.txt").write_text("sate vi wo za shi " * 10 + "\n" + "ba de fi go ku " * 10 + "\n")
    sources = [{"path": str(tmp_path / "short.txt"), "weight": 3}, {"path": str(tmp_path / "long.txt")}]
    mixed = config(sources=sources, num_lanes=2, window_documents=32)
    steps = run_steps(mixed, tokenizer, 60)
    assert share_of_short(steps) == pytest.approx(0.75, abs=0.02)
    swapped = config(
        sources=[{**sources[0], "weight": 1}, {**sources[1], "weight": 4}], num_lanes=2, window_documents=32
    )
    loader = BatchLoader(swapped, tokenizer, 0, state=steps[-1][0].state, new_phase=True)
    later = [[batch] for batch in itertools.islice(loader, 80)]
    assert share_of_short(later[20:]) == pytest.approx(0.2, abs=0.03)  # without making up for the past


def share_of_short(steps: list[list[Any]]) -> float:
    tokens = {True: 0, False: 0}
    for [batch] in steps:
        for ids, lengths in zip(batch.piece_ids, batch.piece_lengths, strict=True):
            for document, length in zip(ids, lengths, strict=True):
                tokens["short.txt" in document] += length - 2
    return tokens[True] / sum(tokens.values())

"""The order of computation is a permutation that keeps documents whole; wrong lengths are refused."""

import pytest
import torch

from encoder import Documents


def test_documents_of_a_length_lie_side_by_side():
    documents = Documents.from_piece_lengths([[3, 2], [2, 4]], row_length=6)
    # row 0: 3, 2 and a tail of 1; row 1: 2 and 4
    assert documents.groups == ((1, 1), (2, 2), (1, 3), (1, 4))
    assert documents.order.tolist() == [5, 3, 4, 6, 7, 0, 1, 2, 8, 9, 10, 11]
    assert documents.positions.tolist() == [0, 0, 1, 0, 1, 0, 1, 2, 0, 1, 2, 3]
    assert documents.order[documents.inverse_order].tolist() == list(range(12))
    assert documents.cu_seqlens.tolist() == [0, 1, 3, 5, 8, 12]
    assert documents.cu_seqlens.dtype == torch.int32
    assert documents.max_length == 4


def test_full_rows_have_no_tail():
    assert Documents.from_piece_lengths([[4, 4], [8]], row_length=8).groups == ((2, 4), (1, 8))


def test_wrong_lengths_are_refused():
    with pytest.raises(AssertionError, match="row 1: its documents have 9 tokens, a row holds 8"):
        Documents.from_piece_lengths([[8], [5, 4]], row_length=8)
    with pytest.raises(AssertionError, match="a document has no token"):
        Documents.from_lengths([3, 0])
    with pytest.raises(AssertionError, match="there is no document"):
        Documents.from_lengths([])

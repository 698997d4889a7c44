"""Packed sequences: where each document begins and ends in rows that hold several, to keep attention inside each.

A document here is one sequence of the model: what attention connects, with positions from 0. A row holds several of
them side by side, without padding. All rows are flattened to one line of S tokens, and the encoder computes these in
another order, sorted by the length of the document: then the attention of all documents of one length is one batched
call on a view, without padding, mask or copy. Cost: one gather of the token ids and one of the outputs.

Shapes: S tokens, N documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """The boundaries of N packed documents that cover S tokens, and the order in which the encoder computes them.

    Build it with `from_piece_lengths` or `from_lengths`. Of the tokens in computed order (documents by length):

    - `order` (S,) int64: where each one stands in the input;
    - `inverse_order` (S,) int64: where each token of the input stands among them;
    - `positions` (S,) int64: position of each one inside its document;
    - `cu_seqlens` (N+1,) int32: where the documents begin, and S: what FlashAttention's variable-length kernels take;
    - `max_length`: tokens of the longest document;
    - `groups`: (number of documents, their length) for each length, as plain numbers, so that no device is waited for.
    """

    order: Tensor
    inverse_order: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    max_length: int
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def from_piece_lengths(cls, piece_lengths: Sequence[Sequence[int]], row_length: int) -> "Documents":
        """The documents of packed rows: `piece_lengths[r]` are the lengths of those in row r, in order.

        What they leave empty at the end of a row becomes a document of its own, whose outputs are not used.
        """
        lengths: list[int] = []
        for row, pieces in enumerate(piece_lengths):
            empty = row_length - sum(pieces)
            assert empty >= 0, f"row {row}: its documents have {sum(pieces)} tokens, a row holds {row_length}"
            lengths += [*pieces, empty] if empty else pieces
        return cls.from_lengths(lengths)

    @classmethod
    def from_lengths(cls, lengths: Sequence[int]) -> "Documents":
        """Documents of the given lengths, one behind the other without gaps."""
        assert lengths, "there is no document"
        assert min(lengths) > 0, "a document has no token"
        given = torch.tensor(list(lengths), dtype=torch.int64)
        starts = given.cumsum(0) - given
        sorted_lengths, by_length = given.sort(stable=True)
        ends = sorted_lengths.cumsum(0)
        num_tokens = int(ends[-1])
        positions = torch.arange(num_tokens) - (ends - sorted_lengths).repeat_interleave(sorted_lengths)
        order = starts[by_length].repeat_interleave(sorted_lengths) + positions
        inverse_order = torch.empty_like(order)
        inverse_order[order] = torch.arange(num_tokens)
        values, counts = sorted_lengths.unique_consecutive(return_counts=True)
        return cls(
            order=order,
            inverse_order=inverse_order,
            positions=positions,
            cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32),
            max_length=int(sorted_lengths[-1]),
            groups=tuple(zip(counts.tolist(), values.tolist(), strict=True)),
        )

    def to(self, device: torch.device | str) -> "Documents":
        """The same documents with their tensors on `device`."""
        return replace(
            self,
            order=self.order.to(device),
            inverse_order=self.inverse_order.to(device),
            positions=self.positions.to(device),
            cu_seqlens=self.cu_seqlens.to(device),
        )

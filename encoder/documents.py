"""Where documents begin and end in packed rows: what keeps attention inside each of them.

Rows are flattened to one line of tokens, and the encoder computes it in another order: documents of equal length lie
side by side. So the attention of a whole group is one batched call on a view, without padding, mask or copy. The
price is one gather of the token ids and one of the outputs.

Shapes: S tokens, N documents, M selected tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from configs import InputError


@dataclass(frozen=True)
class Documents:
    """N documents that cover S tokens; build it with `from_piece_lengths` or `from_lengths`.

    `order` (S,) int64: the token computed at each place; `inverse` (S,) int64: the place of each token; `positions`
    (S,) int64: the position inside its document, in computed order; `cu_seqlens` (N+1,) int32: where documents start
    in computed order; `max_length`: tokens of the longest; `groups`: (number of documents, their length), on the host.
    """

    order: Tensor
    inverse: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    max_length: int
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def from_piece_lengths(cls, piece_lengths: Sequence[Sequence[int]], row_length: int) -> "Documents":
        """Documents of packed rows: `piece_lengths[r]` are the lengths of row r's pieces, in order.

        The tail of a row that its pieces leave empty is a document of its own, whose outputs nobody reads.
        InputError when the pieces of a row are longer than `row_length`, or one of them is empty.
        """
        lengths: list[int] = []
        for row, pieces in enumerate(piece_lengths):
            tail = row_length - sum(pieces)
            if tail < 0:
                raise InputError(f"row {row}: its pieces have {sum(pieces)} tokens, a row holds {row_length}")
            lengths += [*pieces, tail] if tail else pieces
        return cls.from_lengths(lengths)

    @classmethod
    def from_lengths(cls, lengths: Sequence[int]) -> "Documents":
        """Documents that lie one behind the other without gaps; InputError when one is empty or there is none."""
        given = torch.tensor(list(lengths), dtype=torch.int64)
        if not len(lengths) or int(given.min()) < 1:
            raise InputError("documents need at least one token each, and a batch at least one document")
        starts = given.cumsum(0) - given
        sizes, by_length = given.sort(stable=True)
        ends = sizes.cumsum(0)
        total = int(ends[-1])
        positions = torch.arange(total) - (ends - sizes).repeat_interleave(sizes)
        order = starts[by_length].repeat_interleave(sizes) + positions
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(total)
        values, counts = sizes.unique_consecutive(return_counts=True)
        return cls(
            order=order,
            inverse=inverse,
            positions=positions,
            cu_seqlens=torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32),
            max_length=int(sizes[-1]),
            groups=tuple(zip(counts.tolist(), values.tolist(), strict=True)),
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Documents":
        """The same documents with their tensors on `device`; the host-side lengths stay where they are."""
        moved = [
            tensor.to(device, non_blocking=non_blocking)
            for tensor in (self.order, self.inverse, self.positions, self.cu_seqlens)
        ]
        return Documents(moved[0], moved[1], moved[2], moved[3], self.max_length, self.groups)

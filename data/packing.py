"""Packing: documents cut into pieces, pieces put into rows of fixed length, the fullest rows leave.

Best-fit decreasing: the longest piece first, each into the fullest row that has room. Rows leave while their mean fill
stays at least 99.5 %; pieces of the others are carried into the next window, once. O(n log n) in the pieces of a
window, under 1 % of the time that tokenising takes.
"""

import bisect
from collections.abc import Iterable
from typing import NamedTuple

from data.tokens import U32

FILL = 0.995
BOUNDARIES = 2  # CLS and SEP of each piece
WHOLE = -1


class Piece(NamedTuple):
    """A document or a part of it, without CLS and SEP."""

    document: str
    start: int  # number of its first token in the document; WHOLE where the document is not cut
    ids: U32

    @property
    def id(self) -> str:
        return self.document if self.start == WHOLE else f"{self.document}#{self.start}"

    @property
    def length(self) -> int:
        """Tokens that it takes in a row."""
        return len(self.ids) + BOUNDARIES


def cut(piece: Piece, sequence_length: int) -> list[Piece]:
    """Parts of a document (or of a part of one) that each fit into a row; all but the last one fill it."""
    room = sequence_length - BOUNDARIES
    if len(piece.ids) <= room:
        return [piece]
    first = max(piece.start, 0)
    return [
        Piece(piece.document, first + start, piece.ids[start : start + room])
        for start in range(0, len(piece.ids), room)
    ]


class Packed(NamedTuple):
    rows: list[list[Piece]]  # those that leave
    carried: list[Piece]


def pack(carried: list[Piece], pieces: Iterable[Piece], sequence_length: int, *, flush: bool) -> Packed:
    """Put pieces (none longer than a row) into rows.

    Rows that hold a piece of `carried` leave in any case, as do all with `flush`. Rows are in the order of their first
    pieces.
    """
    everything = [*carried, *pieces]
    num_old = len(carried)
    order = sorted(range(len(everything)), key=lambda i: (i >= num_old, -everything[i].length))
    rows: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (room left, row), sorted: the first one that suffices is the fullest
    for index in order:
        length = everything[index].length
        place = bisect.bisect_left(rooms, (length, -1))
        if place == len(rooms):
            room, row = sequence_length, len(rows)
            rows.append([])
        else:
            room, row = rooms.pop(place)
        rows[row].append(index)
        if room - length > BOUNDARIES:
            bisect.insort(rooms, (room - length, row))
    fills = [sum(everything[index].length for index in row) for row in rows]
    leaving = set(range(len(rows))) if flush else _leaving(rows, fills, num_old, sequence_length)
    by_document = sorted(leaving, key=lambda row: min(rows[row]))
    left = sorted(index for row, indices in enumerate(rows) if row not in leaving for index in indices)
    return Packed(
        [[everything[index] for index in rows[row]] for row in by_document], [everything[index] for index in left]
    )


def _leaving(rows: list[list[int]], fills: list[int], num_old: int, sequence_length: int) -> set[int]:
    leaving = {row for row, indices in enumerate(rows) if min(indices) < num_old}
    tokens = sum(fills[row] for row in leaving)
    for row in sorted(range(len(rows)), key=lambda row: (-fills[row], row)):
        if row in leaving:
            continue
        if tokens + fills[row] < FILL * sequence_length * (len(leaving) + 1):
            break
        leaving.add(row)
        tokens += fills[row]
    return leaving

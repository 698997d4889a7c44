"""Packing: documents cut into pieces, pieces put into rows of fixed length, the fullest rows leave.

Best-fit decreasing: the longest piece first, each into the fullest row that has room; the gaps that are left are
filled with parts of documents that had to be cut anyway (about 1 % of the tokens). Rows leave while their mean fill
stays at least 99.5 %; pieces of the others are carried into the next window, once. O(n log n) in the pieces of a
window, under 1 % of the time that tokenising takes.
"""

import bisect
import heapq
from collections.abc import Iterable
from typing import NamedTuple

from data.tokenizer.load import U32

FILL = 0.995
MAX_CARRIED_ROWS = 4
BOUNDARIES = 2  # CLS and SEP of each piece
MIN_PART = 8  # tokens of a part that only fills a gap


class Piece(NamedTuple):
    """A document or a part of it, without CLS and SEP."""

    document: str  # its id
    start: int | None  # number of its first token in the document; None: it is the whole document
    ids: U32

    @property
    def id(self) -> str:
        return self.document if self.start is None else f"{self.document}#{self.start}"

    @property
    def length(self) -> int:
        """Tokens that it takes in a row."""
        return len(self.ids) + BOUNDARIES


def cut(piece: Piece, sequence_length: int) -> list[Piece]:
    """Parts of a document (or of a part of one) that each fit into a row; all but the last one fill it."""
    room = sequence_length - BOUNDARIES
    if len(piece.ids) <= room:
        return [piece]
    first = piece.start or 0
    return [
        Piece(piece.document, first + start, piece.ids[start : start + room])
        for start in range(0, len(piece.ids), room)
    ]


class _Row:
    """A row being filled. Rows are ordered by `first`, the number of their first piece among all pieces."""

    def __init__(self, room: int, first: int) -> None:
        self.pieces: list[Piece] = []
        self.room, self.first, self.has_carried = room, first, False

    def add(self, piece: Piece, number: int, *, carried: bool) -> None:
        self.pieces.append(piece)
        self.room -= piece.length
        self.first, self.has_carried = min(self.first, number), self.has_carried or carried


def pack(
    carried: list[Piece], pieces: Iterable[Piece], sequence_length: int, *, flush: bool
) -> tuple[list[list[Piece]], list[Piece]]:
    """Put pieces (none longer than a row) into rows: those that leave, by their first pieces, and what is carried on.

    With `flush` all rows leave; else the fullest, and those that hold a piece of `carried`.
    """
    rows = _best_fit(carried, pieces, sequence_length)
    _fill_gaps(rows, sequence_length)
    rows = sorted((row for row in rows if row.pieces), key=lambda row: row.first)
    leaving = set(map(id, rows)) if flush else _leaving(rows, sequence_length)
    left = [piece for row in rows if id(row) not in leaving for piece in row.pieces]
    return [row.pieces for row in rows if id(row) in leaving], left


def _best_fit(carried: list[Piece], pieces: Iterable[Piece], sequence_length: int) -> list[_Row]:
    """Carried pieces first, then the longest first, each into the fullest row that has room."""
    everything, num_carried = [*carried, *pieces], len(carried)
    rows: list[_Row] = []
    rooms: list[tuple[int, int]] = []  # (room, row), sorted: the first one that suffices is the fullest
    for number in sorted(range(len(everything)), key=lambda i: (i >= num_carried, -everything[i].length)):
        piece = everything[number]
        place = bisect.bisect_left(rooms, (piece.length, -1))
        if place == len(rooms):
            index = len(rows)
            rows.append(_Row(sequence_length, number))
        else:
            _, index = rooms.pop(place)
        rows[index].add(piece, number, carried=number < num_carried)
        if rows[index].room > BOUNDARIES:
            bisect.insort(rooms, (rows[index].room, index))
    return rows


def _fill_gaps(rows: list[_Row], sequence_length: int) -> None:
    """While rows are less than 99.5 % full, empty the emptiest one that holds parts of long documents only, and put
    its tokens into the largest gaps of others. Documents that fit into a row are never cut.
    """
    wasted = sum(row.room for row in rows)
    gaps = sorted((-row.room, index) for index, row in enumerate(rows) if row.room >= MIN_PART + BOUNDARIES)
    heapq.heapify(gaps)
    donors = [
        row for row in rows if row.room and not row.has_carried and all(piece.start is not None for piece in row.pieces)
    ]
    emptied = set()
    for donor in sorted(donors, key=lambda row: (-row.room, row.first)):
        emptied.add(id(donor))
        if wasted <= (1 - FILL) * sequence_length * len(rows):
            return
        wasted -= donor.room
        pieces, donor.pieces, donor.room = donor.pieces, [], sequence_length
        while pieces:
            while gaps and id(rows[gaps[0][1]]) in emptied:
                heapq.heappop(gaps)
            if not gaps:
                for piece in pieces:
                    donor.add(piece, donor.first, carried=False)
                return
            _, index = heapq.heappop(gaps)
            row, piece = rows[index], pieces.pop()
            size = _part_size(len(piece.ids), row.room - BOUNDARIES)
            row.add(piece._replace(ids=piece.ids[:size]), donor.first, carried=False)
            wasted -= size + BOUNDARIES
            if size < len(piece.ids):
                pieces.append(piece._replace(start=(piece.start or 0) + size, ids=piece.ids[size:]))
            if row.room >= MIN_PART + BOUNDARIES:
                heapq.heappush(gaps, (-row.room, index))


def _part_size(length: int, room: int) -> int:
    """Tokens of a piece to put into a gap, so that neither they nor the rest are too few, where that can be."""
    size = min(length, room)
    return size if size == length or length - size >= MIN_PART else max(MIN_PART, length - MIN_PART)


def _leaving(rows: list[_Row], sequence_length: int) -> set[int]:
    """The id() of each row that leaves: the fullest, as long as the mean fill allows it, and all but a few anyway."""
    leaving = {id(row) for row in rows if row.has_carried}
    wasted = sum(row.room for row in rows if row.has_carried)
    fullest = sorted((row for row in rows if not row.has_carried), key=lambda row: (row.room, row.first))
    for i, row in enumerate(fullest):
        too_empty = wasted + row.room > (1 - FILL) * sequence_length * (len(leaving) + 1)
        if too_empty and i >= len(fullest) - MAX_CARRIED_ROWS:
            break
        leaving.add(id(row))
        wasted += row.room
    return leaving

"""Packing: documents cut into pieces, pieces put into rows of fixed length, the fullest rows leave.

Best-fit decreasing: the longest piece first, each into the fullest row that has room; what gaps are left then are
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
MOST_CARRIED = 4  # rows
BOUNDARIES = 2  # CLS and SEP of each piece
WHOLE = -1
LEAST_PART = 8  # tokens of a part that only fills a gap


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


class _Row:
    """A row being filled; `first` is the place of its first piece in the order of the documents."""

    def __init__(self, room: int) -> None:
        self.pieces: list[Piece] = []
        self.room, self.first, self.old = room, 1 << 62, False

    def add(self, piece: Piece, place: int, old: bool) -> None:
        self.pieces.append(piece)
        self.room -= piece.length
        self.first, self.old = min(self.first, place), self.old or old


def pack(carried: list[Piece], pieces: Iterable[Piece], sequence_length: int, *, flush: bool) -> Packed:
    """Put pieces (none longer than a row) into rows, in the order of their first pieces.

    Rows that hold a piece of `carried` leave in any case, as do all with `flush`.
    """
    rows = _best_fit(carried, pieces, sequence_length)
    _fill_gaps(rows, sequence_length)
    rows = sorted((row for row in rows if row.pieces), key=lambda row: row.first)
    leaving = set(map(id, rows)) if flush else _leaving(rows, sequence_length)
    left = [piece for row in rows if id(row) not in leaving for piece in row.pieces]
    return Packed([row.pieces for row in rows if id(row) in leaving], left)


def _best_fit(carried: list[Piece], pieces: Iterable[Piece], sequence_length: int) -> list[_Row]:
    """Carried pieces first, then the longest first, each into the fullest row that has room."""
    everything, num_old = [*carried, *pieces], len(carried)
    rows: list[_Row] = []
    rooms: list[tuple[int, int]] = []  # (room, row), sorted: the first one that suffices is the fullest
    for index in sorted(range(len(everything)), key=lambda i: (i >= num_old, -everything[i].length)):
        piece = everything[index]
        place = bisect.bisect_left(rooms, (piece.length, -1))
        if place == len(rooms):
            number = len(rows)
            rows.append(_Row(sequence_length))
        else:
            _, number = rooms.pop(place)
        rows[number].add(piece, index, index < num_old)
        if rows[number].room > BOUNDARIES:
            bisect.insort(rooms, (rows[number].room, number))
    return rows


def _fill_gaps(rows: list[_Row], sequence_length: int) -> None:
    """While rows are less than 99.5 % full, cut up the emptiest one that holds parts of long documents only, and put
    its tokens into the largest gaps of others. Documents that fit into a row are never cut.
    """
    wasted = sum(row.room for row in rows)
    gaps = sorted((-row.room, number) for number, row in enumerate(rows) if row.room >= LEAST_PART + BOUNDARIES)
    heapq.heapify(gaps)
    donors = [row for row in rows if row.room and not row.old and all(piece.start != WHOLE for piece in row.pieces)]
    given = set()
    for donor in sorted(donors, key=lambda row: (-row.room, row.first)):
        given.add(id(donor))
        if wasted <= (1 - FILL) * sequence_length * len(rows):
            return
        wasted -= donor.room
        pieces, donor.pieces, donor.room = donor.pieces, [], sequence_length
        while pieces:
            while gaps and id(rows[gaps[0][1]]) in given:
                heapq.heappop(gaps)
            if not gaps:
                for piece in pieces:
                    donor.add(piece, donor.first, False)
                return
            _, number = heapq.heappop(gaps)
            row, piece = rows[number], pieces.pop()
            size = _part_size(len(piece.ids), row.room - BOUNDARIES)
            row.add(piece._replace(ids=piece.ids[:size]), donor.first, False)
            wasted -= size + BOUNDARIES
            if size < len(piece.ids):
                pieces.append(piece._replace(start=piece.start + size, ids=piece.ids[size:]))
            if row.room >= LEAST_PART + BOUNDARIES:
                heapq.heappush(gaps, (-row.room, number))


def _part_size(length: int, room: int) -> int:
    """Tokens of a piece to put into a gap, so that neither they nor the rest are too few, where that can be."""
    size = min(length, room)
    return size if size == length or length - size >= LEAST_PART else max(LEAST_PART, length - LEAST_PART)


def _leaving(rows: list[_Row], sequence_length: int) -> set[int]:
    """The ids of the fullest rows: those that keep the mean fill, and all but a few in any case."""
    leaving = {id(row) for row in rows if row.old}
    wasted = sum(row.room for row in rows if row.old)
    fullest = sorted((row for row in rows if not row.old), key=lambda row: (row.room, row.first))
    for i, row in enumerate(fullest):
        too_empty = wasted + row.room > (1 - FILL) * sequence_length * (len(leaving) + 1)
        if too_empty and i >= len(fullest) - MOST_CARRIED:
            break
        leaving.add(id(row))
        wasted += row.room
    return leaving

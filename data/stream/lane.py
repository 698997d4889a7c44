"""A lane: one of the fixed logical streams that all rows of a run come from.

It works window by window: read documents, tokenise them in one call, cut, pack, let the fullest rows leave, carry the
rest. A window's rows are a pure function of its start, so the state is the start, with the carried tokens, and how many
rows were given; a resume reads one window again, whatever the step. When a new phase changes the sequence length, the
rest of the window is packed again: another stage of it begins. A lane holds one window of rows in memory.
"""

import base64
from typing import Any, NamedTuple

import numpy as np

from configs import InputError
from data import hashing
from data.config import DataConfig
from data.sources.unit import Plan, Record
from data.stream.packing import Piece, cut, pack
from data.stream.source_stream import SourceStream
from data.stream.state import State
from data.tokenizer.load import LoadedTokenizer, encode

WINDOW_CHARACTERS = 1 << 20  # a window of long documents closes here, to bound memory and the time of a resume
ROWS_PER_WINDOW = 16  # a window of short documents stays open until about so many rows are full
CHARACTERS_PER_TOKEN = 4.0  # before anything was counted
STAGGER = 8  # first windows have 9/16 to 16/16 of the documents, so that lanes do not all tokenise at once
MAX_EMPTY_WINDOWS = 1000  # in a row; then the tokenizer knows none of this text
WHOLE_DOCUMENT = -1  # in a state, the start of a piece that is a whole document

Stage = tuple[int, int]  # (sequence length, rows of that length that were given)


class RunData(NamedTuple):
    """What all lanes of a run share."""

    config: DataConfig
    plans: list[Plan]
    loaded: LoadedTokenizer
    seed: int


class Lane:
    """Rows of lane `number`, in order, from `state` on (without one, from the start of the run)."""

    def __init__(self, number: int, run: RunData, state: State | None) -> None:
        self._number, self._config, self._loaded, self._seed = number, run.config, run.loaded, run.seed
        self._sources = [SourceStream(plan, i, number, run.config, run.seed) for i, plan in enumerate(run.plans)]
        self._weights = [plan.source.weight for plan in run.plans]
        self._tokens, self._characters = [0] * len(run.plans), [0] * len(run.plans)
        self._mixed = [0] * len(run.plans)  # tokens since the weights changed
        self._carried: list[Piece] = []
        self._window = 0
        self._rows: list[list[Piece]] = []
        self._given = 0
        self._length = self._config.sequence_length
        self._stages: tuple[Stage, ...] = ()  # of this window, before the sequence length changed
        self._start = self._snapshot()
        if state is not None:
            self._restore(state)

    def next_row(self) -> list[Piece]:
        """The pieces of the next row; none once all epochs are over."""
        empty = 0
        while self._given == len(self._rows):
            if self.ended:
                return []
            self._begin_window()
            self._read_window()
            empty = 0 if self._rows or self._carried else empty + 1
            if empty == MAX_EMPTY_WINDOWS:
                raise InputError("data.sources: the tokenizer finds no token in this text")
        row = self._rows[self._given]
        self._given += 1
        return row

    @property
    def ended(self) -> bool:
        """No document and no carried piece is left."""
        return not self._carried and all(source.ended for source in self._sources)

    def state(self) -> tuple[State, tuple[Stage, ...]]:
        """(start of the window, its stages) after the last row. A start is never changed, only replaced."""
        if self._given == len(self._rows) and self._rows:
            self._begin_window()
        return self._start, (*self._stages, (self._length, self._given))

    def _begin_window(self) -> None:
        if self._start["weights"] != self._weights:
            self._mixed = [0] * len(self._weights)
        self._rows, self._given, self._stages, self._length = [], 0, (), self._config.sequence_length
        self._start = self._snapshot()

    def _snapshot(self) -> State:
        return {
            "window": self._window,
            "sources": [source.state() for source in self._sources],
            "weights": self._weights,
            "tokens": list(self._tokens),
            "mixed": list(self._mixed),
            "characters": list(self._characters),
            "carried": [_to_json(piece) for piece in self._carried],
        }

    def _restore(self, state: State) -> None:
        self._start = {name: value for name, value in state.items() if name != "stages"}
        self._window = state["window"]
        self._tokens, self._characters = list(state["tokens"]), list(state["characters"])
        self._mixed = list(state["mixed"])
        for source, values in zip(self._sources, state["sources"], strict=True):
            source.restore(values)
        self._carried = [_from_json(values) for values in state["carried"]]
        [(length, given), *later] = state["stages"]
        if not given and not later:
            return  # the window was not read
        self._length = length
        self._read_window()
        self._skip_to(given)
        for length, given in later:
            self._pack_again(length)
            self._skip_to(given)
        if self._length != self._config.sequence_length:
            self._pack_again(self._config.sequence_length)

    def _skip_to(self, given: int) -> None:
        assert given <= len(self._rows), "the window of the state has fewer rows than were given"
        self._given = given

    def _pack_again(self, length: int) -> None:
        """Put what is left of the window into rows of another length."""
        left = [piece for row in self._rows[self._given :] for piece in row] + self._carried
        self._stages += ((self._length, self._given),)
        self._length, self._given, self._carried = length, 0, []
        self._pack(left)

    def _read_window(self) -> None:
        taken = self._take_documents(self._start["weights"])
        if self._config.cache:
            arrays = [document.ids for _, document in taken]
        else:
            arrays = encode(self._loaded, [document.text for _, document in taken])
        pieces: list[Piece] = []
        for (source, document), ids in zip(taken, arrays, strict=True):
            if len(ids):
                pieces.append(Piece(document.location, None, ids))
            else:
                self._sources[source].reject_empty(document)
            self._tokens[source] += len(ids)
            self._mixed[source] += len(ids)
            self._characters[source] += document.length
        self._pack(pieces)
        self._window += 1

    def _pack(self, pieces: list[Piece]) -> None:
        parts = [part for piece in pieces for part in cut(piece, self._length)]
        flush = all(source.ended for source in self._sources)
        self._rows, self._carried = pack(self._carried, parts, self._length, flush=flush)
        if self._config.shuffle:
            key = hashing.key(self._seed, "rows", self._number, self._start["window"], len(self._stages))
            self._rows = [self._rows[i] for i in hashing.permutation(key, len(self._rows))]

    def _take_documents(self, weights: list[float]) -> list[tuple[int, Record]]:
        """(source, document) of one window: each from the source that lacks most tokens of its share."""
        enough = self._config.window_documents
        if self._window == 0:
            enough = max(1, enough * (STAGGER + self._number % STAGGER + 1) // (2 * STAGGER))
        enough_tokens = ROWS_PER_WINDOW * self._length
        mixed = [float(count) for count in self._mixed]
        tokens_per_character = [
            tokens / characters if characters else 1 / CHARACTERS_PER_TOKEN
            for tokens, characters in zip(self._tokens, self._characters, strict=True)
        ]
        going = [i for i, source in enumerate(self._sources) if not source.ended]
        taken: list[tuple[int, Record]] = []
        size, tokens = 0, 0.0  # characters, and how many tokens they may be
        while going and size < WINDOW_CHARACTERS and (len(taken) < enough or tokens < enough_tokens):
            source = min(going, key=lambda i: (mixed[i] / weights[i], i))
            document = self._sources[source].next_document()
            if document is None:
                going.remove(source)
                continue
            taken.append((source, document))
            size += document.length
            estimate = document.length * tokens_per_character[source]
            tokens += estimate
            mixed[source] += estimate
        return taken


def _to_json(piece: Piece) -> list[Any]:
    start = WHOLE_DOCUMENT if piece.start is None else piece.start
    return [piece.document, start, base64.b64encode(piece.ids.astype("<u4").tobytes()).decode()]


def _from_json(values: list[Any]) -> Piece:
    document, start, ids = values
    start = None if start == WHOLE_DOCUMENT else start
    return Piece(document, start, np.frombuffer(base64.b64decode(ids), "<u4").astype(np.uint32))

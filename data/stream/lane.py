"""A lane: one of the fixed logical streams that all rows of a run come from.

It works window by window: read documents, tokenise them in one call, cut, pack, let the fullest rows leave, carry the
rest. All inside a window is a pure function of its start, so the state is the start, the carried tokens and the number
of rows given; a resume reads one window again, whatever the step. When a new phase changes the sequence length, what is
left of the window is packed anew: a stage of it. A lane holds one window of rows in memory.
"""

import base64
from typing import Any

import numpy as np

from configs import InputError
from data import hashing
from data.config import DataConfig
from data.sources.bad_input import accept
from data.sources.lines import Record
from data.sources.unit import Plan
from data.stream.packing import WHOLE, Piece, cut, pack
from data.stream.source_stream import SourceStream
from data.tokenizer.load import U32, LoadedTokenizer, encode

WINDOW_CHARACTERS = 1 << 20  # a window of long documents closes here, to bound memory and the time of a resume
ROWS_OF_WINDOW = 16  # a window of short documents stays open until about so many rows are full
CHARACTERS_PER_TOKEN = 4.0  # before anything was counted
STAGGER = 8  # first windows have 9/16 to 16/16 of the documents, so that lanes do not all tokenise at once
EMPTY_WINDOWS = 1000  # windows without a token in a row that mean that the tokenizer knows none of this text

State = dict[str, Any]
Stage = tuple[int, int]  # (sequence length, rows of it given)


class Lane:
    """Rows of lane `number`, in order, from `state` on (from the start of the run without)."""

    def __init__(
        self,
        number: int,
        plans: list[Plan],
        config: DataConfig,
        loaded: LoadedTokenizer,
        seed: int,
        state: State | None,
    ) -> None:
        self._number, self._config, self._loaded, self._seed = number, config, loaded, seed
        self._sources = [SourceStream(plan, i, number, config, seed) for i, plan in enumerate(plans)]
        self._weights = [plan.source.weight for plan in plans]
        self._tokens, self._characters = [0] * len(plans), [0] * len(plans)
        self._mixed = [0] * len(plans)  # tokens since the weights changed
        self._carried: list[Piece] = []
        self._window = 0
        self._rows: list[list[Piece]] = []
        self._given = 0
        self._length = config.sequence_length
        self._stages: tuple[Stage, ...] = ()  # of this window, before the sequence length changed
        self._start = self._snapshot()
        if state is not None:
            self._restore(state)

    def next_row(self) -> list[Piece]:
        """The pieces of the next row; none when all epochs are over, for ever after."""
        empty = 0
        while self._given == len(self._rows):
            if self.ended:
                return []
            self._begin_window()
            self._read_window()
            empty = 0 if self._rows or self._carried else empty + 1
            if empty == EMPTY_WINDOWS:
                raise InputError("data.sources: the tokenizer finds no token in this text")
        row = self._rows[self._given]
        self._given += 1
        return row

    @property
    def ended(self) -> bool:
        """No document and no carried piece is left."""
        return not self._carried and all(source.ended for source in self._sources)

    def state(self) -> tuple[State, tuple[Stage, ...]]:
        """(start of the window, stages of it) after the last row; a start is never changed, only replaced."""
        if self._given == len(self._rows) and self._rows:
            self._begin_window()
        return self._start, (*self._stages, (self._length, self._given))

    def counts(self) -> list[dict[str, Any]]:
        """Records read, used and skipped by each source, the window at hand included."""
        return [source.counts.to_json() for source in self._sources]

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
            "carried": [
                [piece.document, piece.start, base64.b64encode(piece.ids.astype("<u4").tobytes()).decode()]
                for piece in self._carried
            ],
        }

    def _restore(self, state: State) -> None:
        self._start = {name: value for name, value in state.items() if name != "stages"}
        self._window = state["window"]
        self._tokens, self._characters = list(state["tokens"]), list(state["characters"])
        self._mixed = list(state["mixed"])
        for source, values in zip(self._sources, state["sources"], strict=True):
            source.restore(values)
        self._carried = [
            Piece(document, start, np.frombuffer(base64.b64decode(ids), "<u4").astype(np.uint32))
            for document, start, ids in state["carried"]
        ]
        [(length, given), *later] = state["stages"]
        if not given and not later:
            return  # the window was not read
        self._length = length
        self._read_window()
        self._skip_to(given)
        for length, given in later:
            self._repack(length)
            self._skip_to(given)
        if self._length != self._config.sequence_length:
            self._repack(self._config.sequence_length)

    def _skip_to(self, given: int) -> None:
        assert given <= len(self._rows), "the window of the state has fewer rows than were given"
        self._given = given

    def _repack(self, length: int) -> None:
        """Put what is left of the window into rows of another length."""
        left = [piece for row in self._rows[self._given :] for piece in row] + self._carried
        self._stages += ((self._length, self._given),)
        self._length, self._given, self._carried = length, 0, []
        self._pack(left)

    def _read_window(self) -> None:
        documents = self._read_documents(self._start["weights"])
        pieces: list[Piece] = []
        for (source, document), ids in zip(documents, self._ids([d for _, d in documents]), strict=True):
            if not len(ids):
                counts = self._sources[source].counts
                counts.used -= 1
                fault = document._replace(text="", fault="empty", detail="the tokenizer finds no token in the text")
                accept(fault, self._config.bad_input, counts)
            else:
                pieces.append(Piece(document.place, WHOLE, ids))
            self._tokens[source] += len(ids)
            self._mixed[source] += len(ids)
            self._characters[source] += document.length
        self._pack(pieces)
        self._window += 1

    def _ids(self, documents: list[Record]) -> list[U32]:
        if self._config.cache:
            return [document.ids for document in documents]
        return encode(self._loaded, [document.text for document in documents])

    def _pack(self, pieces: list[Piece]) -> None:
        parts = [part for piece in pieces for part in cut(piece, self._length)]
        flush = all(source.ended for source in self._sources)
        self._rows, self._carried = pack(self._carried, parts, self._length, flush=flush)
        if self._config.shuffle:
            key = hashing.key(self._seed, "rows", self._number, self._start["window"], len(self._stages))
            self._rows = [self._rows[i] for i in hashing.permutation(key, len(self._rows))]

    def _read_documents(self, weights: list[float]) -> list[tuple[int, Record]]:
        """(source, document) of one window: each from the source that lacks most tokens of its share."""
        config = self._config
        enough = config.window_documents
        if self._window == 0:
            enough = max(1, enough * (STAGGER + self._number % STAGGER + 1) // (2 * STAGGER))
        least = ROWS_OF_WINDOW * self._length
        mixed = [float(count) for count in self._mixed]
        ratios = [t / c if c else 1 / CHARACTERS_PER_TOKEN for t, c in zip(self._tokens, self._characters, strict=True)]
        going = [i for i, source in enumerate(self._sources) if not source.ended]
        documents: list[tuple[int, Record]] = []
        size, estimate = 0, 0.0
        while going and size < WINDOW_CHARACTERS and (len(documents) < enough or estimate < least):
            source = min(going, key=lambda i: (mixed[i] / weights[i], i))
            document = self._sources[source].next_document()
            if document is None:
                going.remove(source)
                continue
            documents.append((source, document))
            size += document.length
            estimate += document.length * ratios[source]
            mixed[source] += document.length * ratios[source]
        return documents

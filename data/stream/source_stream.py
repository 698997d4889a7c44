"""One lane's stream of one source: units permuted by epoch, a few of them read in turn, a state of a few integers.

Epoch e permutes the units by a key of (seed, source, e); lane l takes positions p = l + e (mod G) of it, so that lanes
without a unit in one epoch have some in another. A new epoch starts when all open units have ended, so an epoch holds
every document once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from configs import InputError
from data import hashing
from data.config import DataConfig
from data.sources.bad_input import Counts, accept
from data.sources.lines import Cursor, Record, read
from data.sources.unit import Plan
from data.stream.cache import cached_records

EMPTY_EPOCHS = 2  # passes over a lane's share without a usable document before the whole source is looked at


class _Open:
    """An open unit: its place in the lane's share, the cursor behind the last record taken, and its reader."""

    def __init__(self, ordinal: int, cursor: Cursor, records: Iterator[Record]) -> None:
        self.ordinal, self.cursor, self.records = ordinal, cursor, records


class SourceStream:
    """Documents of one source for one lane; endless unless num_epochs is set."""

    def __init__(self, plan: Plan, source_number: int, lane: int, config: DataConfig, seed: int) -> None:
        self._plan, self._config, self._number = plan, config, source_number
        self._lane, self._key = lane, hashing.key(seed, "units", source_number)
        self._max_open = config.open_units if config.shuffle else 1
        self.counts = Counts()
        self.epoch = 0
        self._next = 0  # units of the share that were opened
        self._turn = 0
        self._open: list[_Open] = []
        self._share = self._share_of(0)
        self._used_of_epoch = self._empty_epochs = 0

    def state(self) -> dict[str, Any]:
        """Where the next document comes from; JSON-able."""
        return {
            "epoch": self.epoch,
            "next": self._next,
            "turn": self._turn,
            "open": [[unit.ordinal, *unit.cursor] for unit in self._open],
            "counts": self.counts.to_json(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of this source and lane."""
        self.epoch, self._next, self._turn = state["epoch"], state["next"], state["turn"]
        self.counts = Counts.from_json(state["counts"])
        self._share = self._share_of(self.epoch)
        self._used_of_epoch = self._next
        self._open = [self._opened(ordinal, tuple(cursor)) for ordinal, *cursor in state["open"]]

    def next_document(self) -> Record | None:
        """The next usable document; None when num_epochs are over.

        Raises InputError for bad input under policy `error`, and when the source has no document at all.
        """
        while True:
            record = self._next_record()
            if record is None:
                return None
            self.counts.read += 1
            if record.fault and not accept(record, self._config.bad_input, self.counts):
                continue
            self.counts.used += 1
            self._used_of_epoch += 1
            return record

    def _next_record(self) -> Record | None:
        while self._fill():
            self._turn %= len(self._open)
            unit = self._open[self._turn]
            record = next(unit.records, None)
            if record is None:
                del self._open[self._turn]
                continue
            unit.cursor = record.cursor
            self._turn += 1
            return record
        return None

    def _fill(self) -> bool:
        """Open units until enough are open, going to the next epoch when all have ended; False at the very end."""
        while not self._open or (len(self._open) < self._max_open and self._next < len(self._share)):
            if self._next < len(self._share):
                unit = self._plan.units[self._share[self._next]]
                self._open.append(self._opened(self._next, (unit.start, 0, 0)))
                self._next += 1
            elif self.ended:
                return False
            else:
                self._next_epoch()
        return True

    @property
    def ended(self) -> bool:
        limit = self._config.num_epochs
        if not self._plan.units:
            return True
        return limit is not None and self.epoch >= limit

    def _next_epoch(self) -> None:
        self.counts.check()
        self._empty_epochs = 0 if self._used_of_epoch else self._empty_epochs + 1
        if self._empty_epochs == EMPTY_EPOCHS and self._config.num_epochs is None:
            self._require_a_document()
        self.epoch += 1
        self._next = self._turn = self._used_of_epoch = 0
        self._share = self._share_of(self.epoch)

    def _require_a_document(self) -> None:
        rules = self._config.bad_input
        for number, unit in enumerate(self._plan.units):
            for record in self._read(number, (unit.start, 0, 0)):
                if not record.fault or getattr(rules, record.fault) == "replace":
                    return
        source = self._plan.source
        raise InputError(f"data.sources: '{source.path or source.hub}' has no usable document")

    def _share_of(self, epoch: int) -> list[int]:
        if self.ended:
            return []
        num_lanes = self._config.num_lanes
        order: Sequence[int] = range(len(self._plan.units))
        if self._config.shuffle:
            order = hashing.permutation(hashing.key(self._key, epoch), len(order)).tolist()
        return list(order[(self._lane + epoch) % num_lanes :: num_lanes])

    def _opened(self, ordinal: int, cursor: Any) -> _Open:
        return _Open(ordinal, cursor, self._read(self._share[ordinal], cursor))

    def _read(self, number: int, cursor: Cursor) -> Iterator[Record]:
        if self._config.cache:
            return cached_records(self._config.cache, self._number, number, cursor)
        cut_long = self._config.bad_input.too_long == "replace"
        return read(self._plan.units[number], cursor, self._plan.source, self._config.max_document_bytes, cut_long)

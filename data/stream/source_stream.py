"""One lane's stream of one source: units permuted by epoch, a few of them read in turn, a state of a few integers.

Epoch e permutes the units by a key of (seed, source, e); lane l of G takes positions p = l + e (mod G) of it, so that
lanes without a unit in one epoch have some in another. A new epoch starts when all open units have ended, so an epoch
holds every document once.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from configs import InputError
from data import hashing
from data.config import DataConfig
from data.sources.bad_input import Counts, accept
from data.sources.formats import read
from data.sources.unit import Cursor, Plan, Record
from data.stream.cache import cached_records

MAX_EMPTY_EPOCHS = 2  # of a lane's share, without a usable document, before the whole source is searched for one


class _OpenUnit:
    """An open unit: its number in the lane's share, the cursor behind the last record taken, and its reader."""

    def __init__(self, number: int, cursor: Cursor, records: Iterator[Record]) -> None:
        self.number, self.cursor, self.records = number, cursor, records


class SourceStream:
    """Documents of one source for one lane; endless unless num_epochs is set."""

    def __init__(self, plan: Plan, source_number: int, lane: int, config: DataConfig, seed: int) -> None:
        self._plan, self._config, self._number = plan, config, source_number
        self._lane, self._key = lane, hashing.key(seed, "units", source_number)
        self._max_open = config.open_units if config.shuffle else 1
        self.counts = Counts()
        self._epoch = 0
        self._num_opened = 0  # units of the share
        self._turn = 0  # index in `_open` of the unit that gives the next record
        self._open: list[_OpenUnit] = []
        self._share = self._share_of(0)
        self._used_in_epoch = self._empty_epochs = 0

    def state(self) -> dict[str, Any]:
        """Where the next document comes from; JSON-able."""
        return {
            "epoch": self._epoch,
            "next": self._num_opened,
            "turn": self._turn,
            "open": [[unit.number, *unit.cursor] for unit in self._open],
            "counts": self.counts.to_json(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state of this source and lane."""
        self._epoch, self._num_opened, self._turn = state["epoch"], state["next"], state["turn"]
        self.counts = Counts.from_json(state["counts"])
        self._share = self._share_of(self._epoch)
        self._used_in_epoch = self._num_opened
        self._open = [self._open_unit(number, Cursor(*cursor)) for number, *cursor in state["open"]]

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
            self._used_in_epoch += 1
            return record

    def reject_empty(self, document: Record) -> None:
        """Count a document already taken as empty, by policy: the tokenizer finds no token in it."""
        self.counts.used -= 1
        fault = document._replace(text="", fault="empty", detail="the tokenizer finds no token in the text")
        accept(fault, self._config.bad_input, self.counts)

    @property
    def ended(self) -> bool:
        limit = self._config.num_epochs
        return not self._plan.units or (limit is not None and self._epoch >= limit)

    def _next_record(self) -> Record | None:
        while self._open_more():
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

    def _open_more(self) -> bool:
        """Open units until enough are open, going to the next epoch when all have ended; False at the very end."""
        while not self._open or (len(self._open) < self._max_open and self._num_opened < len(self._share)):
            if self._num_opened < len(self._share):
                unit = self._plan.units[self._share[self._num_opened]]
                self._open.append(self._open_unit(self._num_opened, unit.first))
                self._num_opened += 1
            elif self.ended:
                return False
            else:
                self._begin_next_epoch()
        return True

    def _begin_next_epoch(self) -> None:
        self.counts.check()
        self._empty_epochs = 0 if self._used_in_epoch else self._empty_epochs + 1
        if self._empty_epochs == MAX_EMPTY_EPOCHS and self._config.num_epochs is None:
            self._require_a_document()
        self._epoch += 1
        self._num_opened = self._turn = self._used_in_epoch = 0
        self._share = self._share_of(self._epoch)

    def _require_a_document(self) -> None:
        policies = self._config.bad_input
        for number, unit in enumerate(self._plan.units):
            for record in self._read(number, unit.first):
                if not record.fault or getattr(policies, record.fault) == "replace":
                    return
        raise InputError(f"data.sources: '{self._plan.source.title}' has no usable document")

    def _share_of(self, epoch: int) -> list[int]:
        """Numbers of the units that this lane reads in an epoch, in order."""
        if self.ended:
            return []
        num_lanes = self._config.num_lanes
        order: Sequence[int] = range(len(self._plan.units))
        if self._config.shuffle:
            order = hashing.permutation(hashing.key(self._key, epoch), len(order)).tolist()
        return list(order[(self._lane + epoch) % num_lanes :: num_lanes])

    def _open_unit(self, number: int, cursor: Cursor) -> _OpenUnit:
        return _OpenUnit(number, cursor, self._read(self._share[number], cursor))

    def _read(self, unit: int, cursor: Cursor) -> Iterator[Record]:
        if self._config.cache:
            return cached_records(self._config.cache, self._number, unit, cursor)
        limit, cut_long = self._config.max_document_bytes, self._config.cuts_long_documents
        return read(self._plan.units[unit], cursor, self._plan.source, limit, cut_long)

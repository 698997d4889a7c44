"""Bad input: every record read is used or skipped by a policy, counted by kind, and never lost in silence."""

import copy
from dataclasses import dataclass, field
from typing import Any

from configs import InputError
from data.config import BadInputConfig
from data.sources.lines import Record

PLACES = 20  # how many places of a kind are remembered, per lane and source


@dataclass
class Counts:
    """What happened to the records of one source; `places` names the first ones of each kind (file:byte)."""

    read: int = 0
    used: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def note(self, kind: str, place: str, *, replaced: bool = False) -> None:
        counter = self.replaced if replaced else self.skipped
        counter[kind] = counter.get(kind, 0) + 1
        places = self.places.setdefault(kind, [])
        if len(places) < PLACES:
            places.append(place)

    def add(self, other: "Counts") -> None:
        """Add what another lane counted."""
        self.read += other.read
        self.used += other.used
        for mine, theirs in ((self.skipped, other.skipped), (self.replaced, other.replaced)):
            for kind, count in theirs.items():
                mine[kind] = mine.get(kind, 0) + count
        for kind, places in other.places.items():
            self.places[kind] = (self.places.get(kind, []) + places)[:PLACES]

    def check(self) -> None:
        """Nothing may be lost: called at the end of every epoch."""
        assert self.read == self.used + sum(self.skipped.values()), f"records lost: {self}"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Counts":
        return cls(**copy.deepcopy(values))

    def to_json(self) -> dict[str, Any]:
        return copy.deepcopy(vars(self))


def accept(record: Record, policy: BadInputConfig, counts: Counts) -> bool:
    """Apply the policy to a record with a fault: True to use the text that stands in for it, False to skip it.

    Raises InputError of one line that names the place and the key under policy `error`.
    """
    kind = record.fault
    choice = getattr(policy, kind)
    if choice == "error":
        others = [c for c in ("skip", "replace") if c in str(type(policy).model_fields[kind].annotation)]
        raise InputError(f"{record.place}: {record.detail} (to go on: data.bad_input.{kind}={' or '.join(others)})")
    stands_in = choice == "replace" and record.length > 0
    counts.note(kind, record.place, replaced=stands_in)
    return stands_in

"""Bad input: every record read is used or skipped by a policy, counted by kind of fault, and never lost in silence."""

import copy
from dataclasses import dataclass, field
from typing import Any, get_args

from configs import InputError
from data.config import BadInputConfig
from data.sources.unit import Record

MAX_PLACES = 20  # remembered for each kind of fault, per lane and source


@dataclass
class Counts:
    """What happened to the records of a source; by fault, its count and first locations. States hold these names."""

    read: int = 0
    used: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add_fault(self, fault: str, location: str, *, replaced: bool = False) -> None:
        """Count a record that was skipped, or whose text was replaced."""
        counter = self.replaced if replaced else self.skipped
        counter[fault] = counter.get(fault, 0) + 1
        places = self.places.setdefault(fault, [])
        if len(places) < MAX_PLACES:
            places.append(location)

    def add(self, other: "Counts") -> None:
        """Add what another lane counted."""
        self.read += other.read
        self.used += other.used
        for mine, theirs in ((self.skipped, other.skipped), (self.replaced, other.replaced)):
            for fault, count in theirs.items():
                mine[fault] = mine.get(fault, 0) + count
        for fault, places in other.places.items():
            self.places[fault] = (self.places.get(fault, []) + places)[:MAX_PLACES]

    def check(self) -> None:
        """Assert that every record read was used or skipped; called at the end of every epoch."""
        assert self.read == self.used + sum(self.skipped.values()), f"records lost: {self}"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Counts":
        return cls(**copy.deepcopy(values))

    def to_json(self) -> dict[str, Any]:
        return copy.deepcopy(vars(self))


def accept(record: Record, policies: BadInputConfig, counts: Counts) -> bool:
    """Apply the policy to a record with a fault: True to use the text that stands in for it, False to skip it.

    Under policy `error`, raises InputError that names the location and the key.
    """
    fault = record.fault
    policy = getattr(policies, fault)
    if policy == "error":
        others = " or ".join(get_args(type(policies).model_fields[fault].annotation)[1:])
        raise InputError(f"{record.location}: {record.detail} (to go on: data.bad_input.{fault}={others})")
    is_replaced = policy == "replace" and record.length > 0
    counts.add_fault(fault, record.location, replaced=is_replaced)
    return is_replaced

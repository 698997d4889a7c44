"""What a check concludes, and the words in which ranks are named."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Level = Literal["pass", "warn", "FAIL", "skip"]


class Verdict(NamedTuple):
    """The outcome of one check over all ranks."""

    level: Level
    found: str
    remedy: str = ""  # what to do; empty where nothing needs to be done

    def line(self, name: str) -> str:
        """The outcome as the one line that is printed."""
        return f"{self.level}  {name}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


def passed(found: str) -> Verdict:
    """Nothing to do."""
    return Verdict("pass", found)


def warned(found: str, remedy: str) -> Verdict:
    """The run would start, but slowly, or with a risk."""
    return Verdict("warn", found, remedy)


def failed(found: str, remedy: str) -> Verdict:
    """The run would not start, or would end before its last step."""
    return Verdict("FAIL", found, remedy)


def skipped(reason: str) -> Verdict:
    """There was nothing to check, or no way to."""
    return Verdict("skip", reason)


def name_ranks(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    """`ranks 0-3 (host-a) and 8 (host-b)`. A rank without a host in `hosts` has never answered."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(ranks):
        by_host.setdefault(hosts.get(rank, "not seen yet"), []).append(rank)
    parts = [f"{_intervals(members)} ({host})" for host, members in by_host.items()]
    listed = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {listed}"


def _intervals(numbers: Sequence[int]) -> str:
    """`0-3, 5` for 0, 1, 2, 3, 5; the numbers are sorted."""
    parts = []
    for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(parts)


def group_by_value(values: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """(value, the ranks that have it), the most frequent value first; among equals, the one of the lowest rank."""
    groups: list[tuple[Any, list[int]]] = []
    for rank, value in enumerate(values):
        members = next((members for other, members in groups if other == value), None)
        if members is None:
            groups.append((value, [rank]))
        else:
            members.append(rank)
    return sorted(groups, key=lambda group: -len(group[1]))


def describe_difference(values: Sequence[Any], hosts: Mapping[int, str]) -> str:
    """`A on ranks 0-6 (host-a), B on rank 7 (host-b)`; empty where all ranks have the same value."""
    groups = group_by_value(values)
    return ", ".join(f"{value} on {name_ranks(ranks, hosts)}" for value, ranks in groups) if len(groups) > 1 else ""


def in_bytes(size: float) -> str:
    """A size with a unit that suits it: `1.5 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"

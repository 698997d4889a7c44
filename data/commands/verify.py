"""`python -m data verify`: reads every source once, whatever the policies, and reports every fault."""

import json
from typing import Any

from configs import InputError, load_config
from data.config import BadInputConfig, DataRun, SourceConfig
from data.progress import progress_bar, watched
from data.sources.bad_input import Counts
from data.sources.lines import read
from data.sources.unit import plan

TOLERATED = ("empty", "too_long")  # wrong only where their policy is error
EVERYTHING = BadInputConfig(
    json_line="skip",
    column="skip",
    encoding="skip",
    empty="skip",
    too_long="skip",
    broken_file="skip",
    empty_glob="skip",
)


def main(arguments: list[str]) -> int:
    """Print one JSON object a source; exit code 2 when something is wrong."""
    if not arguments:
        raise InputError("usage: python -m data verify CONFIG [key=value ...]")
    run = load_config(DataRun, arguments[0], arguments[1:], ignore_other_sections=True)
    wrong: list[str] = []
    for source in run.data.sources:
        counts = verify(source, run.data.max_document_bytes)
        print(json.dumps({"source": source.path or source.hub, **counts.to_json()}, ensure_ascii=False))
        wrong += [
            f"{count} x {kind} (first: {counts.places[kind][0]})"
            for kind, count in counts.skipped.items()
            if kind not in TOLERATED or getattr(run.data.bad_input, kind) == "error"
        ]
    if wrong:
        raise InputError("the data has faults: " + ", ".join(wrong))
    return 0


def verify(source: SourceConfig, limit: int) -> Counts:
    """Read all of a source; every fault counted as skipped, with its first places."""
    counts = Counts()
    the_plan: Any = plan(source, 1, EVERYTHING)
    if not the_plan.units:
        counts.read += 1
        counts.note("empty_glob", source.path)
    with progress_bar() as bar:
        for unit in bar.track(the_plan.units, description=source.path or source.hub):
            for record in watched(bar, read(unit, (unit.start, 0, 0), source, limit, False)):
                counts.read += 1
                if record.fault:
                    counts.note(record.fault, record.place)
                else:
                    counts.used += 1
    counts.check()
    return counts

"""`python -m data verify`: reads every source once, whatever the policies, and reports every fault."""

import json

from configs import InputError, load_config
from data.config import BadInputConfig, DataRun, SourceConfig
from data.progress import count_records, progress_bar
from data.sources.bad_input import Counts
from data.sources.formats import plan, read

TOLERATED = ("empty", "too_long")  # wrong only where their policy is error
WITHOUT_FILES = BadInputConfig(empty_glob="skip")


def main(arguments: list[str]) -> int:
    """Print one JSON object a source; exit code 2 when something is wrong."""
    run = load_config(DataRun, arguments[0], arguments[1:], ignore_other_sections=True)
    wrong: list[str] = []
    for source in run.data.sources:
        counts = verify(source, run.data.max_document_bytes)
        print(json.dumps({"source": source.title, **counts.to_json()}, ensure_ascii=False))
        wrong += [
            f"{count} x {fault} (first: {counts.places[fault][0]})"
            for fault, count in counts.skipped.items()
            if fault not in TOLERATED or getattr(run.data.bad_input, fault) == "error"
        ]
    if wrong:
        raise InputError("the data has faults: " + ", ".join(wrong))
    return 0


def verify(source: SourceConfig, limit: int) -> Counts:
    """Read all of a source; every fault counted as skipped, with its first locations."""
    counts = Counts()
    units = plan(source, 1, WITHOUT_FILES).units
    if not units:
        counts.read += 1
        counts.add_fault("empty_glob", source.path)
    with progress_bar() as bar:
        for unit in bar.track(units, description=source.title):
            for record in count_records(bar, read(unit, unit.first, source, limit, cut_long=False)):
                counts.read += 1
                if record.fault:
                    counts.add_fault(record.fault, record.location)
                else:
                    counts.used += 1
    counts.check()
    return counts

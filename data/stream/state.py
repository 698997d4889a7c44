"""The state of a run's data: what must be equal for a resume, and the joining of the ranks' states."""

from typing import Any

from configs import InputError
from data import hashing
from data.config import DataConfig, SourceConfig
from data.sources.bad_input import Counts
from data.sources.unit import Plan

VERSION = 1
State = dict[str, Any]
OF_A_PHASE = ("sequence_length", "weights")


def header_of(config: DataConfig, tokenizer: str, plans: list[Plan], seed: int) -> State:
    """All that decides which documents stand in which row. Free to change at a resume: the number of processes and
    workers, rows_per_step, mask.rate, mask.replace, num_epochs, and any policy from `error` to another; in a new phase
    sequence_length and weights too.
    """
    policies = config.bad_input.model_dump()
    revisions = {plan.source.hub: plan.source.revision for plan in plans if plan.source.revision}
    return {
        **({"revisions": revisions} if revisions else {}),
        "version": VERSION,
        "num_lanes": config.num_lanes,
        "sequence_length": config.sequence_length,
        "window_documents": config.window_documents,
        "open_units": config.open_units,
        "max_document_bytes": config.max_document_bytes,
        "shuffle": config.shuffle,
        "mask.unit": config.mask.unit,
        "seed": seed,
        "weights": [source.weight for source in config.sources],
        "bad_input": {kind: policy for kind, policy in policies.items() if policy != "error"},
        "tokenizer": tokenizer,
        "manifest": hashing.digest(*(plan.manifest for plan in plans)),
    }


def pinned(sources: list[SourceConfig], state: State | None) -> list[SourceConfig]:
    """The sources; a data set of the hub whose revision is not given keeps the one of the state."""
    revisions = state["header"].get("revisions", {}) if state else {}
    return [
        source.model_copy(update={"revision": revisions[source.hub]})
        if source.hub in revisions and not source.revision
        else source
        for source in sources
    ]


_WHAT = {
    "tokenizer": "the tokenizer's files",
    "manifest": "the sources' files (their paths, sizes or times)",
    "revisions": "the revision of a data set of the hub",
}


def check_header(now: State, then: State, new_phase: bool) -> None:
    """Raise InputError that names the first field in which a state was written by another configuration."""
    for name, value in now.items():
        if new_phase and name in OF_A_PHASE:
            continue
        old = then.get(name)
        same = set(old.items()) <= set(value.items()) if name == "bad_input" and old else old == value
        if not same:
            what = _WHAT.get(name, f"'data.{name}'" if name not in ("seed", "version") else f"'{name}'")
            raise InputError(f"cannot resume the data: {what} changed, {name} was {old} and is {value}")


def merge_states(states: list[State]) -> State:
    """One state with all lanes from the states of all ranks after the same step."""
    first = states[0]
    assert all(state["step"] == first["step"] and state["header"] == first["header"] for state in states)
    lanes = {lane: value for state in states for lane, value in state["lanes"].items()}
    assert len(lanes) == first["header"]["num_lanes"], "states of some ranks are missing"
    return {**first, "lanes": dict(sorted(lanes.items(), key=lambda item: int(item[0])))}


def counts_of(state: State) -> list[Counts]:
    """Records read, used, skipped and replaced, by source over all lanes, up to the windows at hand."""
    totals: list[Counts] = []
    for lane in state["lanes"].values():
        for number, source in enumerate(lane["sources"]):
            if number == len(totals):
                totals.append(Counts())
            totals[number].add(Counts.from_json(source["counts"]))
    return totals

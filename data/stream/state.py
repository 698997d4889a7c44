"""The state of a run's data: what must be the same to resume from it, and the joining of the ranks' states.

A header lists everything that a state (or a cache) depends on: it is refused where one of the values differs. The keys
of `data` that may differ are listed here; a caller may allow fewer, as training does, whose losses masks would change.
"""

from typing import Any

from configs import InputError
from data import hashing
from data.config import DataConfig, SourceConfig
from data.sources.bad_input import Counts
from data.sources.unit import Plan

STATE_VERSION = CACHE_VERSION = 1  # of their formats on disk
State = dict[str, Any]

# Keys of `data` that change how batches are made, never what is in them.
EXECUTION_KEYS = ("num_workers", "prefetch_steps", "cache")
# Keys that a resume may change; all documents keep their order. Of bad_input, a policy `error` may become another one.
RESUME_KEYS = (*EXECUTION_KEYS, "rows_per_step", "num_epochs", "mask.rate", "mask.replace", "bad_input")
# Keys that may change where a new phase of a run begins (N: the number of a source).
PHASE_KEYS = (*RESUME_KEYS, "sequence_length", "sources.N.weight")

_DESCRIPTIONS = {
    "tokenizer": "the tokenizer's files",
    "manifest": "the sources' files (their paths, sizes or times)",
    "revisions": "the revision of a data set of the hub",
    "seed": "'seed'",
    "version": "the format of the state",
}


def state_header(config: DataConfig, tokenizer: str, plans: list[Plan], seed: int) -> State:
    """Everything that decides which documents are in which row; `tokenizer` is the digest of its files."""
    policies = config.bad_input.model_dump()
    revisions = {plan.source.hub: plan.source.revision for plan in plans if plan.source.revision}
    return {
        **({"revisions": revisions} if revisions else {}),
        "version": STATE_VERSION,
        "num_lanes": config.num_lanes,
        "sequence_length": config.sequence_length,
        "window_documents": config.window_documents,
        "open_units": config.open_units,
        "max_document_bytes": config.max_document_bytes,
        "shuffle": config.shuffle,
        "mask.unit": config.mask.unit,
        "seed": seed,
        "weights": [source.weight for source in config.sources],
        "bad_input": {fault: policy for fault, policy in policies.items() if policy != "error"},
        "tokenizer": tokenizer,
        "manifest": hashing.digest(*(plan.manifest for plan in plans)),
    }


def cache_header(config: DataConfig, tokenizer: str, plans: list[Plan]) -> State:
    """Everything that the contents of a cache depend on."""
    return {
        "version": CACHE_VERSION,
        "tokenizer": tokenizer,
        "manifest": [plan.manifest for plan in plans],
        "num_lanes": config.num_lanes,
        "mask.unit": config.mask.unit,
        "max_document_bytes": config.max_document_bytes,
        "cut_long": config.cuts_long_documents,
    }


def check_state_header(now: State, then: State, new_phase: bool) -> None:
    """Raise InputError that names the first value that differs between a state's header and the present one."""
    for name, value in now.items():
        old = then.get(name)
        same = (old or {}).items() <= value.items() if name == "bad_input" else old == value
        if not same and not (new_phase and name in ("sequence_length", "weights")):
            what = _DESCRIPTIONS.get(name, f"'data.{name}'")
            allowed = ", ".join(PHASE_KEYS if new_phase else RESUME_KEYS)
            raise InputError(
                f"cannot resume the data: {what} changed, {name} was {old} and is {value}; "
                f"the only keys of 'data' that may change here: {allowed}"
            )


def pinned(sources: list[SourceConfig], state: State | None) -> list[SourceConfig]:
    """The sources; a data set of the hub whose revision is not given keeps the one of the state."""
    revisions = state["header"].get("revisions", {}) if state else {}
    of_sources = [source.revision or revisions.get(source.hub, "") for source in sources]
    return [s.model_copy(update={"revision": revision}) for s, revision in zip(sources, of_sources, strict=True)]


def merge_states(states: list[State]) -> State:
    """One state with all lanes from the states of all ranks after the same step."""
    first = states[0]
    assert all(state["step"] == first["step"] and state["header"] == first["header"] for state in states)
    lanes = {lane: value for state in states for lane, value in state["lanes"].items()}
    assert len(lanes) == first["header"]["num_lanes"], "states of some ranks are missing"
    return {**first, "lanes": dict(sorted(lanes.items(), key=lambda item: int(item[0])))}


def counts_of(state: State) -> list[Counts]:
    """Records read, used, skipped and replaced, by source over all lanes, up to the end of the current windows."""
    totals: list[Counts] = []
    for lane in state["lanes"].values():
        for number, source in enumerate(lane["sources"]):
            if number == len(totals):
                totals.append(Counts())
            totals[number].add(Counts.from_json(source["counts"]))
    return totals

"""The state of a run's data: what must be the same to resume from it, and the joining of the ranks' states.

A header lists everything that a state (or a cache) depends on: it is refused where one of the values differs. The keys
of `data` that may differ are listed here; a caller may allow fewer, as training does, whose losses masks would change.
"""

from typing import Any

from configs import InputError
from data import hashing
from data.config import DataConfig, SourceConfig
from data.sources.bad_input import Counts
from data.sources.formats import plan
from data.sources.identity import first_change, identified, listed
from data.sources.unit import Plan

STATE_VERSION = CACHE_VERSION = 2  # of their formats on disk; version 1 knew files by their paths and times
State = dict[str, Any]

# Keys of `data` that change how batches are made, never what is in them.
EXECUTION_KEYS = ("num_workers", "prefetch_steps", "cache")
# Keys that a resume may change; all documents keep their order. Of bad_input, a policy `error` may become another one.
RESUME_KEYS = (*EXECUTION_KEYS, "rows_per_step", "num_epochs", "mask.rate", "mask.replace", "bad_input")
# Keys that may change where a new phase of a run begins (N: the number of a source).
PHASE_KEYS = (*RESUME_KEYS, "sequence_length", "sources.N.weight")

_DESCRIPTIONS = {
    "tokenizer": "the tokenizer's files",
    "manifest": "the sources' text",
    "revisions": "the revision of a data set of the hub",
    "seed": "'seed'",
    "version": "the format of the state",
}


def plan_sources(config: DataConfig, state: State | None = None) -> list[Plan]:
    """The plan of each source, with what identifies its files; hub data sets at the revision of `state`."""
    return [plan_source(source, config) for source in pinned(config.sources, state)]


def plan_source(source: SourceConfig, config: DataConfig) -> Plan:
    """The plan of one source, with what identifies its files."""
    return identified(plan(source, config.num_lanes, config.bad_input))


def with_weights(plans: list[Plan], config: DataConfig) -> list[Plan]:
    """The plans with the weights of `config`, which a phase may change."""
    weights = [source.weight for source in config.sources]
    return [
        plan._replace(source=plan.source.model_copy(update={"weight": weight}))
        for plan, weight in zip(plans, weights, strict=True)
    ]


def state_header(
    config: DataConfig, tokenizer: str, plans: list[Plan], seed: int, version: int = STATE_VERSION
) -> State:
    """Everything that decides which documents are in which row; `tokenizer` is the digest of its files."""
    policies = config.bad_input.model_dump()
    revisions = {plan.source.hub: plan.source.revision for plan in plans if plan.source.revision}
    return {
        **({"revisions": revisions} if revisions else {}),
        "version": version,
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
        "manifest": hashing.digest(*_manifests(plans, version)),
        **({"files": [listed(plan) for plan in plans]} if version > 1 else {}),
    }


def cache_header(config: DataConfig, tokenizer: str, plans: list[Plan], version: int = CACHE_VERSION) -> State:
    """Everything that the contents of a cache depend on."""
    return {
        "version": version,
        "tokenizer": tokenizer,
        "manifest": _manifests(plans, version),
        "num_lanes": config.num_lanes,
        "mask.unit": config.mask.unit,
        "max_document_bytes": config.max_document_bytes,
        "cut_long": config.cuts_long_documents,
    }


def _manifests(plans: list[Plan], version: int) -> list[str]:
    return [plan.manifest if version > 1 else plan.manifest_of_version_1 for plan in plans]


def first_header_difference(first: State, second: State) -> str | None:
    """What differs between two headers of this version, in words; None where nothing does."""
    for name, value in first.items():
        if name == "manifest" and second[name] != value:
            lists = zip(first["files"], second["files"], strict=True)
            return next((found for old, new in lists if (found := first_change(old, new))), "other files")
        if name != "files" and second.get(name) != value:
            return f"{_DESCRIPTIONS.get(name, name)}: {value} and {second.get(name)}"
    return None


def check_state_header(now: State, then: State, new_phase: bool) -> None:
    """Raise InputError that names the first value that differs between a state's header and the present one.

    `now` is the header in the version of `then`.
    """
    for name, value in now.items():
        old = then.get(name)
        if name == "files":  # part of the manifest
            continue
        if name == "manifest" and old != value:
            _refuse_other_text(now, then)
        same = (old or {}).items() <= value.items() if name == "bad_input" else old == value
        if not same and not (new_phase and name in ("sequence_length", "weights")):
            what = _DESCRIPTIONS.get(name, f"'data.{name}'")
            allowed = ", ".join(PHASE_KEYS if new_phase else RESUME_KEYS)
            raise InputError(
                f"cannot resume the data: {what} changed, {name} was {old} and is {value}; "
                f"the only keys of 'data' that may change here: {allowed}"
            )


def _refuse_other_text(now: State, then: State) -> None:
    """InputError that names the first file that differs, where the header lists the files."""
    change = "its files' paths, sizes or times" if "files" not in then else None
    for number, (old, new) in enumerate(zip(then.get("files", ()), now.get("files", ()), strict=False)):
        changed = first_change(old, new)
        change = change or (f"source {number}: {changed}" if changed else None)
    raise InputError(
        f"cannot resume the data: the sources' text is not that of the run ({change or 'other files or another column'}"
        "); give back what was there, or begin another run. Sources may be moved or copied, but not changed"
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

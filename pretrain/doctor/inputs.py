"""Checks of what the run reads: configuration, tokenizer, starting weights, sources, and how they fit together."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from configs import InputError
from configs.loader import validate
from data import plan_source
from data.config import SourceConfig
from data.sources.bad_input import Counts, accept
from data.sources.files import is_remote
from data.sources.formats import read
from data.sources.unit import Plan, Record, Unit
from data.stream.cache import check_cache
from pretrain.config import PretrainConfig
from pretrain.doctor.examination import Examination, Finding, describe_error
from pretrain.doctor.verdict import (
    Verdict,
    describe_difference,
    failed,
    group_by_value,
    in_bytes,
    passed,
    skipped,
    warned,
)
from pretrain.runs.changes import first_difference
from pretrain.runs.folder import RunFolder
from pretrain.start import tokenizer_folder

SAMPLE_UNITS, SAMPLE_RECORDS = 8, 25  # of a source: units spread over it, and records from the start of each
SAMPLE_CHARACTERS = 10_000  # of a text
MOST_UNKNOWN = 0.05  # share of the tokens
MOST_TOKENS_PER_CHARACTER = 1.2  # more: the script's characters fall apart into bytes


def look_at_configuration(examination: Examination) -> Finding:
    """Read the file and the command line. InputError where something is wrong with them."""
    return {"values": examination.read_config().model_dump(mode="json"), "folder": str(Path.cwd())}


def judge_configuration(examination: Examination, findings: list[Finding]) -> Verdict:
    """The same for every rank."""
    groups = group_by_value([finding["values"] for finding in findings])
    if len(groups) > 1:
        (most, _), (other, ranks) = groups[:2]
        difference = first_difference(_as_config(most), _as_config(other))
        where = f"'{difference.key}' is {difference.second!r}, elsewhere {difference.first!r}" if difference else ""
        return failed(
            f"{examination.name(ranks)} reads another one: {where}", "give all hosts the same file and command line"
        )
    folders = describe_difference([finding["folder"] for finding in findings], examination.meeting.hosts)
    if folders:
        remedy = "relative paths mean different folders there: start all ranks in the same one"
        return warned(f"equal, but read in {folders}", remedy)
    return passed(f"{examination.arguments[0]}, equal on {len(findings)} rank(s)")


def _as_config(values: Any) -> PretrainConfig:
    return validate(PretrainConfig, values, "configuration of another rank")


def look_at_tokenizer(examination: Examination) -> Finding:
    """Load it. InputError where it is missing or lacks a special token."""
    folder = tokenizer_folder(examination.config, RunFolder(examination.config.run_dir))
    loaded = examination.read_tokenizer(folder)
    return {"folder": folder, "digest": loaded.digest, "size": loaded.special.vocab_size}


def judge_tokenizer(examination: Examination, findings: list[Finding]) -> Verdict:
    """The same for every rank."""
    difference = describe_difference([finding["digest"] for finding in findings], examination.meeting.hosts)
    if difference:
        return failed(f"{examination.config.tokenizer} differs: digest {difference}", "copy one tokenizer to all hosts")
    return passed(f"{findings[0]['folder']}, {findings[0]['size']} tokens, digest {findings[0]['digest']}")


def look_at_model(examination: Examination) -> Finding:
    """Complete the encoder's shape. InputError where tokenizer, `start_from` and configuration do not fit together."""
    tokens = examination.tokenizer.special.vocab_size
    return {"parameters": examination.complete().encoder.num_parameters(), "tokens": tokens}


def judge_model(examination: Examination, findings: list[Finding]) -> Verdict:
    """Its size."""
    difference = describe_difference([f"{finding['parameters']:,}" for finding in findings], examination.meeting.hosts)
    if difference:
        return failed(f"parameters: {difference}", "give all hosts the same tokenizer and start_from")
    encoder = examination.completed.encoder
    start = f", weights of {examination.config.start_from}" if examination.config.start_from else ""
    tokens = f"{encoder.vocab_size} rows for {findings[0]['tokens']} tokens"
    shape = f"{encoder.num_layers} layers of width {encoder.hidden_size}, {tokens}"
    return passed(f"{findings[0]['parameters']:,} parameters ({shape}){start}")


def sources_of(config: PretrainConfig) -> list[SourceConfig]:
    """Training and held-out sources."""
    return [*config.data.sources, *config.evaluation.sources]


def look_at_sources(examination: Examination) -> Finding:
    """List the files of every source and read its first record. InputError that names each source or file at fault.

    As in training, local files are listed by every rank, stores and hubs by rank 0 alone.
    """
    found: list[Finding | None] = []
    plans: list[Plan | None] = []
    faults = []
    for number, source in enumerate(sources_of(examination.config)):
        try:
            its_plan = _look_at_source(examination, number, source)
        except Exception as error:  # goes on all the same: other ranks wait for what rank 0 lists
            faults.append(describe_error(error))
            continue
        plans.append(its_plan)
        found.append(its_plan and _finding_of(its_plan))
    if faults:
        raise InputError("; ".join(faults))
    examination.keep_plans([its_plan for its_plan in plans if its_plan])
    return {"sources": found}


def _look_at_source(examination: Examination, number: int, source: SourceConfig) -> Plan | None:
    """The plan, where this rank makes one, after the first record was read."""
    if source.hub or is_remote(source.path):
        its_plan, pinned, unit = _plan_of_main(examination, number, source)
    else:
        its_plan = plan_source(source, examination.config.data)
        pinned, unit = its_plan.source, next(iter(its_plan.units), None)
    record = next(_records(examination, pinned, unit), None) if unit else None
    if record and record.fault:
        accept(record, examination.config.data.bad_input, Counts())
    return its_plan


def _plan_of_main(
    examination: Examination, number: int, source: SourceConfig
) -> tuple[Plan | None, SourceConfig, Unit | None]:
    """(the plan, on rank 0; the source with its revision; the first unit). InputError on all ranks."""
    its_plan, told = None, Finding()
    if examination.meeting.is_main:
        try:
            its_plan = plan_source(source, examination.config.data)
            told = {"source": its_plan.source.model_dump(mode="json"), "unit": next(iter(its_plan.units), None)}
        except Exception as error:
            told = {"error": describe_error(error)}
    told = examination.meeting.from_main(f"sources/{number}", told)
    if "error" in told:
        raise InputError(told["error"])
    unit = None if told["unit"] is None else Unit(*told["unit"])
    return its_plan, validate(SourceConfig, told["source"], "source of rank 0"), unit


def _finding_of(its_plan: Plan) -> Finding:
    size = sum(file.size for file in its_plan.files) if its_plan.knows_files else 0
    return {"files": len(its_plan.files), "bytes": size, "manifest": its_plan.manifest}


def judge_sources(examination: Examination, findings: list[Finding]) -> Verdict:
    """The same files for every rank."""
    shown = []
    for number, source in enumerate(sources_of(examination.config)):
        of_ranks = [finding["sources"][number] or findings[0]["sources"][number] for finding in findings]
        groups = group_by_value([of_rank["manifest"] for of_rank in of_ranks])
        if len(groups) > 1:
            parts = (f"{of_ranks[ranks[0]]['files']} file(s), manifest {manifest} on {examination.name(ranks)}"
                     for manifest, ranks in groups)  # fmt: skip
            return failed(f"{source.title} differs: {', '.join(parts)}", "give all hosts the same files")
        size = f", {in_bytes(of_ranks[0]['bytes'])}" if of_ranks[0]["bytes"] else ""
        shown.append(f"{source.title} ({of_ranks[0]['files']} file(s){size})")
    return passed(", ".join(shown))


def _records(examination: Examination, source: SourceConfig, unit: Unit) -> Iterator[Record]:
    data = examination.config.data
    return read(unit, unit.first, source, data.max_document_bytes, data.cuts_long_documents)


def look_at_cache(examination: Examination) -> Finding:
    """The token cache, where there is one. InputError where it is missing, or stale for these sources."""
    data = examination.config.data
    if data.cache and examination.meeting.is_main:
        check_cache(data, examination.tokenizer.digest, examination.plans[: len(data.sources)])
    elif data.cache and not Path(data.cache).is_dir():
        raise InputError(f"data.cache: there is no folder '{data.cache}'")
    return {}


def judge_cache(examination: Examination, findings: list[Finding]) -> Verdict:
    """Nothing more than that it is there."""
    cache = examination.config.data.cache
    return passed(f"{cache}, made of these sources") if cache else skipped("data.cache is not set")


def look_at_fit(examination: Examination) -> Finding:
    """On rank 0: tokenise a sample of each source."""
    if not examination.meeting.is_main:
        return {}
    tokenizer = examination.tokenizer.tokenizer
    unknown_id = find_unknown_id(tokenizer)
    found = []
    for its_plan in examination.plans:
        records = list(_sample(examination, its_plan))
        texts = [record.text[:SAMPLE_CHARACTERS] for record in records if not record.fault]
        ids = [i for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False) for i in encoding.ids]
        characters = sum(map(len, texts))
        found.append({
            "records": len(records), "used": len(texts), "tokens": len(ids),
            "unknown": sum(i == unknown_id for i in ids) / max(1, len(ids)),
            "per_character": len(ids) / max(1, characters),
            "fault": next((record.detail for record in records if record.fault), ""),
        })  # fmt: skip
    return {"sources": found}


def _sample(examination: Examination, its_plan: Plan) -> Iterator[Record]:
    every = max(1, len(its_plan.units) // SAMPLE_UNITS)
    for unit in its_plan.units[::every][:SAMPLE_UNITS]:
        yield from itertools.islice(_records(examination, its_plan.source, unit), SAMPLE_RECORDS)


def find_unknown_id(tokenizer: Tokenizer) -> int | None:
    """Id of the token that stands for what the vocabulary lacks; None where there is none, as in byte-level BPE."""
    model = json.loads(tokenizer.to_str())["model"]
    if "unk_id" in model:
        return None if model["unk_id"] is None else int(model["unk_id"])
    token = model.get("unk_token")
    return tokenizer.token_to_id(token) if token else None


def judge_fit(examination: Examination, findings: list[Finding]) -> Verdict:
    """Few unknown tokens, and most records of use."""
    shown, wrong = [], []
    for source, of_source in zip(sources_of(examination.config), findings[0]["sources"], strict=True):
        name = source.title
        line = f"{name}: {of_source['unknown']:.1%} unknown, {of_source['per_character']:.2f} tokens a character"
        shown.append(line)
        if 2 * of_source["used"] < of_source["records"]:
            unused = of_source["records"] - of_source["used"]
            wrong.append(
                f"{name}: {unused} of {of_source['records']} sampled records cannot be used ({of_source['fault']})"
            )
        elif of_source["unknown"] > MOST_UNKNOWN or of_source["per_character"] > MOST_TOKENS_PER_CHARACTER:
            wrong.append(line)
    if wrong:
        return warned("; ".join(wrong), "train the tokenizer on text of this kind, or mend text_column and format")
    return passed("; ".join(shown))

"""What every check is given, and the walk through the checks.

Every rank looks for itself (`look`), rank 0 hears all findings, concludes (`judge`) and prints. A check that raises is
a failed one, with the reason. Ranks do not wait for each other, but where a check needs it (all-reduce, run folder).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from configs import InputError, load_config
from data.sources.unit import Plan
from data.tokenizer.load import LoadedTokenizer, load_tokenizer
from pretrain.config import PretrainConfig
from pretrain.doctor.meeting import Meeting, first_line
from pretrain.doctor.report import Report
from pretrain.doctor.verdict import Verdict, failed, group_by_value, name_ranks, skipped
from pretrain.processes import Processes
from pretrain.runs.folder import RunFolder
from pretrain.start import resolve

Finding = dict[str, Any]  # JSON-able


class CannotLookError(Exception):
    """A check has nothing to look at, because of something that another check reports."""


@dataclass
class Examination:
    """One rank's part of the examination."""

    arguments: Sequence[str]  # CONFIG [key=value …]
    processes: Processes
    device_fault: str  # why this process has no device; empty where it has one
    meeting: Meeting
    topic: str = ""  # the check at hand
    clean_up: Callable[[], None] | None = None  # deletes what would be left if the doctor ended now
    given_config: PretrainConfig | None = None  # as written, once it is read
    loaded_tokenizer: LoadedTokenizer | None = None
    complete_config: PretrainConfig | None = None  # with what the tokenizer fills in
    found_plans: list[Plan] = field(default_factory=list)  # of the sources that this rank lists

    def begin(self, topic: str) -> None:
        """Turn to another check."""
        self.topic = topic

    def promise_clean_up(self, clean_up: Callable[[], None]) -> None:
        """What is to be called should the doctor end before the check at hand has done so itself."""
        self.clean_up = clean_up

    def read_config(self) -> PretrainConfig:
        """Read the file and the command line. InputError where something is wrong with them."""
        self.given_config = load_config(PretrainConfig, self.arguments[0], self.arguments[1:])
        return self.given_config

    def read_tokenizer(self, folder: str) -> LoadedTokenizer:
        """Read the tokenizer in a folder. InputError where it is missing or lacks a special token."""
        self.loaded_tokenizer = load_tokenizer(folder, self.config.data.mask.unit)
        return self.loaded_tokenizer

    def complete(self) -> PretrainConfig:
        """Fill in what follows from the tokenizer and `start_from`. InputError where they contradict the encoder."""
        self.complete_config = resolve(self.config, RunFolder(self.config.run_dir))
        return self.complete_config

    def keep_plans(self, plans: list[Plan]) -> None:
        """The sources' files, once all sources are readable."""
        self.found_plans = plans

    @property
    def config(self) -> PretrainConfig:
        """The configuration as written. CannotLookError where it cannot be read."""
        if self.given_config is None:
            raise CannotLookError("needs a configuration")
        return self.given_config

    @property
    def tokenizer(self) -> LoadedTokenizer:
        """The tokenizer. CannotLookError where it cannot be read."""
        if self.loaded_tokenizer is None:
            raise CannotLookError("needs a tokenizer, see 'tokenizer'")
        return self.loaded_tokenizer

    @property
    def completed(self) -> PretrainConfig:
        """The configuration completed by the tokenizer. CannotLookError where that is not possible."""
        if self.complete_config is None:
            raise CannotLookError("needs the model's size, see 'model'")
        return self.complete_config

    @property
    def plans(self) -> list[Plan]:
        """The files of the sources that this rank lists. CannotLookError where one of them cannot be read."""
        if not self.found_plans:
            raise CannotLookError("needs the sources, see 'sources'")
        return self.found_plans

    def name(self, ranks: Sequence[int]) -> str:
        """The ranks with their hosts."""
        return name_ranks(ranks, self.meeting.hosts)


class Check(NamedTuple):
    """One question, put to every rank."""

    name: str
    meaning: str  # for `--help`
    look: Callable[[Examination], Finding]  # on every rank
    judge: Callable[[Examination, list[Finding]], Verdict]  # on rank 0, from the findings of all ranks
    remedy: str  # what to do when `look` raises
    is_decisive: bool = False  # when it fails, the checks behind it have nothing to look at


def run_checks(examination: Examination, checks: Sequence[Check], report: Report) -> None:
    """Go through the checks; every rank calls it. Rank 0 puts what comes out into the report."""
    for check in checks:
        examination.begin(check.name)
        examination.meeting.tell(check.name, _look(check, examination))
        go_on = True
        if examination.meeting.is_main:
            verdict = _judge(check, examination, examination.meeting.hear_all(check.name))
            report.add(check.name, verdict)
            go_on = verdict.level != "FAIL"
        if check.is_decisive and not examination.meeting.from_main(f"{check.name}/go on", go_on):
            return


def _look(check: Check, examination: Examination) -> Finding:
    try:
        return check.look(examination)
    except CannotLookError as error:
        return {"skipped": str(error)}
    except Exception as error:
        return {"error": describe_error(error)}


def describe_error(error: Exception) -> str:
    """One line: the text of an InputError, what the system says of an OSError, type and text of anything else."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {first_line(error)}"


def _judge(check: Check, examination: Examination, findings: list[Finding]) -> Verdict:
    errors = group_by_value([finding.get("error") for finding in findings])
    faults = [(error, ranks) for error, ranks in errors if error]
    if faults:
        return failed("; ".join(f"{examination.name(ranks)}: {error}" for error, ranks in faults), check.remedy)
    reason = next((finding["skipped"] for finding in findings if "skipped" in finding), None)
    if reason:
        return skipped(reason)
    try:
        return check.judge(examination, findings)
    except CannotLookError as error:
        return skipped(str(error))
    except Exception as error:
        return failed(describe_error(error), check.remedy)

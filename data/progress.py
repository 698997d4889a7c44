"""Reading sources from one end to the other, once: for tokenizer training, verifying and the cache."""

import sys
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from data.config import BadInputConfig, SourceConfig
from data.sources.bad_input import Counts, accept
from data.sources.lines import Record, read
from data.sources.unit import plan

SAMPLE = 2000


class Sample:
    """At most 2,000 documents spread evenly over a stream of any length; no randomness."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._seen, self._every = 0, 1

    def add(self, text: str) -> None:
        if self._seen % self._every == 0:
            self.texts.append(text)
            if len(self.texts) > SAMPLE:
                self.texts, self._every = self.texts[::2], self._every * 2
        self._seen += 1


class _Records(ProgressColumn):
    """How many records `watched` has seen: what moves while one big file is read."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.fields.get('records', 0):,} records")


def progress_bar() -> Progress:
    """A bar over units, with the records read and the time left, on stderr; silent where stderr is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        _Records(Column(no_wrap=True)),
    )
    console = Console(stderr=True)
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not sys.stderr.isatty())


def watched(bar: Progress, records: Iterable[Record]) -> Iterator[Record]:
    """The same records, counted by the bar's last task."""
    fields = bar.tasks[-1].fields
    for record in records:
        fields["records"] = fields.get("records", 0) + 1
        yield record


def read_documents(source: SourceConfig, policy: BadInputConfig, limit: int, title: str) -> Iterator[str]:
    """The usable texts of a source, in order. Raises InputError for bad input under policy `error`."""
    the_plan = plan(source, 1, policy)
    counts = Counts()
    with progress_bar() as bar:
        for unit in bar.track(the_plan.units, description=title):
            for record in watched(bar, read(unit, (unit.start, 0, 0), source, limit, policy.too_long == "replace")):
                if not record.fault or accept(record, policy, counts):
                    yield record.text

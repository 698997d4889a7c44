"""The progress bar of commands that read sources from one end to the other, which may take hours."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

Item = TypeVar("Item")


class _RecordsColumn(ProgressColumn):
    """The number of records read so far, which moves even while one big file is read."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.fields.get('records', 0):,} records")


def progress_bar() -> Progress:
    """A bar over units, with the records read and the time left, on stderr; silent where stderr is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        _RecordsColumn(Column(no_wrap=True)),
    )
    console = Console(stderr=True)
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not sys.stderr.isatty())


def count_records(bar: Progress, records: Iterable[Item]) -> Iterator[Item]:
    """Pass the records on, counting them in the bar's last task."""
    fields = bar.tasks[-1].fields
    for record in records:
        fields["records"] = fields.get("records", 0) + 1
        yield record

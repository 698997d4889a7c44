"""The progress bar of the commands that read everything."""

import gzip
import io
from pathlib import Path

from rich.console import Console

from data import SourceConfig
from data.config import BadInputConfig
from data.progress import count_records, progress_bar
from data.sources.formats import plan, read


def test_the_bar_counts_records_while_one_big_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.txt.gz"
    path.write_bytes(gzip.compress(b"a line of text\n" * 1234))
    source, out = SourceConfig(path=str(path), format="text"), io.StringIO()
    the_plan = plan(source, 1, BadInputConfig())
    with progress_bar() as bar:
        (unit,) = bar.track(the_plan.units)
        for number, _ in enumerate(count_records(bar, read(unit, unit.first, source, 100, False)), 1):
            if number == 1000:
                Console(file=out, width=100).print(bar.make_tasks_table(bar.tasks))
    assert "0 % 1,000 records" in out.getvalue()
    assert bar.tasks[0].fields["records"] == 1234

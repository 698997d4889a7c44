"""`python -m data inspect`: what the pipeline will read, with counts, and a few rows as the model sees them.

Tokens an epoch of a large source are estimated from 16 places of it; they are exact when the cache is written.
"""

import itertools
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs import IGNORED_LABEL, load_config
from data.config import DataConfig, DataRun, allowed_process_counts
from data.sources.files import decompressed_size
from data.sources.formats import read
from data.sources.unit import Plan
from data.stream.cache import check_cache
from data.stream.loader import Batch, BatchLoader
from data.stream.state import plan_sources
from data.tokenizer.load import LoadedTokenizer, encode, load_tokenizer

SMALL_SOURCE_BYTES = 4 << 20  # read to its end
SAMPLED_UNITS = 16
DOCUMENTS_PER_UNIT = 32
SHOWN_ROWS = 3
LEGEND = "hidden → [red]MASK[/], [yellow]another token[/], [green]left as it is[/]"


def main(arguments: list[str]) -> int:
    """Print sources, units, lanes, allowed numbers of processes, tokens and steps an epoch, and rows with masks."""
    run = load_config(DataRun, arguments[0], arguments[1:], ignore_other_sections=True)
    config, console = run.data, Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    loaded = load_tokenizer(run.tokenizer, config.mask.unit)
    plans = plan_sources(config)
    if config.cache:
        counts = check_cache(config, loaded.digest, plans)["sources"]
    else:
        counts = [estimate(a_plan, loaded, config) for a_plan in plans]
    console.print(_table(plans, counts, about="" if config.cache else "about "))
    total = sum(of_source.get("tokens", 0) for of_source in counts)
    step = config.rows_per_step * config.sequence_length
    allowed = allowed_process_counts(config.num_lanes, config.rows_per_step)
    console.print(f"lanes: {config.num_lanes}; processes may be {', '.join(map(str, allowed))}")
    console.print(f"a step: {config.rows_per_step} rows of {config.sequence_length} = {step:,} tokens")
    estimated = "" if config.cache else " (estimated)"
    console.print(f"an epoch: {total:,} tokens, {-(-total // step):,} steps{estimated}")
    console.print(f"\nrows of the first step ({LEGEND}):")
    batch = next(iter(BatchLoader(config.model_copy(update={"num_workers": 0}), run.tokenizer, run.seed)))
    for row in range(min(SHOWN_ROWS, len(batch.input_ids))):
        console.print(_row_text(batch, row, loaded), soft_wrap=True)
    return 0


def estimate(a_plan: Plan, loaded: LoadedTokenizer, config: DataConfig) -> dict[str, int]:
    """Documents and tokens an epoch: of all documents of a small source, else from units spread over it; nothing for a
    data set of the hub that does not tell its rows."""
    source, units, num_rows = a_plan.source, a_plan.units, a_plan.num_rows
    small = a_plan.knows_files and sum(file.size for file in a_plan.files) <= SMALL_SOURCE_BYTES
    if source.hub and num_rows is None and not small:
        return {}
    documents = tokens = covered = 0
    for unit in units if small else units[:: max(1, len(units) // SAMPLED_UNITS)]:
        records = read(unit, unit.first, source, config.max_document_bytes, cut_long=True)
        first = None if small else next(records, None)  # of a sample, only says where it begins
        sample = list(records if small else itertools.islice(records, DOCUMENTS_PER_UNIT))
        if first and sample:
            begin, end = first.cursor, sample[-1].cursor
            covered += end.offset - begin.offset if num_rows is None else end.number - begin.number
        texts = [record.text for record in sample if not record.fault]
        repeat = 1 if small else unit.stride
        documents += len(texts) * repeat
        tokens += sum(map(len, encode(loaded, texts))) * repeat
    if small or not covered:
        return {"documents": documents, "tokens": tokens}
    whole = sum(map(decompressed_size, a_plan.files)) if num_rows is None else num_rows
    return {"documents": round(documents * whole / covered), "tokens": round(tokens * whole / covered)}


def _table(plans: list[Plan], counts: list[dict[str, int]], about: str) -> Table:
    table = Table("source", "weight", "files", "bytes", "units", "documents", "tokens an epoch", box=None)
    for a_plan, of_source in zip(plans, counts, strict=True):
        sizes = [file.size for file in a_plan.files]
        table.add_row(
            a_plan.source.title,
            f"{a_plan.source.weight:g}",
            *(f"{count:,}" if a_plan.knows_files else "-" for count in (len(sizes), sum(sizes))),
            f"{len(a_plan.units):,}",
            *(about + f"{of_source[name]:,}" if of_source else "not known" for name in ("documents", "tokens")),
        )
    return table


def _row_text(batch: Batch, row: int, loaded: LoadedTokenizer) -> Text:
    """One row in words, hidden tokens in colour with what the model must find."""
    text = Text()
    length = sum(batch.piece_lengths[row])
    pairs: Any = zip(batch.input_ids[row, :length].tolist(), batch.labels[row, :length].tolist(), strict=True)
    for seen, label in pairs:
        token = loaded.tokenizer.decode([seen], skip_special_tokens=False)
        if label == IGNORED_LABEL:
            text.append(token + " ", style="dim" if seen in loaded.special.every else "")
            continue
        colour = "red" if seen == loaded.special.mask else "green" if seen == label else "yellow"
        text.append(f"{token}→{loaded.tokenizer.decode([label])} ", style=colour)
    return text

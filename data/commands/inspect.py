"""`python -m data inspect`: what the pipeline will read, with counts, and a few rows as the model sees them.

Tokens an epoch of a large source are estimated from 16 places of it; they are exact when the cache is written.
"""

import itertools
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from configs import IGNORED_LABEL, InputError, load_config
from data.config import DataConfig, DataRun
from data.sources.files import decompressed_bytes
from data.sources.lines import read
from data.sources.tables import num_rows
from data.sources.unit import Plan, plan
from data.stream.cache import check_cache
from data.stream.loader import Batch, BatchLoader, allowed_world_sizes
from data.tokenizer.load import LoadedTokenizer, encode, load_tokenizer

SMALL_BYTES = 4 << 20
PLACES = 16
DOCUMENTS = 32  # at each place
ROWS = 3


def main(arguments: list[str]) -> int:
    """Print sources, units, lanes, allowed numbers of processes, tokens and steps an epoch, and rows with masks."""
    if not arguments:
        raise InputError("usage: python -m data inspect CONFIG [key=value ...]")
    run = load_config(DataRun, arguments[0], arguments[1:], ignore_other_sections=True)
    config, console = run.data, Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    loaded = load_tokenizer(run.tokenizer, config.mask.unit)
    plans = [plan(source, config.num_lanes, config.bad_input) for source in config.sources]
    exact = check_cache(config, loaded.digest, plans)["sources"] if config.cache else None
    table = Table("source", "weight", "files", "bytes", "units", "documents", "tokens an epoch", box=None)
    total = 0
    for i, a_plan in enumerate(plans):
        about = "" if exact else "about "
        counts = exact[i] if exact else estimate(a_plan, loaded, config)
        total += counts.get("tokens", 0)
        size = f"{sum(file.size for file in a_plan.files):,}" if a_plan.has_bytes else "-"
        table.add_row(
            a_plan.source.path or a_plan.source.hub,
            f"{a_plan.source.weight:g}",
            f"{len(a_plan.files):,}" if a_plan.has_bytes else "-",
            size,
            f"{len(a_plan.units):,}",
            *(about + f"{counts[name]:,}" if counts else "not known" for name in ("documents", "tokens")),
        )
    console.print(table)
    step = config.rows_per_step * config.sequence_length
    console.print(f"lanes: {config.num_lanes}; processes may be {', '.join(map(str, allowed_world_sizes(config)))}")
    console.print(f"a step: {config.rows_per_step} rows of {config.sequence_length} = {step:,} tokens")
    console.print(f"an epoch: {total:,} tokens, {-(-total // step):,} steps" + ("" if exact else " (estimated)"))
    console.print(
        "\nrows of the first step (hidden → [red]MASK[/], [yellow]another token[/], [green]left as it is[/]):"
    )
    batch = next(iter(BatchLoader(config.model_copy(update={"num_workers": 0}), run.tokenizer, run.seed)))
    for row in range(min(ROWS, len(batch.input_ids))):
        console.print(row_text(batch, row, loaded), soft_wrap=True)
    return 0


def estimate(a_plan: Plan, loaded: LoadedTokenizer, config: DataConfig) -> dict[str, int]:
    """Documents and tokens an epoch: of all documents of a small source, else from units spread over it; nothing for a
    data set of the hub that does not tell its rows."""
    source = a_plan.source
    small = a_plan.has_bytes and sum(file.size for file in a_plan.files) <= SMALL_BYTES
    is_table = bool(source.hub) or source.format in ("parquet", "arrow")
    documents = tokens = covered = 0
    for unit in a_plan.units if small else a_plan.units[:: max(1, len(a_plan.units) // PLACES)]:
        records = read(unit, (unit.start, 0, 0), source, config.max_document_bytes, True)
        sample = list(records if small else itertools.islice(records, DOCUMENTS + 1))
        texts = [record.text for record in sample[0 if small else 1 :] if not record.fault]
        repeat = 1 if small else unit.stride
        documents += len(texts) * repeat
        tokens += sum(map(len, encode(loaded, texts))) * repeat
        covered += sample[-1].cursor[is_table] - sample[0].cursor[is_table] if sample else 0
    if small or not covered:
        return {"documents": documents, "tokens": tokens}
    whole = num_rows(a_plan) if is_table else sum(map(decompressed_bytes, a_plan.files))
    if whole is None:
        return {}
    share = whole / covered
    return {"documents": round(documents * share), "tokens": round(tokens * share)}


def row_text(batch: Batch, row: int, loaded: LoadedTokenizer) -> Text:
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

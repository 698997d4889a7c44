"""Figures of the data pipeline on real text: `python -m benchmarks.data [PART ...]`, parts are the functions in PARTS.

CPU seconds of one thread, medians of paired runs, on ../shared/data/pretrain; prints Markdown for RESULTS.md.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.inputs import DATA, lines_of
from benchmarks.timing import timed
from data import BatchLoader, DataConfig, DataRun, MaskConfig, merge_states
from data.commands.cache import write_cache
from data.stream.masks import Masker
from data.tokenizer.load import WORD_BEGINS, SpecialIds, load_tokenizer
from data.tokenizer.train import TokenizerConfig, train

TEXTS = {"en": "pretrain/en_news_wiki_web", "zh": "pretrain/zh_news_books"}
PAIRS = 3
DOCUMENTS = 2048
EPOCHS = 3  # a worker's start counts, and a run is longer than one epoch of these


def source(path: str | Path) -> dict[str, Any]:
    """A `sources` entry for a file of JSON lines."""
    return {"path": str(path), "format": "jsonl"}


def corpus(folder: Path, language: str, repeat: int = 1) -> tuple[Path, list[str]]:
    """A file of the first `DOCUMENTS` documents as plain JSON lines, `repeat` times over, and their texts once."""
    lines = list(lines_of(TEXTS[language], DOCUMENTS))
    path = folder / f"{language}-{repeat}.jsonl"
    if not path.exists():  # a token cache is refused once its file has another time
        path.write_text("".join(lines * repeat), encoding="utf-8")
    return path, [json.loads(line)["text"] for line in lines]


def trained_tokenizer(folder: Path, algorithm: str, vocab_size: int = 16384) -> str:
    """The folder of a tokenizer for the texts, trained once."""
    output = folder / f"{algorithm}-{vocab_size}"
    if not output.exists():
        values = {"output": str(output), "algorithm": algorithm, "vocab_size": vocab_size}
        sources = [source(DATA / f"{name}.jsonl.gz") for name in TEXTS.values()]
        train(TokenizerConfig.model_validate({**values, "sources": sources}))
    return str(output)


def config(path: str | Path, **changes: Any) -> DataConfig:
    """One epoch of a file in 8 lanes, 64 rows a step; `changes` are other keys of `data`."""
    values = {"sources": [source(path)], "num_lanes": 8, "rows_per_step": 64, "num_epochs": 1}
    return DataConfig.model_validate({**values, **changes})


def nanoseconds(action: Callable[..., int], *arguments: Any) -> float:
    """CPU nanoseconds a token of an action that returns how many tokens it made."""
    tokens, seconds = timed(lambda: action(*arguments))
    return seconds / tokens * 1e9


def tokenize_only(name: str, texts: list[str], epochs: int = 1) -> int:
    """The tokenizer alone, in windows as in the pipeline; its loading counts on both sides. Returns the tokens."""
    encode = load_tokenizer(name).tokenizer.encode_batch_fast
    windows = (texts[i : i + 256] for _ in range(epochs) for i in range(0, len(texts), 256))
    return sum(len(e.ids) for window in windows for e in encode(window, add_special_tokens=False))


def load_batches(data: DataConfig, name: str) -> int:
    """Every batch of the pipeline. Returns the tokens without CLS and SEP, as for the bare tokenizer."""
    tokens = 0
    for batch in BatchLoader(data, name, 0):
        if not batch.tokens:
            return tokens
        tokens += batch.tokens - 2 * sum(map(len, batch.piece_lengths))
    raise AssertionError


def speed(folder: Path) -> Iterator[str]:
    """One DataLoader worker and the process that takes its batches, both from their start to their end, against the
    tokenizer alone."""
    yield "| text | tokenizer | bare, ns/token | text in → batches out | ratio | with cache | gain |"
    yield "|---|---|---|---|---|---|---|"
    for language, algorithm in itertools.product(TEXTS, ("wordpiece", "bpe")):
        name = trained_tokenizer(folder, algorithm)
        path, texts = corpus(folder, language)
        plain = config(path, num_workers=1, num_epochs=EPOCHS)
        cached = config(path, num_workers=1, num_epochs=EPOCHS, cache=str(folder / f"cache-{language}-{algorithm}"))
        write_cache(DataRun(tokenizer=name, data=cached))
        runs = [
            (
                nanoseconds(tokenize_only, name, texts, EPOCHS),
                nanoseconds(load_batches, plain, name),
                nanoseconds(load_batches, cached, name),
            )
            for _ in range(PAIRS)
        ]
        bare, batches, from_cache = (median(values) for values in zip(*runs, strict=True))
        ratio, gain = median(run[0] / run[1] for run in runs), median(run[1] / run[2] for run in runs)
        yield f"| {language} | {algorithm} | {bare:.0f} | {batches:.0f} | {ratio:.3f} | {from_cache:.0f} | {gain:.1f} |"


def masks(_: Path) -> Iterator[str]:
    """Masks of random rows, by unit."""
    special = SpecialIds(2, 3, 0, 4, (0, 1, 2, 3, 4), 16384)
    generator = np.random.default_rng(0)
    rows = generator.integers(5, 16384, (64, 512)).astype(np.uint32)
    rows[generator.random(rows.shape) < 0.7] |= WORD_BEGINS
    yield "| masks | ns/token |\n|---|---|"
    for unit in ("token", "word", "span"):
        masker = Masker(MaskConfig.model_validate({"unit": unit}), special, 0)
        yield f"| {unit} | {median(nanoseconds(mask_rows, masker, rows) for _ in range(PAIRS)):.1f} |"


def mask_rows(masker: Masker, rows: np.ndarray) -> int:
    """Mask the rows twenty times. Returns the tokens."""
    for _ in range(20):
        masker(rows, range(len(rows)))
    return 20 * rows.size


def resume(folder: Path) -> Iterator[str]:
    """Time to the first batch from a state, early and late in the run, all lanes in one process."""
    path, _ = corpus(folder, "en", 4)
    name = trained_tokenizer(folder, "wordpiece")
    cached = config(path, num_epochs=None, rows_per_step=8, cache=str(folder / "cache-resume"))
    write_cache(DataRun(tokenizer=name, data=cached))
    plain = cached.model_copy(update={"cache": ""})
    late = int(os.environ.get("LATE_STEP", "20000"))
    states = {}
    for batch in BatchLoader(cached, name, 0):
        if batch.step in (10, late):
            states[batch.step] = merge_states([batch.state])
        if batch.step == late:
            break
    seconds: dict[int, list[float]] = {10: [], late: []}
    for _ in range(PAIRS):
        for step, state in states.items():
            start = time.process_time()
            next(iter(BatchLoader(plain, name, 0, state=state)))
            seconds[step].append(time.process_time() - start)
    early, after = median(seconds[10]), median(seconds[late])
    size = len(json.dumps(states[late])) / 8
    yield f"First batch of 8 lanes after a resume, CPU seconds: step 10 {early:.2f}, step {late} {after:.2f}"
    yield f"(ratio {after / early:.2f}, {after / 8:.2f} a lane); state {size:.0f} bytes a lane."


def peer(folder: Path) -> Iterator[str]:
    """`datasets` streaming, map(tokenize), map(group_texts), DataCollatorForLanguageModeling, all in one DataLoader
    worker, as transformers' run_mlm.py has it; same file and tokenizer."""
    path, texts = corpus(folder, "en")
    name = trained_tokenizer(folder, "wordpiece")
    plain = config(path, num_workers=1)
    cached = config(path, num_workers=1, cache=str(folder / "cache-en-wordpiece"))
    write_cache(DataRun(tokenizer=name, data=cached))
    actions = {
        "peer": lambda: load_batches_of_datasets(path, name),
        "ours": lambda: load_batches(plain, name),
        "bare tokenizer": lambda: tokenize_only(name, texts),
        "ours with the cache": lambda: load_batches(cached, name),
    }
    runs = [{side: nanoseconds(action) for side, action in actions.items()} for _ in range(PAIRS)]
    yield "| side | ns/token | times the peer's tokens a CPU second |\n|---|---|---|"
    for side in actions:
        gain = median(run["peer"] / run[side] for run in runs)
        yield f"| {side} | {median(run[side] for run in runs):.0f} | {gain:.2f} |"


def load_batches_of_datasets(path: Path, name: str) -> int:
    """Every batch of the peer. Returns the tokens."""
    from datasets import load_dataset
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling

    fast = AutoTokenizer.from_pretrained(name)

    def group_texts(examples: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {key: list(itertools.chain(*values)) for key, values in examples.items()}
        end = len(joined["input_ids"]) // 512 * 512
        return {key: [ids[i : i + 512] for i in range(0, end, 512)] for key, ids in joined.items()}

    stream = load_dataset("json", data_files=str(path), split="train", streaming=True)
    columns = list(next(iter(stream)))
    tokenized = stream.map(
        lambda rows: fast(rows["text"], return_special_tokens_mask=True), batched=True, remove_columns=columns
    )
    rows = tokenized.map(group_texts, batched=True).shuffle(buffer_size=256, seed=0)
    collator = DataCollatorForLanguageModeling(fast)
    loader = torch.utils.data.DataLoader(rows, batch_size=64, collate_fn=collator, num_workers=1)
    return sum(batch["input_ids"].numel() for batch in loader)


def fill(folder: Path) -> Iterator[str]:
    """Share of real tokens in rows of 512: 8 lanes, windows of 256 documents, 40 steps of 64 rows."""
    name = trained_tokenizer(folder, "wordpiece")
    yield "| text | fill |"
    yield "|---|---|"
    for path in sorted((DATA / "pretrain").glob("*.jsonl.gz")):
        batches = itertools.islice(BatchLoader(config(path, num_epochs=None), name, 0), 40)
        yield f"| {path.name} | {sum(batch.tokens for batch in batches) / (40 * 64 * 512):.4f} |"


def shuffle(folder: Path) -> Iterator[str]:
    """A corpus sorted by topic: the topic mix of global batches against a perfect shuffle's (total variation)."""
    name = trained_tokenizer(folder, "wordpiece")
    yield "| documents | topics | lanes | open units | total variation | of a perfect shuffle |"
    yield "|---|---|---|---|---|---|"
    for documents, num_lanes, open_units in itertools.product((2000, 100_000), (8, 24), (1, 4, 8)):
        path = folder / f"topics-{documents}.txt"
        topics = 20
        if not path.exists():
            lines = (f"topic {i * topics // documents} of text " + "word " * 90 for i in range(documents))
            path.write_text("\n".join(lines))
        size = path.stat().st_size
        data = config(
            path,
            sources=[{"path": str(path)}],
            num_lanes=num_lanes,
            open_units=open_units,
            num_epochs=None,
            sequence_length=128,
            rows_per_step=240,
        )
        distances = []
        for batch in itertools.islice(BatchLoader(data, name, 0), 12):
            ids = [document for row in batch.piece_ids for document in row]
            found = np.array([int(d.partition("#")[0].rpartition(":")[2]) * topics // size for d in ids])
            distances.append(np.abs(np.bincount(found, minlength=topics) / len(found) - 1 / topics).sum() / 2)
        draws = np.random.default_rng(0).multinomial(240, [1 / topics] * topics, 1000) / 240
        perfect = np.abs(draws - 1 / topics).sum(axis=1).mean() / 2
        yield f"| {documents:,} | {topics} | {num_lanes} | {open_units} | {np.mean(distances):.3f} | {perfect:.3f} |"


def memory(folder: Path) -> Iterator[str]:
    """Resident memory of a process that only loads data, after 60 steps and after ten times as many."""
    name = trained_tokenizer(folder, "wordpiece")
    path, _ = corpus(folder, "zh", 4)
    (folder / "memory.json").write_text(
        config(path, num_lanes=4, window_documents=64, num_epochs=None).model_dump_json()
    )
    command = [sys.executable, "-m", "benchmarks.data", "--resident", str(folder / "memory.json"), name]
    first, later = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    yield f"Resident memory after 60 steps of 64 x 512: {first} MB, after 600: {later} MB ({later / first - 1:+.1%})."


def print_resident(data: DataConfig, name: str) -> None:
    """Print this process's resident megabytes after 60 steps and after 600."""
    for batch in itertools.islice(BatchLoader(data, name, 0), 600):
        if batch.step in (60, 600):
            print(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20)


def tokenizers(folder: Path) -> Iterator[str]:
    """The reports of the three algorithms."""
    yield "| algorithm | vocabulary | text | unknown rate | tokens a word | tokens a character |"
    yield "|---|---|---|---|---|---|"
    for algorithm in ("wordpiece", "bpe", "unigram"):
        values = json.loads((Path(trained_tokenizer(folder, algorithm)) / "report.json").read_text())
        for path, row in values["sources"].items():
            language = next(lang for lang, name in TEXTS.items() if name in path)
            words = f"{row['tokens_per_word']:.2f}" if language == "en" else "-"
            yield (
                f"| {algorithm} | {values['vocab_size']:,} | {language} | {row['unknown_rate']:.4f} | {words} | "
                f"{row['tokens_per_character']:.3f} |"
            )


PARTS = {f.__name__: f for f in (tokenizers, speed, masks, resume, peer, fill, shuffle, memory)}


def main(names: list[str]) -> None:
    """Print the chosen parts, or all."""
    torch.set_num_threads(1)
    if names[:1] == ["--resident"]:
        print_resident(DataConfig.model_validate_json(Path(names[1]).read_text()), names[2])
        return
    folder = Path(os.environ.get("BENCHMARK_FOLDER") or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PARTS:
        print(f"\n### {name}: `python -m benchmarks.data {name}`\n", flush=True)
        for line in PARTS[name](folder):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""An encoder's folder over many sets: `python -m benchmarks.finetune_sets MODEL [ROWS] [SET … | simcse]`.

A line a set of ../shared/data: the pretrained encoder, the same shape from random weights, the mean of the encoder's
own word vectors under a linear model (cosine in matching), and the majority class where there is one; three seeds.
Both encoders get the same rows, epochs and grid of learning rates, and each takes its own rate by dev with its first
seed; test scores decide nothing. The scratch side has no layer-wise decay, which protects what is pretrained. Rows are
a fixed random sample. LCQMC is zero-shot: cosines against labels, no training row of it; after NLI, both sides were
trained on triples of another set. Prints a JSON line and a Markdown row a set; times are CPU seconds of this process.
`simcse` instead trains without labels on the sentences of STS-B and SICK (all, or ROWS) and prints Spearman on STS-B's
test before and after.
"""

import functools
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.inputs import DATA, SEEDS, lines_of
from benchmarks.timing import timed
from configs.loader import validate
from finetune.accelerator import make_accelerator
from finetune.config import FinetuneConfig
from finetune.evaluate import evaluate
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_model_config, quiet_transformers
from finetune.inference import Predictor
from finetune.results import summarize
from finetune.run import run
from finetune.serving import load_task
from finetune.tasks.word_vectors import word_vector_model

RATES = (5e-4, 1.2e-3)
TRAINING = {"num_epochs": 3, "num_evaluations": 3, "batch_size": 16}
SIMCSE = {"num_epochs": 1, "num_evaluations": 4, "batch_size": 64, "learning_rate": 1e-3}
SIMCSE_DROPOUT = 0.2
DEV_ROWS, TEST_ROWS, MAX_LENGTH = 300, 1000, 64
NLI_COLUMNS = {
    "text_a": ["anchor", "text_a"], "text_b": ["positive", "text_b"], "negative": "hard_negative", "score": "label",
}  # fmt: skip
SETS = {  # task, folder and name; a set without a dev file holds training rows out
    "SST-2": ("classification", "classification/en_sst2_glue"),
    "TREC": ("classification", "classification/en_trec"),
    "AG News": ("classification", "classification/en_agnews_part"),
    "waimai": ("classification", "classification/zh_waimai10k"),
    "MRPC": ("classification", "pairs/en_mrpc"),
    "STS-B": ("matching", "sts/en_stsb"),
    "SICK": ("matching", "sts/en_sick"),
    "LCQMC": ("zero-shot", "sts/zh_lcqmc"),
    "LCQMC after NLI": ("nli", "sts/zh_lcqmc"),
    "CoNLL-2003": ("tagging", "token/en_conll2003"),
    "resume NER": ("tagging", "token/zh_resume_ner"),
}
HEADER = "| set | metric | rows | pretrained | from scratch | word vectors | majority |\n|---|---|---|---|---|---|---|"


def sample(name: str, split: str) -> list[str]:
    """The lines of a split in a fixed random order; [] where the set has no such split."""
    if not (DATA / f"{name}.{split}.jsonl.gz").exists():
        return []
    lines = list(lines_of(f"{name}.{split}"))
    random.Random(0).shuffle(lines)
    return lines


def write_splits(name: str, rows: int, folder: Path, test_rows: int | None = TEST_ROWS) -> dict[str, str]:
    """Files train, dev and test of at most `rows`, `DEV_ROWS` and `test_rows` (None: all) rows; those the set has."""
    train, dev, test = (sample(name, split) for split in ("train", "dev", "test"))
    if name == "sts/zh_lcqmc":
        train = sample("pairs/zh_nli_triples", "train")
    if train and not dev:
        train, dev = train[:-DEV_ROWS], train[-DEV_ROWS:]
    paths = {}
    for split, lines in (("train", train[:rows]), ("dev", dev[:DEV_ROWS]), ("test", test[:test_rows])):
        if lines:
            paths[split] = str(folder / f"{split}.jsonl")
            Path(paths[split]).write_text("".join(lines), encoding="utf-8")
    return paths


def tags_of(files: dict[str, str]) -> list[str]:
    """Every tag of the files: a rare one may be missing in so few training rows."""
    lines = [line for path in files.values() for line in Path(path).read_text(encoding="utf-8").strip().split("\n")]
    return sorted({tag for line in lines for tag in json.loads(line)["tags"]})


def random_encoder(model: str, seed: int, folder: Path) -> str:
    """A folder with random weights in the shape of `model`, and its tokenizer."""
    path = folder / f"scratch{seed}"
    if not path.exists():
        torch.manual_seed(seed)
        AutoModel.from_config(load_model_config(model), dtype=torch.float32).save_pretrained(path)
        AutoTokenizer.from_pretrained(model).save_pretrained(path)
    return str(path)


def configure(task: str, model: str, folder: Path, files: dict[str, str], **values: Any) -> FinetuneConfig:
    """A config of one run."""
    common = {"task": task, "model": model, "run_dir": str(folder / "run"), "max_length": MAX_LENGTH, **files}
    return validate(FinetuneConfig, {**common, **values}, "benchmark")


def trained(task: str, model: str, folder: Path, files: dict[str, str], scratch: bool) -> dict[str, Any]:
    """Each seed's test score at the rate that is best on dev with the first seed; the baselines with the pretrained."""

    def once(seed: int, rate: float, baselines: Sequence[str] = ()) -> dict[str, Any]:
        training = {**TRAINING, "learning_rate": rate, **({"layer_decay": 1.0} if scratch else {})}
        source = random_encoder(model, seed, folder) if scratch else model
        chosen = {"seeds": [seed], "training": training, "baselines": list(baselines), **values}
        return run(configure(task, source, folder, files, **chosen))

    values: dict[str, Any] = {"tagging": {"labels": tags_of(files)}} if task == "tagging" else {}
    if task == "nli":
        task, values = "matching", {"columns": NLI_COLUMNS}
    baselines = [] if scratch else ["word_vectors", *(["majority"] if task != "matching" else [])]
    tried = {rate: once(SEEDS[0], rate, baselines if rate == RATES[0] else ()) for rate in RATES}
    best = max(tried, key=lambda rate: tried[rate]["seeds"][0]["dev"])
    chosen = [tried[best], *(once(seed, best) for seed in SEEDS[1:])]
    found: dict[str, Any] = {"scores": [result["seeds"][0]["test"] for result in chosen], "rate": best}
    found |= {"metric": chosen[0]["metric"], "train_rows": chosen[0]["train_rows"]}
    return found | {"untrained": chosen[0].get("before"), "baselines": tried[RATES[0]]["baselines"]}


def zero_shot(model: str, folder: Path, files: dict[str, str]) -> dict[str, Any]:
    """Spearman of the cosines of mean vectors with the labels: pretrained, three random encoders, word vectors."""
    columns = {"text_a": "text_a", "text_b": "text_b", "score": "label"}
    given = {"train": files["test"], "test": files["test"]}
    config = configure("matching", model, folder, given, columns=columns, pooling="mean")
    folders = [model, *(random_encoder(model, seed, folder) for seed in SEEDS)]
    scores = [evaluate(path, config)["score"] for path in folders]
    task = load_task(model, ModelDescription(task="matching", pooling="mean"), MAX_LENGTH)
    words = word_vector_model(task, model, [])
    found = Predictor(task, make_accelerator(), None).score_files(words, config.test, config.columns)["spearman"]
    return {
        "metric": "spearman",
        "train_rows": 0,
        "pretrained": rounded(scores[:1]),
        "from_scratch": rounded(scores[1:]),
        "word_vectors": round(found, 3),
    }


def simcse(model: str, rows: int | None, folder: Path) -> dict[str, Any]:
    """Spearman on STS-B's test of the untouched encoder and after unsupervised SimCSE on sentences without scores."""
    lines = [json.loads(line) for name in ("sts/en_stsb", "sts/en_sick") for line in sample(name, "train")]
    texts = list(dict.fromkeys(row[side] for row in lines for side in ("text_a", "text_b")))
    random.Random(0).shuffle(texts)
    files = write_splits("sts/en_stsb", 0, folder, test_rows=None)
    files["train"] = str(folder / "sentences.jsonl")
    Path(files["train"]).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:rows]))
    columns = {name: name for name in ("text", "text_a", "text_b", "score")}
    found = run(configure("matching", model, folder, files, seeds=list(SEEDS), pooling="mean", columns=columns,
                          training=SIMCSE, matching={"dropout": SIMCSE_DROPOUT}))  # fmt: skip
    line = {"set": "STS-B by unsupervised SimCSE", "sentences": found["train_rows"], "before": found["before"]}
    line |= {
        "after": rounded([seed["test"] for seed in found["seeds"]]),
        "dev": [seed["dev"] for seed in found["seeds"]],
    }
    return line | {"spaces": [seed["space"] for seed in found["seeds"]]}


def rounded(scores: list[float]) -> dict[str, Any]:
    """Scores with their mean and standard deviation."""
    summary = {key: round(value, 3) for key, value in summarize(scores).items()}
    return {**summary, "scores": [round(score, 4) for score in scores]}


def measure(name: str, model: str, rows: int, folder: Path) -> dict[str, Any]:
    """One set's line."""
    task, source = SETS[name]
    files = write_splits(source, rows, folder)
    line: dict[str, Any] = {"set": name}
    if task == "zero-shot":
        line |= zero_shot(model, folder, files)
    else:
        pretrained, scratch = (trained(task, model, folder, files, scratch) for scratch in (False, True))
        line |= {name: pretrained[name] for name in ("metric", "train_rows")}
        for side, found in (("pretrained", pretrained), ("from_scratch", scratch)):
            line[side] = {**rounded(found["scores"]), "learning_rate": found["rate"]}
        line |= {name: round(score, 3) for name, score in pretrained["baselines"].items()}
        if pretrained["untrained"]:
            line["untrained"] = round(pretrained["untrained"][line["metric"]], 3)
    return line


def table_row(line: dict[str, Any]) -> str:
    """The set's row under `HEADER`."""
    cells = [
        f"{line[side]['mean']:.3f} ± {line[side]['standard_deviation']:.3f}" for side in ("pretrained", "from_scratch")
    ]
    majority = f"{line['majority']:.3f}" if "majority" in line else "-"
    shown = [line["set"], line["metric"], str(line["train_rows"]), *cells, f"{line['word_vectors']:.3f}", majority]
    return f"| {' | '.join(shown)} |"


def main(arguments: list[str]) -> None:
    """Measure the chosen sets."""
    sets = [argument for argument in arguments[1:] if not argument.isdigit()]
    counts = [int(argument) for argument in arguments[1:] if argument.isdigit()]
    if not arguments or len(counts) > 1 or not (set(sets) <= set(SETS) or sets == ["simcse"]):
        sys.exit(f"usage: python -m benchmarks.finetune_sets MODEL [ROWS] [{' | '.join(SETS)} | simcse]")
    torch.set_num_threads(1)
    quiet_transformers()
    if sets != ["simcse"]:
        print(HEADER)
    for name in sets or SETS:
        with tempfile.TemporaryDirectory() as temporary:
            if name == "simcse":
                action = functools.partial(simcse, arguments[0], counts[0] if counts else None, Path(temporary))
            else:
                action = functools.partial(measure, name, arguments[0], counts[0] if counts else 1000, Path(temporary))
            line, seconds = timed(action)
        print(json.dumps(line | {"cpu_seconds": round(seconds)}, ensure_ascii=False), flush=True)
        if name != "simcse":
            print(table_row(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

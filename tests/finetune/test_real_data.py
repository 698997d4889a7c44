"""Real rows: our scores are the peers' own, every question's answer is found again, a real encoder learns."""

import gzip
import json
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from configs.loader import validate
from finetune.config import AnsweringConfig, FinetuneConfig
from finetune.evaluate import evaluate
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_inputs
from finetune.reading.rows import Row, read_rows
from finetune.run import run
from finetune.tasks.answering import Answering
from finetune.tasks.answering_spans import exact_match, overlap_f1
from finetune.tasks.tagging import Tagging


def first_rows(path: Path, count: int, to: Path) -> str:
    """The first rows of a file as a file of its own."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        to.write_text("".join(line for line, _ in zip(file, range(count), strict=False)), encoding="utf-8")
    return str(to)


def config(**values: Any) -> FinetuneConfig:
    """A validated config."""
    return validate(FinetuneConfig, values, "test")


def test_spearman_on_sts_is_scipys_on_sentence_transformers_vectors(
    minilm: str, real_data: Path, tmp_path: Path
) -> None:
    test = first_rows(real_data / "sts/en_stsb.test.jsonl.gz", 200, tmp_path / "test.jsonl")
    found = evaluate(minilm, config(task="matching", model=minilm, run_dir="x", train=test, test=test))
    rows = [json.loads(line) for line in Path(test).read_text().splitlines()]
    model = SentenceTransformer(minilm, device="cpu")
    left, right = (model.encode([row[name] for row in rows]) for name in ("text_a", "text_b"))
    expected = spearmanr((left * right).sum(1), [row["score"] for row in rows]).statistic
    assert found["score"] == pytest.approx(expected, abs=1e-6)
    assert found["pooling"] == "mean"
    assert found["score"] > 0.8


def official_f1(guess: str, right: str) -> float:
    """compute_f1 of the SQuAD 2.0 script, written from its rules a second time."""

    def tokens(text: str) -> list[str]:
        text = "".join(ch for ch in text.lower() if ch not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", text).split()

    mine, yours = tokens(guess), tokens(right)
    if not mine or not yours:
        return float(mine == yours)
    same = sum((Counter(mine) & Counter(yours)).values())
    return 0.0 if same == 0 else 2 * same / (len(mine) + len(yours))


@pytest.mark.parametrize("name", ["en_xquad", "zh_cmrc2018_trial"])
def test_every_answer_is_found_in_its_windows_again(name: str, real_data: Path, minilm: str) -> None:
    """The window targets of each question, read back as characters, are the answer; a wrong answer_start is moved."""
    task = Answering(ModelDescription(answering=AnsweringConfig(stride=64)), load_inputs(minilm, 192))
    exact, scores, count, lost = 0, 0.0, 0, 0
    for row in list(read_rows(str(real_data / f"qa/{name}.squad.json.gz")))[:200]:
        context, right = row.values["context"], row.values["answers"][0]["text"]
        windows = task.inputs.encode_windows(row.values["question"], context, 64)
        targets = [example.target for example in task.encode([row], training=True)]
        spans = [
            context[offsets[first][0] : offsets[last][1]]  # type: ignore[index]
            for (first, last), (_, offsets) in zip(targets, windows, strict=True)
            if (first, last) != (0, 0)
        ]
        covered = {i for _, offsets in windows for place in offsets if place for i in range(*place)}
        assert all(i in covered or character.isspace() for i, character in enumerate(context) if i < 10)
        if not spans:  # longer than the windows overlap: said, not lost in silence
            lost += 1
            continue
        count, exact = count + 1, exact + (right in spans)
        scores += max(official_f1(span, right) for span in spans)
        assert exact_match(right, [right]) == 1.0
        assert overlap_f1(spans[0], [right]) == pytest.approx(official_f1(spans[0], right))
    assert lost == task.lost_answers <= 4
    assert exact / count > 0.97  # an answer that starts or ends inside a token cannot be a span of tokens
    assert scores / count > 0.98


@pytest.mark.slow
def test_a_real_encoder_learns_classes_from_few_rows(minilm: str, real_data: Path, tmp_path: Path) -> None:
    train = first_rows(real_data / "classification/en_trec.train.jsonl.gz", 240, tmp_path / "train.jsonl")
    test = first_rows(real_data / "classification/en_trec.test.jsonl.gz", 200, tmp_path / "test.jsonl")
    results = run(
        config(
            task="classification", model=minilm, run_dir=str(tmp_path / "run"), train=train, test=test, seeds=[0],
            baselines=["majority"], max_length=32, training={"num_epochs": 3, "learning_rate": 2e-4},
        )
    )  # fmt: skip
    assert results["mean"] > results["baselines"]["majority"] + 0.2


def test_tagging_reads_both_schemes(real_data: Path, encoder: str, tmp_path: Path) -> None:
    """BIO and BMEO rows become labels and back; perfect tags score 1."""
    for name in ("en_conll2003", "zh_resume_ner"):
        test = first_rows(real_data / f"token/{name}.test.jsonl.gz", 100, tmp_path / f"{name}.jsonl")
        rows = [Row(row.place, row.values) for row in read_rows(test)]
        settings = config(task="tagging", model=encoder, run_dir="x", train=test)
        task = Tagging.from_training_rows(settings, load_inputs(encoder), rows)
        targets = [task.target(row) for row in rows]
        assert [[task.labels[i] for i in tags or []] for tags in targets] == [row.values["tags"] for row in rows]
        assert task.score([(tags, tags) for tags in targets])["f1"] == 1.0

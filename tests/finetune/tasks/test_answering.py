"""Answering: every token in a window, exact slices, no answer, the official script's scores (R35)."""

import json
import random
import re
import string
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from configs.loader import validate
from finetune.config import AnsweringConfig, FinetuneConfig
from finetune.folder.description import ModelDescription
from finetune.folder.load import load_inputs
from finetune.predict import predict
from finetune.reading.rows import Row, read_rows
from finetune.run import run
from finetune.serving import parse_options
from finetune.tasks.answering import Answering
from finetune.tasks.answering_spans import token_span
from finetune.tasks.protocol import Example

CONTEXT = " ".join(["rain", "snow", "wind", "fog"][i % 4] for i in range(157))


def make_answering(folder: str, max_length: int, stride: int = 64, *, has_unanswerable: bool) -> Answering:
    """The task without training rows."""
    options = AnsweringConfig(stride=stride)
    description = ModelDescription(answering=options, has_unanswerable=has_unanswerable)
    return Answering(description, load_inputs(folder, max_length))


def row_of(context: str, start: int | None, end: int = 0, question: str = "what") -> Row:
    """A question with one answer, or none."""
    answers = [] if start is None else [{"text": context[start:end], "answer_start": start}]
    return Row("x:1", {"question": question, "context": context, "answers": answers})


class Oracle(nn.Module):
    """Logits that are high exactly at the targets of the training examples of one row."""

    def __init__(self, task: Answering, row: Row):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.targets = iter([example.target for example in task.encode([row], training=True)])

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        starts, ends = torch.zeros(input_ids.shape), torch.zeros(input_ids.shape)
        for window in range(len(input_ids)):
            first, last = next(self.targets)
            starts[window, first] = ends[window, last] = 10.0
        return SimpleNamespace(start_logits=starts, end_logits=ends)


def covered(windows: list[Any]) -> list[tuple[int, int]]:
    """First and one past the last context word of each window (words of this context have one token)."""
    words = {start: i for i, start in enumerate(i for i in range(len(CONTEXT)) if i == 0 or CONTEXT[i - 1] == " ")}
    return [
        (min(inside), max(inside) + 1)
        for _, offsets in windows
        if (inside := [words[place[0]] for place in offsets if place])
    ]


@pytest.mark.parametrize(("step", "expected"), [(64, [(0, 114), (64, 157)]), (128, [(0, 114), (114, 157)])])
def test_r35_the_windows_hold_every_context_token(minilm: str, step: int, expected: list[tuple[int, int]]) -> None:
    """A step beyond the window's room would lose 14 tokens: it is cut to the room."""
    windows = load_inputs(minilm, 114 + 1 + 3).encode_windows("what", CONTEXT, step)
    assert covered(windows) == expected
    assert all(len(encoding["input_ids"]) <= 118 for encoding, _ in windows)


@pytest.mark.parametrize("place", ["first", "overlap", "last"])
@pytest.mark.parametrize("step", [64, 128])
def test_r35_a_planted_answer_comes_back_exactly(minilm: str, place: str, step: int) -> None:
    task = make_answering(minilm, 118, step, has_unanswerable=True)
    words = CONTEXT.split()
    at = {"first": 0, "overlap": 90, "last": 156}[place]
    words[at] = "purple"
    context = " ".join(words)
    start = context.index("purple")
    row = row_of(context, start, start + len("purple"))
    example = task.encode([row], training=False)[0]
    found = task.predict(Oracle(task, row).eval(), [example])[0]
    assert found["answer"] == "purple" == context[found["start"] : found["end"]]
    assert found["start"] == start


def test_r35_a_window_without_the_whole_answer_learns_cls(minilm: str) -> None:
    task = make_answering(minilm, 118, has_unanswerable=False)
    last = CONTEXT.rindex(" ") + 1
    targets = [example.target for example in task.encode([row_of(CONTEXT, last, len(CONTEXT))], training=True)]
    assert targets[0] == (0, 0)
    assert targets[1][0] == targets[1][1] > 0
    none = [example.target for example in task.encode([row_of(CONTEXT, None)], training=True)]
    assert none == [(0, 0), (0, 0)]


def test_r35_an_empty_context_gives_an_empty_answer(minilm: str) -> None:
    for has_unanswerable in (True, False):
        task = make_answering(minilm, 118, has_unanswerable=has_unanswerable)
        for context in ("", "   "):
            row = row_of(context, None)
            example = task.encode([row], training=False)[0]
            assert task.predict(Oracle(task, row), [example])[0]["answer"] == ""


def test_r35_any_logits_give_an_exact_slice(minilm: str) -> None:
    task = make_answering(minilm, 40, 16, has_unanswerable=False)
    context = "Zürich — «naïve» café 今天天气 ½ ﬁne 😀 end. " * 6
    torch.manual_seed(0)

    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            return SimpleNamespace(start_logits=torch.randn(input_ids.shape), end_logits=torch.randn(input_ids.shape))

    example = task.encode([row_of(context, 0, 6)], training=False)[0]
    for _ in range(20):
        found = task.predict(Noise(), [example])[0]
        assert 0 <= found["start"] < found["end"] <= len(context)
        assert found["answer"] == context[found["start"] : found["end"]]


def test_a_long_question_leaves_room_for_the_context(minilm: str) -> None:
    inputs = load_inputs(minilm, 40)
    windows = inputs.encode_windows("why " * 500, "rain and snow", 16)
    assert inputs.truncated == 1
    assert len(windows) == 1
    assert len(windows[0][0]["input_ids"]) <= 40


def test_a_wrong_answer_start_is_moved_and_a_lost_answer_named(minilm: str) -> None:
    task = make_answering(minilm, 118, has_unanswerable=False)
    values = {"question": "what", "context": "fog and rain", "answers": [{"text": "rain", "answer_start": 3}]}
    example: Example = task.encode([Row("x:1", values)], training=True)[0]
    assert example.target[0] == example.target[1] > 0
    with pytest.raises(ValueError, match=r"x:1: the answer 'hail' is nowhere in the context"):
        task.encode([Row("x:1", {**values, "answers": [{"text": "hail", "answer_start": 0}]})], training=True)
    with pytest.raises(ValueError, match="'answers' must be a list"):
        task.encode([Row("x:1", {**values, "answers": ["rain"]})], training=True)


def test_a_span_must_be_whole_in_its_window() -> None:
    offsets = [None, (4, 8), (9, 12), None]
    assert token_span(offsets, 4, 12) == (1, 2)
    assert token_span(offsets, 9, 12) == (2, 2)
    assert token_span(offsets, 0, 8) is None
    assert token_span(offsets, 9, 20) is None
    assert token_span(offsets, 20, 22) is None


@pytest.mark.parametrize(
    ("guess", "rights", "exact", "f1"),
    [
        ("The cat!", ["cat"], 1.0, 1.0),
        ("a black cat", ["cat", "dog"], 0.0, 2 / 3),
        ("", [""], 1.0, 1.0),
        ("cat", [""], 0.0, 0.0),
        ("", ["cat"], 0.0, 0.0),
    ],
)
def test_scores_are_the_official_scripts(minilm: str, guess: str, rights: list[str], exact: float, f1: float) -> None:
    scores = make_answering(minilm, 40, has_unanswerable=True).score([(rights, {"answer": guess})])
    assert scores == {"exact_match": exact, "f1": pytest.approx(f1), "n": 1}


def official_scores(data: list[dict[str, Any]], guesses: dict[str, str]) -> dict[str, float]:
    """`exact` and `f1` of the SQuAD 2.0 script (shares, not per cent), written from its published rules."""

    def normalize(text: str) -> str:
        text = "".join(character for character in text.lower() if character not in set(string.punctuation))
        return " ".join(re.compile(r"\b(a|an|the)\b", re.UNICODE).sub(" ", text).split())

    def f1(gold: str, guess: str) -> float:
        golds, found = normalize(gold).split(), normalize(guess).split()
        if len(golds) == 0 or len(found) == 0:
            return float(golds == found)
        same = sum((Counter(golds) & Counter(found)).values())
        if same == 0:
            return 0.0
        precision, recall = same / len(found), same / len(golds)
        return 2 * precision * recall / (precision + recall)

    exact_scores, f1_scores = {}, {}
    for article in data:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                golds = [answer["text"] for answer in question["answers"] if normalize(answer["text"])] or [""]
                guess = guesses[question["id"]]
                exact_scores[question["id"]] = max(float(normalize(gold) == normalize(guess)) for gold in golds)
                f1_scores[question["id"]] = max(f1(gold, guess) for gold in golds)
    return {name: sum(s.values()) / len(s) for name, s in (("exact_match", exact_scores), ("f1", f1_scores))}


WORDS = st.sampled_from(
    ["the", "A", "an", "cat,", "Cat", "sat!", "—", "été", "猫", "42", "«naïve»", "", "\u00a0", "(an)"]
)
ANSWER = st.lists(WORDS, max_size=4).map(" ".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.lists(ANSWER, max_size=3), ANSWER), min_size=1, max_size=5))
def test_scores_equal_the_official_scripts_on_any_answers(tmp_path: Path, cases: list[tuple[list[str], str]]) -> None:
    """Through our reader of the same document: golds that normalise to nothing are passed over, as there."""
    questions = [
        {"id": str(i), "question": "?", "answers": [{"text": text, "answer_start": 0} for text in golds]}
        for i, (golds, _) in enumerate(cases)
    ]
    data = [{"paragraphs": [{"context": "x", "qas": questions}]}]
    (tmp_path / "squad.json").write_text(json.dumps({"data": data}))
    task = Answering.__new__(Answering)
    targets = [task.target(row) for row in read_rows(str(tmp_path / "squad.json"))]
    scores = task.score([(gold, {"answer": guess}) for gold, (_, guess) in zip(targets, cases, strict=True)])
    expected = official_scores(data, {str(i): guess for i, (_, guess) in enumerate(cases)})
    assert {name: scores[name] for name in expected} == expected


def test_answering_learns_from_a_squad_file(encoder: str, tmp_path: Path) -> None:
    random_ = random.Random(0)
    questions = []
    for i in range(160):
        words = [random_.choice(["the", "old", "big", "and"]) for _ in range(20)]
        words[random_.randrange(20)] = random_.choice(["apple", "banana", "cherry"])
        context = " ".join(words)
        answer = next(word for word in words if word in ("apple", "banana", "cherry"))
        entry = {
            "id": str(i),
            "question": "we saw",
            "answers": [{"text": answer, "answer_start": context.index(answer)}],
        }
        questions.append({"context": context, "qas": [entry]})
    for name, part in (("train", questions[:120]), ("test", questions[120:])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": [{"paragraphs": part}]}))
    config = validate(
        FinetuneConfig,
        {
            "task": "answering", "model": encoder, "run_dir": str(tmp_path / "run"), "seeds": [0], "max_length": 32,
            "train": str(tmp_path / "train.json"), "dev": str(tmp_path / "test.json"), "answering": {"stride": 8},
            "training": {"num_epochs": 15, "learning_rate": 3e-3, "layer_decay": 1.0},
        },
        "test",
    )  # fmt: skip
    results = run(config)
    assert results["mean"] > 0.8
    predict(
        str(tmp_path / "run" / "model"), str(tmp_path / "test.json"), str(tmp_path / "out.jsonl"), parse_options([])
    )
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(found) == 40
    assert all(row["answer"] in part["context"] for row, part in zip(found, questions[120:], strict=True))

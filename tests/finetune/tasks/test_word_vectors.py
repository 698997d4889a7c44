"""The baseline of word vectors: scikit-learn's own probabilities, the right words of each text, scored by the task."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel, AutoTokenizer

from configs.loader import validate
from finetune.config import FinetuneConfig
from finetune.folder.load import load_inputs
from finetune.run import read_training_rows, run
from finetune.tasks.table import TASKS
from finetune.tasks.word_vectors import word_vector_model


def means(folder: str, texts: list[str]) -> np.ndarray:
    """A mean word vector a text, without any of our code."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    table = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach().numpy()
    return np.stack([table[tokenizer(text, add_special_tokens=False)["input_ids"]].mean(0) for text in texts])


def rows_of(path: str) -> list[dict[str, Any]]:
    """The rows of JSON lines."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def configure(folder: Path, task: str, model: str, **values: Any) -> FinetuneConfig:
    """A config of the baseline beside the shortest run."""
    common = {"task": task, "model": model, "run_dir": str(folder / "run"), "seeds": [0], "training": {"num_epochs": 1}}
    return validate(FinetuneConfig, {**common, "baselines": ["word_vectors"], **values}, "test")


@pytest.mark.parametrize("classes", [2, 3])
def test_the_probabilities_are_scikit_learns(
    classes: int, encoder: str, topics: dict[str, str], tmp_path: Path
) -> None:
    rows = [row for row in rows_of(topics["train"]) if classes == 3 or row["label"] != "tool"]
    config = configure(tmp_path, "classification", encoder, train=write(tmp_path / "t.jsonl", rows), dev=topics["dev"])
    loaded = read_training_rows(config)
    task = TASKS[config.task].from_training_rows(config, load_inputs(encoder), loaded)
    examples = task.encode(loaded, training=True)
    model = word_vector_model(task, encoder, examples)
    features, labels = means(encoder, [row["text"] for row in rows]), [row["label"] for row in rows]
    peer = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)).fit(features, labels)
    batch = task.inputs.pad([example.encodings[0] for example in examples], torch.device("cpu"))
    ours = model(**batch).logits.softmax(-1).detach().numpy()
    np.testing.assert_allclose(ours, peer.predict_proba(features), atol=1e-4)


def test_classes_that_a_word_tells_are_learned(encoder: str, topics: dict[str, str], tmp_path: Path) -> None:
    found = run(configure(tmp_path, "classification", encoder, **topics, baselines=["majority", "word_vectors"]))
    assert found["baselines"]["word_vectors"] > 0.9 > found["baselines"]["majority"]
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == found


def test_a_pair_is_compared_text_by_text(encoder: str, topics: dict[str, str], tmp_path: Path) -> None:
    """The features are [u, v, |u - v|, u * v] of the two texts' own means, whatever padding the batch has."""
    rows = rows_of(topics["train"])
    pairs = [(a, rows[(i * 7 + 1) % len(rows)]) for i, a in enumerate(rows)]
    texts = [{"text_a": a["text"], "text_b": b["text"], "label": "x" if len(a["text"]) > 60 else "y"} for a, b in pairs]
    config = configure(tmp_path, "classification", encoder, train=write(tmp_path / "t.jsonl", texts), dev=topics["dev"])
    loaded = read_training_rows(config)
    task = TASKS[config.task].from_training_rows(config, load_inputs(encoder), loaded)
    examples = task.encode(loaded[:8], training=True)
    model = word_vector_model(task, encoder, examples)
    ids = task.inputs.pad([example.encodings[0] for example in examples], torch.device("cpu"))["input_ids"]
    u, v = (means(encoder, [row[name] for row in texts[:8]]) for name in ("text_a", "text_b"))
    expected = np.concatenate([u, v, np.abs(u - v), u * v], 1)
    np.testing.assert_allclose(model.features(ids).numpy(), expected, atol=1e-6)


def test_tagging_learns_the_words(encoder: str, tmp_path: Path) -> None:
    words = {"apple": "B-FRUIT", "hammer": "B-TOOL", "the": "O", "old": "O", "screwdriver": "B-TOOL"}
    rows = [{"tokens": list(words)[i % 5 :], "tags": list(words.values())[i % 5 :]} for i in range(30)]
    path = write(tmp_path / "t.jsonl", rows)
    found = run(configure(tmp_path, "tagging", encoder, train=path, test=path))
    assert found["baselines"]["word_vectors"] == 1.0


def test_matching_is_the_cosine_of_means(encoder: str, topics: dict[str, str], tmp_path: Path) -> None:
    texts = [row["text"] for row in rows_of(topics["test"])]
    rows = [{"text_a": a, "text_b": texts[i - 7], "score": float(i % 6)} for i, a in enumerate(texts)]
    path = write(tmp_path / "t.jsonl", rows)
    found = run(configure(tmp_path, "matching", encoder, train=path, test=path))
    u, v = means(encoder, texts), means(encoder, [texts[i - 7] for i in range(len(texts))])
    cosines = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1)
    expected = spearmanr(cosines, [row["score"] for row in rows]).statistic
    assert found["baselines"]["word_vectors"] == pytest.approx(expected, abs=1e-6)


def test_where_there_is_nothing_to_learn_or_to_score_it_is_refused(encoder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="answering has no 'word_vectors'; allowed: from_scratch"):
        configure(tmp_path, "answering", encoder, train="x", test="x")
    with pytest.raises(ValueError, match="baselines: nothing to score them on; give dev or test"):
        configure(tmp_path, "classification", encoder, train="x")

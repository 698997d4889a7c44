"""What a folder says about itself: our finetune.json, a hub folder's config.json, a bare encoder's nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig

from finetune.folder.description import ModelDescription, describe_model


def test_a_description_is_read_as_it_was_written(tmp_path: Path) -> None:
    description = ModelDescription(task="matching", trained_on=["text"], pooling="max", temperature=0.05, max_length=64)
    (tmp_path / "finetune.json").write_text(description.to_json())
    assert json.loads(description.to_json()) == {
        "task": "matching", "kind": ["text"], "pooling": "max", "temperature": 0.05, "max_length": 64,
    }  # fmt: skip
    assert describe_model(str(tmp_path)) == description


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "finetune.json: the file: Invalid JSON"),
        ('{"task": "summaries"}', "finetune.json: task: Input should be 'classification'"),
        ('{"task": "tagging", "labels": [1]}', "finetune.json: labels.0: Input should be a valid string"),
    ],
)
def test_a_broken_description_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "finetune.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        describe_model(str(tmp_path))


@pytest.mark.parametrize(
    ("architecture", "head", "expected"),
    [
        ("modernbert", "ForSequenceClassification", ModelDescription(
            task="classification", labels=["no", "yes"], pooling="cls")),
        ("modernbert", "ForTokenClassification", ModelDescription(task="tagging", labels=["no", "yes"])),
        ("bert", "ForQuestionAnswering", ModelDescription(task="answering")),
        ("bert", "Model", ModelDescription()),
    ],
)  # fmt: skip
def test_a_folder_of_transformers_is_described_by_its_config(
    architecture: str, head: str, expected: ModelDescription, make_encoder: Callable[[str], str], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(make_encoder(architecture), folder)
    config = AutoConfig.from_pretrained(folder)
    config.update({"architectures": [f"Any{head}"], "id2label": {0: "no", 1: "yes"}})
    config.save_pretrained(folder)
    assert describe_model(str(folder)) == expected

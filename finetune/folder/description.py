"""What a model folder says about itself: its task, labels, pooling and length.

Folders that this package writes have it in `finetune.json`, as transformers' own files have no place for all of it; for
other folders it is read from `config.json` and the files of sentence-transformers. Users of a folder repeat none of it.
"""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs import InputError
from finetune.config import AnsweringConfig, Pooling, TaskName
from finetune.folder.load import load_model_config
from finetune.folder.pooling import stored_pooling

DESCRIPTION_FILE = "finetune.json"
TASK_OF_HEAD: dict[str, TaskName] = {
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "answering",
}


class ModelDescription(BaseModel):
    """The contents of `finetune.json`: a key that does not concern the task is absent there and None here."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    task: TaskName | None = None  # None: a bare encoder
    metric: str | None = None
    labels: list[str] | None = None  # class names or tags by id
    has_unanswerable: bool | None = None  # answering: the model may say that there is no answer
    answering: AnsweringConfig | None = None
    trained_on: list[str] | None = Field(default=None, alias="kind")  # matching: the roles of the training rows
    pooling: Pooling | None = None
    temperature: float | None = None
    max_length: int | None = None  # tokens

    def to_json(self) -> str:
        """The text of `finetune.json`."""
        return json.dumps(self.model_dump(by_alias=True, exclude_none=True), ensure_ascii=False, indent=2) + "\n"


def describe_model(folder: str) -> ModelDescription:
    """The description of a model folder; `task` is None for a bare encoder.

    InputError when its files cannot be read, or state a pooling that this package cannot do.
    """
    path = Path(folder) / DESCRIPTION_FILE
    if path.exists():
        return _read_description(path)
    config = load_model_config(folder)
    heads = [task for head, task in TASK_OF_HEAD.items() for name in config.architectures or () if name.endswith(head)]
    if not heads:
        return ModelDescription(pooling=stored_pooling(folder))
    labels = [config.id2label[i] for i in sorted(config.id2label)] if heads[0] != "answering" else None
    pooling = getattr(config, "classifier_pooling", None) if heads[0] == "classification" else None
    return ModelDescription(task=heads[0], labels=labels, pooling=pooling)


def _read_description(path: Path) -> ModelDescription:
    try:
        return ModelDescription.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise InputError(f"{path}: {key}: {first['msg']}") from None

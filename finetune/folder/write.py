"""Writing a model folder: plain transformers files and `finetune.json`; whole or absent."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs import InputError
from configs.atomic import folder_replacing
from finetune.folder.description import DESCRIPTION_FILE, ModelDescription
from finetune.reading.inputs import Inputs


@contextmanager
def new_model_folder(folder: Path, inputs: Inputs, description: ModelDescription) -> Iterator[Path]:
    """A folder for the block to fill with weights; it takes the place of `folder` when the block ends.

    Tokenizer and description are written here. InputError when `folder` exists and was not written by this package.
    """
    check_replaceable(folder)
    with folder_replacing(folder) as path:
        inputs.tokenizer.save_pretrained(path)
        (path / DESCRIPTION_FILE).write_text(
            description.model_copy(update={"max_length": inputs.max_length}).to_json(), encoding="utf-8"
        )
        yield path


def check_replaceable(folder: Path) -> None:
    """InputError unless `folder` is absent, empty or a model folder that this package wrote."""
    if folder.exists() and not (folder / DESCRIPTION_FILE).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder} exists and is not a model folder written by finetune; move it away or choose another"
        )

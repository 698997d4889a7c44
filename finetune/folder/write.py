"""A finished model folder: plain transformers files and `finetune.json`, the facts that no config of theirs has room
for.

Written under a temporary name and renamed, so a folder under its own name is whole.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from configs import InputError
from finetune.reading.inputs import Inputs

FACTS = "finetune.json"


def write_folder(
    model: Any, inputs: Inputs, folder: Path, facts: dict[str, Any], more: Callable[[Path], None] | None = None
) -> None:
    """Save model, tokenizer and `facts` as `folder`, replacing one of ours; `more(path)` may add files before it is
    done.

    InputError when `folder` exists and is not a model folder of ours: nothing that was there is harmed.
    """
    check_replaceable(folder)
    building = folder.with_name(folder.name + ".building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    model.save_pretrained(building)
    inputs.tokenizer.save_pretrained(building)
    if more:
        more(building)
    text = json.dumps({**facts, "max_length": inputs.max_length}, ensure_ascii=False, indent=2)
    (building / FACTS).write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)


def check_replaceable(folder: Path) -> None:
    """InputError unless `folder` is absent, empty or a model folder that this package wrote."""
    if folder.exists() and not (folder / FACTS).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(
            f"{folder} exists and is not a model folder written by finetune; move it away or choose another"
        )


def has_facts(folder: str) -> bool:
    """True for a folder that this package wrote."""
    return (Path(folder) / FACTS).exists()


def read_facts(folder: str) -> dict[str, Any]:
    """The facts of a folder that this package wrote; InputError when they cannot be read."""
    try:
        facts: dict[str, Any] = json.loads((Path(folder) / FACTS).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f"{folder}: cannot read its {FACTS}: {error}") from None
    return facts

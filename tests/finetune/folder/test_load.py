"""Limits of the model and the tokenizer are checked before any real tensor exists; broken folders are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from finetune.folder.load import load_inputs


@pytest.mark.parametrize("architecture", ["bert", "roberta_prelayernorm", "modernbert"])
def test_r24_a_max_length_beyond_the_positions_is_refused(
    architecture: str, make_encoder: Callable[[str], str]
) -> None:
    with pytest.raises(ValueError, match=r"max_length 65 is more than the 64 positions"):
        load_inputs(make_encoder(architecture), 65)


def test_r24_a_tokenizer_larger_than_the_embedding_is_refused(encoder: str, tmp_path: Path) -> None:
    folder = tmp_path / "grown"
    shutil.copytree(encoder, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = len(tokenizer)
    tokenizer.add_tokens(["newword"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match=rf"tokenizer has {size + 1} ids, the model's embedding only {size} rows"):
        load_inputs(str(folder))


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a model folder"):
        load_inputs(str(tmp_path))
    with pytest.raises(ValueError, match="no such model folder"):
        load_inputs(str(tmp_path / "nowhere"))


def test_a_tokenizer_without_specials_is_refused(encoder: str, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(encoder, folder)
    path = folder / "tokenizer_config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if not k.startswith(("cls", "sep"))}
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="the tokenizer has no CLS token"):
        load_inputs(str(folder))

"""Word beginnings for any fast tokenizer, and Chinese words."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.tokenizer.load import WORD_BEGINS, encode, load_tokenizer
from data.tokenizer.train import TokenizerConfig, train

TEXT = "Deba kula-meni, 我来到北京清华大学 naïve wo"


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def folder(request: Any, fx_text: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    output = str(tmp_path_factory.mktemp("words") / request.param)
    sources = [{"path": str(fx_text)}]
    values = {"output": output, "vocab_size": 384, "algorithm": request.param, "sources": sources}
    train(TokenizerConfig.model_validate(values))
    return output


def groups(folder: str, unit: str, text: str = TEXT) -> list[tuple[int, int]]:
    """Character ranges of the words, in the text."""
    loaded = load_tokenizer(folder, unit)
    [ids] = encode(loaded, [text])
    offsets = loaded.tokenizer.encode(text, add_special_tokens=False).offsets
    begins = [*np.flatnonzero(ids & WORD_BEGINS).tolist(), len(ids)]
    return [(min(a for a, _ in offsets[i:j]), max(b for _, b in offsets[i:j])) for i, j in itertools.pairwise(begins)]


def test_ids_are_those_without_words(folder: str) -> None:
    [plain] = encode(load_tokenizer(folder), [TEXT])
    for unit in ("word", "span", "chinese_word"):
        [ids] = encode(load_tokenizer(folder, unit), [TEXT])
        assert (ids & (WORD_BEGINS - np.uint32(1))).tolist() == plain.tolist()
        assert ids[0] >= WORD_BEGINS


def test_a_word_begins_where_the_tokenizer_says(folder: str) -> None:
    words = [TEXT[a:b].strip() for a, b in groups(folder, "word")]
    assert "Deba" in words
    assert "naïve" in words
    assert [c for c in "我来到北京清华大学" if c not in words] == []


def test_chinese_words_are_those_of_jieba(folder: str) -> None:
    words = [TEXT[a:b].strip() for a, b in groups(folder, "chinese_word")]
    assert [word for word in words if word and word[0] >= "\u4e00"] == ["我", "来到", "北京", "清华大学"]
    assert "Deba" in words
    assert encode(load_tokenizer(folder, "chinese_word"), ["", "今"])[0].tolist() == []

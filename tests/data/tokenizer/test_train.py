"""The tokenizer command: roles, template, Chinese, determinism, sizes; loaded as a user loads it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import data.tokenizer.train
from data.tokenizer.train import TokenizerConfig, train


def trained(folder: Path, source: Path, **changes: Any) -> dict[str, Any]:
    values = {"output": str(folder), "vocab_size": 512, "sources": [{"path": str(source)}], **changes}
    return train(TokenizerConfig.model_validate(values))


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def folder(request: Any, fx_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp(request.param) / "tokenizer"
    trained(output, fx_text, algorithm=request.param)
    return output


def test_r25_roles_and_boundaries_survive_train_save_load(folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [getattr(tokenizer, f"{role}_token_id") for role in ("pad", "unk", "cls", "sep", "mask")]
    assert None not in ids
    assert len(set(ids)) == 5
    encoded = tokenizer("x").input_ids
    assert encoded[0] == tokenizer.cls_token_id
    assert encoded[-1] == tokenizer.sep_token_id
    assert tokenizer.encode("[MASK]", add_special_tokens=False) == [tokenizer.mask_token_id]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "Café 今天天气 😀 deba, [MASK]!"
    assert again(text) == tokenizer(text)
    assert again.mask_token_id == tokenizer.mask_token_id


def test_r26_chinese_characters_one_by_one_with_offsets_in_the_original(folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path)
    for loaded in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        text = "今天天气很好"
        encoded = loaded(text, return_offsets_mapping=True, add_special_tokens=False)
        tokens = [offset for offset in encoded["offset_mapping"] if offset[1] > offset[0]]
        if folder.parent.name.startswith("wordpiece"):
            assert tokens == [(i, i + 1) for i in range(6)]
        assert max(end - start for start, end in tokens) == 1
        if folder.parent.name.startswith("unigram"):
            continue  # its leading ▁ shares the offsets of the first character
        text = "Café 今天 naïve"
        encoded = loaded(text, return_offsets_mapping=True, add_special_tokens=False)
        assert "".join(text[a:b] for a, b in encoded["offset_mapping"]).replace(" ", "").startswith("Café今天")


def test_r26_rare_characters_are_unknown_and_reported(tmp_path: Path) -> None:
    source = tmp_path / "rare.txt"
    source.write_text("今天天气很好 " * 400 + "龘\n", encoding="utf-8")
    report = trained(tmp_path / "t", source, character_coverage=0.9995)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert tokenizer.tokenize("今龘") == ["今", "[UNK]"]
    assert report["sources"][str(source)]["unknown_rate"] == pytest.approx(1 / 2401, abs=1e-6)


def test_r27_pairs_have_segment_ids(folder: Path) -> None:
    encoded = AutoTokenizer.from_pretrained(folder)(["deba", "go"], ["kula meni", "fi"], padding=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for ids, segments in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True):
        first = ids.index(tokenizer.sep_token_id)
        last = ids.index(tokenizer.sep_token_id, first + 1)
        assert segments == [0] * (first + 1) + [1] * (last - first) + [0] * (len(ids) - last - 1)


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_the_same_text_gives_the_same_files(tmp_path: Path, root: Path, fx_text: Path, algorithm: str) -> None:
    """In fresh processes: hash maps are ordered at random in each."""
    config = {"vocab_size": 320, "algorithm": algorithm, "sources": [{"path": str(fx_text)}]}
    (tmp_path / "c.yaml").write_text(json.dumps({"output": "", **config}))
    found = []
    for name in ("a", "b"):
        command = [sys.executable, "-m", "data.tokenizer", str(tmp_path / "c.yaml"), f"output={tmp_path / name}"]
        subprocess.run(command, cwd=root, check=True, capture_output=True)
        found.append((tmp_path / name / "tokenizer.json").read_text())
    assert found[0] == found[1]


def test_unigram_scored_anew_cuts_text_as_well_as_the_trainer_does(
    tmp_path: Path, fx_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []
    for name in ("ours", "theirs"):
        report = trained(tmp_path / name, fx_text, algorithm="unigram")
        lengths.append(report["sources"][str(fx_text)]["tokens"])
        monkeypatch.setattr(data.tokenizer.train, "rescore", lambda *_: None)
    assert lengths[0] < 1.01 * lengths[1]
    entries = [
        {entry for entry, _ in json.loads((tmp_path / name / "tokenizer.json").read_text())["model"]["vocab"]}
        for name in ("ours", "theirs")
    ]
    assert entries[0] == entries[1]


def test_size_is_rounded_up_to_64_and_never_exceeded(tmp_path: Path, fx_text: Path) -> None:
    report = trained(tmp_path / "t", fx_text, vocab_size=500)
    assert report["vocab_size"] == len(AutoTokenizer.from_pretrained(tmp_path / "t")) == 512
    assert json.loads((tmp_path / "t" / "report.json").read_text()) == report


def test_cased_keeps_case_and_accents(tmp_path: Path, fx_text: Path) -> None:
    trained(tmp_path / "t", fx_text, lowercase=False)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert tokenizer.tokenize("Café") != tokenizer.tokenize("cafe")
    assert "é" in "".join(tokenizer.tokenize("Café"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 64}, "too small for the alphabet"),
        ({"sources": [{"path": "/nowhere/*.txt"}]}, "matches no file"),
        ({"sources": []}, "'sources' is required"),
        ({"output": "/proc/none"}, "cannot write"),
    ],
)
def test_what_cannot_work_is_one_clear_error(tmp_path: Path, fx_text: Path, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trained(tmp_path / "t", fx_text, **changes)


def test_an_existing_folder_or_vocabulary_is_taken_as_it_is(tmp_path: Path, fx_text: Path, tokenizer: str) -> None:
    trained(tmp_path / "copy", fx_text, existing=tokenizer)
    text = "deba kula 今天 [MASK]"
    assert AutoTokenizer.from_pretrained(tmp_path / "copy")(text) == AutoTokenizer.from_pretrained(tokenizer)(text)
    vocabulary = AutoTokenizer.from_pretrained(tokenizer).get_vocab()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)), encoding="utf-8")
    trained(tmp_path / "own", fx_text, existing=str(tmp_path / "vocab.txt"))
    assert AutoTokenizer.from_pretrained(tmp_path / "own")(text) == AutoTokenizer.from_pretrained(tokenizer)(text)
    (tmp_path / "short.txt").write_text("a\nb\n[UNK]\n")
    with pytest.raises(ValueError, match=r"lacks the entries \[PAD\], \[CLS\]"):
        trained(tmp_path / "bad", fx_text, existing=str(tmp_path / "short.txt"))

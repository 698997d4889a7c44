"""Texts are truncated to the limit and keep their last SEP; pairs have segment ids where the model has them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from finetune.folder.load import load_inputs, quiet_transformers

quiet_transformers()
ARCHITECTURES = ["bert", "roberta_prelayernorm", "modernbert"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_r24_every_length_fits_and_keeps_its_last_sep(architecture: str, make_encoder: Callable[[str], str]) -> None:
    folder = make_encoder(architecture)
    inputs = load_inputs(folder, 64)
    model = AutoModel.from_pretrained(folder).eval()
    for words, tokens, cut in ((60, 62, 0), (62, 64, 0), (63, 64, 1), (5000, 64, 1)):
        inputs.truncated = 0
        encoding = inputs.encode(["rain " * words])[0]
        assert len(encoding["input_ids"]) == tokens
        assert encoding["input_ids"][-1] == inputs.tokenizer.sep_token_id
        assert inputs.truncated == cut
        with torch.no_grad():
            states = model(**inputs.pad([encoding], torch.device("cpu"))).last_hidden_state
        assert states.isfinite().all()


@pytest.mark.parametrize("architecture", ["bert", "roberta_prelayernorm"])
def test_r27_pairs_have_segment_ids_here_and_in_the_saved_tokenizer(
    architecture: str, make_encoder: Callable[[str], str], tmp_path: Path
) -> None:
    inputs = load_inputs(make_encoder(architecture))
    pair, longer = inputs.encode(["rain snow", "rain snow hail"], ["big apple", "big small old apple"])
    batch = inputs.pad([pair, longer], torch.device("cpu"))
    first = pair["input_ids"].index(inputs.tokenizer.sep_token_id)
    length = len(pair["input_ids"])
    expected = [0] * (first + 1) + [1] * (length - first - 1)
    assert batch["token_type_ids"][0].tolist() == expected + [0] * (len(longer["input_ids"]) - length)
    assert batch["attention_mask"][0].tolist() == [1] * length + [0] * (len(longer["input_ids"]) - length)
    inputs.tokenizer.save_pretrained(tmp_path)
    by_default = AutoTokenizer.from_pretrained(tmp_path)("rain snow", "big apple")
    assert by_default["token_type_ids"] == pair["token_type_ids"]
    model = AutoModel.from_pretrained(make_encoder(architecture)).eval()
    with torch.no_grad():
        with_segments = model(**batch).last_hidden_state
        without = model(**{**batch, "token_type_ids": torch.zeros_like(batch["token_type_ids"])}).last_hidden_state
    assert (with_segments[0, :length] - without[0, :length]).abs().max() > 1e-4


def test_r27_a_model_without_segments_is_sent_none_and_says_so(make_encoder: Callable[[str], str]) -> None:
    inputs = load_inputs(make_encoder("modernbert"))
    assert not inputs.has_segments
    assert set(inputs.encode(["rain"], ["snow"])[0]) == {"input_ids"}
    assert "token_type_ids" not in inputs.tokenizer.model_input_names

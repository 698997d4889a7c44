"""`pretrain.inspect` on an exported folder: fill-ins, the table, the picture, and wrong arguments."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from encoder import Documents, EncoderConfig, MaskedLanguageModel
from encoder.huggingface.export import write_weights
from pretrain import inspect

SPECIALS = {
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
    "unk_token": "[UNK]",
}
WORDS = ["the", "cat", "sat", "on", "mat", "dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that knows one sentence, 'the cat sat on the mat', and its tokenizer."""
    ids = {token: number for number, token in enumerate([*SPECIALS.values(), *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    model = MaskedLanguageModel(EncoderConfig(num_layers=2, hidden_size=64, num_heads=2, vocab_size=64, max_length=16))
    sentence = torch.tensor(tokenizer.encode("the cat sat on the mat").ids)
    masked = torch.arange(1, 7)
    rows = sentence.repeat(6, 1)
    rows[torch.arange(6), masked] = 3
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(80):
        places = torch.arange(6) * 8 + masked
        loss = model(rows.flatten(), Documents.from_lengths([8] * 6), places, sentence[masked])
        optimizer.zero_grad()
        loss.loss_sum.backward()
        optimizer.step()
    write_weights(model.eval(), path)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIALS).save_pretrained(path)
    return path


def test_fill_ins_statistics_and_picture(folder, tmp_path, capsys):
    png = tmp_path / "maps" / "attention.png"
    inspect.main([str(folder), "the cat [MASK] on the mat", "layer=0", "head=1", "fill_ins=2", f"png={png}"])
    printed = capsys.readouterr().out
    assert "mask at token 3: sat" in printed
    assert "8 tokens; uniform attention has entropy 2.08" in printed
    assert png.read_bytes().startswith(b"\x89PNG")


def test_all_heads_of_the_last_layer_by_default(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    inspect.main([str(folder), "the dog"])
    printed = capsys.readouterr().out
    assert "no mask in the text" in printed
    assert "attention of layer 1: attention.png" in printed
    assert (tmp_path / "attention.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["layer=2"], "layer 2: the model has 2 layers"),
        (["head=2"], "head 2: the model has 2 heads"),
        (["heads=1"], "unknown key 'heads'; did you mean 'head'"),
    ],
)
def test_wrong_arguments_are_one_line(folder, arguments, message):
    with pytest.raises(ValueError, match=message):
        inspect.main([str(folder), "the cat", *arguments])


def test_r24_a_text_that_is_too_long_is_named(folder):
    with pytest.raises(ValueError, match="a document of 22 tokens is longer than the model's max_length of 16"):
        inspect.main([str(folder), "cat " * 20])

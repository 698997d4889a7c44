"""R15, R16: loading is strict, so a checkpoint with a wrapper's names or an empty tensor is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from encoder import load_model


def test_round_trip_is_bit_equal_and_keeps_the_tie(shape, tiny_model, write_checkpoint, tmp_path):
    model = tiny_model(shape)
    write_checkpoint(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == model.config
    assert loaded.head.weight is loaded.encoder.embeddings.word.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == model.config.num_parameters()


@pytest.mark.parametrize("wrap", ["module.{}", "_orig_mod.{}", "module._orig_mod.{}", "_orig_mod.module.{}"])
def test_r16_names_of_wrappers_are_refused(wrap, tiny_model, write_checkpoint, tmp_path):
    write_checkpoint(tiny_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({wrap.format(name): tensor for name, tensor in weights.items()}, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=rf"{len(weights)} missing.*{len(weights)} unexpected: {wrap.format('encoder')}"
    ):
        load_model(tmp_path)


def test_r16_a_renamed_key_is_an_error(tiny_model, write_checkpoint, tmp_path):
    write_checkpoint(tiny_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["module.head.bias"] = weights.pop("head.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 missing: head\.bias; 1 unexpected: module\.head\.bias"):
        load_model(tmp_path)


def test_weights_of_another_shape_are_refused(tiny_model, tiny_config, write_checkpoint, tmp_path):
    write_checkpoint(tiny_model(), tmp_path)
    (tmp_path / "encoder.json").write_text(tiny_config(vocab_size=256).model_dump_json())
    with pytest.raises(ValueError, match=r"2 of another shape: encoder\.embeddings\.word\.weight, head\.bias"):
        load_model(tmp_path)


def test_r15_an_empty_tensor_is_refused(tiny_model, write_checkpoint, tmp_path):
    write_checkpoint(tiny_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors") | {"head.dense.weight": torch.zeros(0)}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 of another shape: head\.dense\.weight"):
        load_model(tmp_path)


def test_broken_files_are_named(tiny_model, write_checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*encoder\.json: No such file"):
        load_model(tmp_path)
    write_checkpoint(tiny_model(), tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(ValueError, match=r"cannot read .*model\.safetensors"):
        load_model(tmp_path)
    values = json.loads((tmp_path / "encoder.json").read_text()) | {"num_layer": 3}
    (tmp_path / "encoder.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"encoder\.json: unknown key 'num_layer'; did you mean 'num_layers'"):
        load_model(tmp_path)

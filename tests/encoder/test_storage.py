"""R16: wrappers leave no trace in names, and loading is strict."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from encoder import load_model, save_model


def test_round_trip_is_bit_equal_and_keeps_the_tie(shape, tiny_model, tmp_path):
    model = tiny_model(shape)
    save_model(model.state_dict(), model.config, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == model.config
    assert loaded.head.weight is loaded.encoder.embeddings.word.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == model.config.num_parameters()
    assert all(tensor.dtype == torch.float32 for tensor in stored.values())


@pytest.mark.parametrize("wrap", ["module.{}", "_orig_mod.{}", "module._orig_mod.{}", "_orig_mod.module.{}"])
def test_r16_wrapper_prefixes_do_not_reach_the_file(wrap, tiny_model, tmp_path):
    model = tiny_model()
    save_model({wrap.format(name): tensor for name, tensor in model.state_dict().items()}, model.config, tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == set(model.state_dict()) - {"head.weight"}
    input_ids = torch.randint(0, 203, (2, 20))
    assert torch.equal(load_model(tmp_path).eval().logits(input_ids), model.eval().logits(input_ids))


def test_r16_compiled_model_saves_plain_names(tiny_model, tmp_path):
    model = tiny_model()
    save_model(torch.compile(model).state_dict(), model.config, tmp_path)
    assert torch.equal(load_model(tmp_path).head.weight, model.head.weight)


def test_r16_a_renamed_key_is_an_error(tiny_model, tmp_path):
    model = tiny_model()
    save_model(model.state_dict(), model.config, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["module.head.bias"] = weights.pop("head.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"1 missing: head\.bias; 1 unexpected: module\.head\.bias"):
        load_model(tmp_path)


def test_weights_of_another_shape_are_refused_before_they_are_written(tiny_model, tiny_config, tmp_path):
    model = tiny_model()
    with pytest.raises(ValueError, match=r"of another shape: encoder\.embeddings\.word\.weight, head\.bias"):
        save_model(model.state_dict(), tiny_config(vocab_size=256), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_r15_an_empty_tensor_is_refused(tiny_model, tmp_path):
    model = tiny_model()
    state = model.state_dict() | {"head.dense.weight": torch.zeros(0)}
    with pytest.raises(ValueError, match=r"of another shape: head\.dense\.weight"):
        save_model(state, model.config, tmp_path)


def test_broken_files_are_named(tiny_model, tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*encoder\.json: No such file"):
        load_model(tmp_path)
    model = tiny_model()
    save_model(model.state_dict(), model.config, tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights[:-10])
    with pytest.raises(ValueError, match=r"cannot read .*model\.safetensors"):
        load_model(tmp_path)
    values = json.loads((tmp_path / "encoder.json").read_text()) | {"num_layer": 3}
    (tmp_path / "encoder.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"encoder\.json: unknown key 'num_layer'; did you mean 'num_layers'"):
        load_model(tmp_path)

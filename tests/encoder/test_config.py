"""Impossible shapes are refused by name; what is left out follows what is given; counts are exact."""

import pytest
from torch import nn

from configs.loader import validate
from encoder import EncoderConfig, MaskedLanguageModel


def refuse(message, **values):
    with pytest.raises(ValueError, match=message):
        validate(EncoderConfig, values, "run.yaml: encoder")


def test_impossible_shapes_are_refused_by_name():
    refuse(r"num_heads \(3\) must divide hidden_size \(64\); allowed here: 1, 2, 4, 8", hidden_size=64, num_heads=3)
    refuse(r"hidden_size / num_heads \(33\) must be even", hidden_size=66, num_heads=2)
    refuse(r"local_window \(5\) must be even", local_window=5)
    refuse(r"unknown key 'num_layer'; did you mean 'num_layers'\?", num_layer=2)
    refuse(r"'norm': input should be 'pre' or 'post', not 'middle'", norm="middle")
    refuse(r"'hidden_dropout'", hidden_dropout=1.0)


@pytest.mark.parametrize(
    "values",
    [
        {"norm": "post", "position": "rope"},
        {"norm": "post", "activation": "geglu"},
        {"position": "learned", "activation": "swiglu"},
        {"position": "rope", "activation": "relu"},
        {"position": "none"},
        {"position": "learned", "local_window": 8},
        {"position": "sinusoidal", "embedding_scale": True},
        {"num_segments": 2},
    ],
)
def test_a_shape_that_transformers_lacks_is_refused_unless_it_is_research(values):
    refuse("no architecture in transformers.*exportable: false", **values)
    assert EncoderConfig(**values, exportable=False).huggingface_architecture is None


def test_position_and_activation_follow_each_other():
    assert (EncoderConfig().position, EncoderConfig().activation) == ("rope", "geglu")
    assert EncoderConfig(position="learned").activation == "gelu"
    assert EncoderConfig(activation="relu").position == "learned"
    assert EncoderConfig(activation="swiglu").position == "rope"
    assert EncoderConfig(norm="post").huggingface_architecture == "Bert"
    assert EncoderConfig.model_validate(EncoderConfig(norm="post").model_dump()) == EncoderConfig(norm="post")


def test_what_was_given_stays_told_from_what_was_filled_in():
    assert EncoderConfig(position="learned").model_fields_set == {"position"}
    assert EncoderConfig(norm="post", activation="relu").model_fields_set == {"norm", "activation"}
    assert EncoderConfig().model_fields_set == set()


def test_narrow_heads_warn():
    with pytest.warns(UserWarning, match="heads of width 16"):
        EncoderConfig(hidden_size=64, num_heads=4)


def test_unknown_sizes_are_asked_for():
    with pytest.raises(ValueError, match="vocab_size is not known yet"):
        MaskedLanguageModel(EncoderConfig())


def test_num_parameters_and_flops_count_what_is_there(shape, tiny_model):
    model = tiny_model(shape)
    config = model.config
    assert config.num_parameters() == sum(parameter.numel() for parameter in model.parameters())
    layers = [module for name, module in model.encoder.layers.named_modules() if isinstance(module, nn.Linear)]
    head = config.hidden_size * (config.hidden_size + config.vocab_size)
    last = model.encoder.layers[-1]
    on_masked = [last.attention.output, last.feed_forward.up, last.feed_forward.down]
    saved = 0.8 * sum(linear.weight.numel() for linear in on_masked)
    linear = 2 * (sum(layer.weight.numel() for layer in layers) - saved + 0.2 * head)
    local = [config.is_local(number) for number in range(config.num_layers)]
    seen = sum(min(40, config.local_window + 1) if is_local else 40 for is_local in local)
    expected = linear + 2 * 2 * config.hidden_size * seen  # scores and weighted sum
    assert config.flops_per_token(40, masked_fraction=0.2) == pytest.approx(expected)

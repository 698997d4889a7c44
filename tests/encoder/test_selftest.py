"""The self-check passes sound encoders of every kind, and each of its lines can fail."""

import math

import pytest
import torch
from torch.nn import functional as F

from encoder import EncoderConfig, attention, layers, model
from encoder import selftest as check

SIZE = {"num_layers": 3, "hidden_size": 96, "num_heads": 3, "vocab_size": 1000, "max_length": 64}
SHAPES = [
    {"position": "learned"},
    {"norm": "post", "position": "sinusoidal", "activation": "relu"},
    {"position": "rope", "local_window": 16},
    {"position": "none", "activation": "swiglu", "embedding_scale": True, "exportable": False},
]
QUICK = [name for name in check.CHECKS if name not in ("export is equal", "overfits 100 rows")]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", QUICK)
def test_sound_encoders_pass(name, shape):
    outcome = check.CHECKS[name](EncoderConfig(**SIZE, **shape))
    if shape["position"] == "none" and name == "order matters":
        assert outcome.passed is None
    else:
        assert outcome.passed, outcome.found


def leaky_packing(query, key, value, documents, window, dropout):
    heads_first = [x.transpose(0, 1)[None] for x in (query, key, value)]
    return F.scaled_dot_product_attention(*heads_first)[0].transpose(0, 1)


def leaky_padding(query, key, value, keep, window, dropout):
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (query, key, value))).transpose(1, 2)


def forgetful_checkpoint(layer, *inputs, use_reentrant):
    return torch.utils.checkpoint.checkpoint(layer, *inputs, use_reentrant=use_reentrant, preserve_rng_state=False)


FAULTS = {
    "packing does not leak": (attention, "grouped_attention", leaky_packing),
    "padding does not leak": (attention, "padded_attention", leaky_padding),
    "checkpointing is equal": (model, "checkpoint", forgetful_checkpoint),
    "order matters": (attention, "rotate", lambda x, rotation: x),
    "gradient reaches every parameter": (layers.FeedForward, "forward", lambda self, x: x),
    "initial loss is near ln V": (model, "initialise", lambda m, c: None),  # torch's own N(0, 1) embeddings
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_line_can_fail(name, monkeypatch):
    monkeypatch.setattr(*FAULTS[name])
    outcome = check.CHECKS[name](EncoderConfig(**SIZE))
    assert outcome.passed is False, outcome.found


def test_an_encoder_that_cannot_learn_does_not_overfit(monkeypatch):
    monkeypatch.setattr(check, "OVERFIT_STEPS", 5)
    outcome = check.check_overfits(EncoderConfig(**SIZE))
    assert outcome.passed is False
    assert f"{math.log(check.VOCAB_SIZE):.0f}" in outcome.found


def test_a_wrong_export_fails(monkeypatch):
    from encoder.huggingface import export

    right = export.to_huggingface

    def swapped(weights, config):
        first, second = (f"encoder.layers.{layer}.attention.output.weight" for layer in (0, 1))
        return right({**weights, first: weights[second], second: weights[first]}, config)

    monkeypatch.setattr(export, "to_huggingface", swapped)
    outcome = check.check_export(EncoderConfig(**SIZE, position="learned"))
    assert outcome.passed is False
    assert "differs by more than 0.0001" in outcome.found


@pytest.mark.slow
def test_command_prints_a_line_a_check(root, capsys):
    assert check.main([str(root / "configs" / "quickstart.yaml"), "encoder.vocab_size=1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[1:-1]] == [f"pass  {name}" for name in check.CHECKS]
    assert lines[-1] == "all checks passed"


def test_bad_input_is_one_line(root):
    with pytest.raises(ValueError, match="usage: python -m pretrain"):
        check.main([])
    with pytest.raises(ValueError, match=r"unknown key 'encoder\.num_layer'"):
        check.main([str(root / "configs" / "quickstart.yaml"), "encoder.num_layer=3"])

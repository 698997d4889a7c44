"""The weights that are shown are those that the kernels use, and the statistics are what they say."""

import math

import torch

from encoder.inspection import look_inside


def test_shown_attention_is_the_attention_in_use(shape, tiny_model):
    model = tiny_model(shape)
    input_ids = torch.randint(5, 203, (30,))
    seen = []
    for layer in model.encoder.layers:
        layer.attention.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs, output)))
    logits, views = look_inside(model, input_ids)
    assert model.training
    with torch.no_grad():
        assert torch.equal(logits, model.eval().logits(input_ids[None])[0])
        for view, (attention, (x, _, rotation, _), output) in zip(views, seen, strict=False):
            value = attention._heads(x[0], rotation)[2]
            attended = torch.einsum("aqk,kad->qad", view.attention, value).flatten(-2)
            assert torch.allclose(attention.output(attended), output[0], atol=1e-5)


def test_entropy_of_uniform_attention_is_ln_t(tiny_model):
    model = tiny_model("pre-learned-gelu", hidden_dropout=0.5)
    with torch.no_grad():
        model.encoder.layers[0].attention.qkv.weight.zero_()
    _, views = look_inside(model, torch.randint(5, 203, (20,)))
    assert torch.allclose(views[0].entropy, torch.full((2,), math.log(20)), atol=1e-5)
    assert (views[1].entropy < math.log(20) - 1e-4).all()
    assert 0 < views[0].active < 1
    assert views[0].hidden_max < views[0].hidden_norm * 10

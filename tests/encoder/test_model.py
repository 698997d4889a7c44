"""Packed, padded and alone are the same; the loss is exact; the model starts at ln V and learns."""

import math

import pytest
import torch
from torch.nn import functional as F

from encoder import Documents, EncoderConfig, MaskedLanguageModel

LENGTHS = [[7, 12, 1, 20], [40], [3, 3, 30, 7]]
ROW = 48


def packed_batch(seed=0):
    """Three packed rows whose ends are empty, and where their documents stand."""
    torch.manual_seed(seed)
    input_ids = torch.randint(5, 203, (len(LENGTHS) * ROW,))
    spans = []
    for row, pieces in enumerate(LENGTHS):
        start = row * ROW
        for length in pieces:
            spans.append(slice(start, start + length))
            start += length
    return input_ids, spans


def relative(left, right):
    return float((left - right).abs().max() / right.abs().max().clamp_min(1e-6))


def test_packed_padded_and_alone_agree_in_values_and_gradients(shape, tiny_model):
    model = tiny_model(shape)
    input_ids, spans = packed_batch()
    pads = max(span.stop - span.start for span in spans) + 5
    padded = torch.full((len(spans), pads), 0)
    keep = torch.zeros(padded.shape, dtype=torch.bool)
    for number, span in enumerate(spans):
        padded[number, : span.stop - span.start] = input_ids[span]
        keep[number, : span.stop - span.start] = True
    packed = model.encoder(input_ids, Documents.from_piece_lengths(LENGTHS, ROW))
    ways = {
        "packed": torch.cat([packed[span] for span in spans]),
        "padded": model.encoder.hidden(padded, keep)[keep],
        "alone": torch.cat([model.encoder.hidden(input_ids[span][None])[0] for span in spans]),
    }
    weights = torch.randn_like(ways["alone"])
    gradients = {}
    for way, hidden in ways.items():
        model.zero_grad()
        (hidden * weights).sum().backward()
        gradients[way] = torch.cat([p.grad.flatten() for p in model.encoder.parameters()])
    for way in ("packed", "padded"):
        assert (ways[way] - ways["alone"]).abs().max() <= 1e-5
        assert relative(gradients[way], gradients["alone"]) <= 1e-5


def test_loss_is_cross_entropy_of_the_masked_tokens(shape, tiny_model):
    model = tiny_model(shape)
    input_ids, _ = packed_batch()
    documents = Documents.from_piece_lengths(LENGTHS, ROW)
    masked = torch.tensor([100, 3, 9, 40, 50, 97])
    targets = input_ids[masked]
    for smoothing in (0.0, 0.1):
        loss = model(input_ids, documents, masked, targets, smoothing)
        logits = model.head.logits(model.encoder(input_ids, documents))[masked]
        expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
        assert torch.allclose(loss.loss_sum, expected, rtol=1e-5)
        assert loss.num_correct == (logits.argmax(-1) == targets).sum()
        gradients = []
        for way in (loss.loss_sum, expected):
            model.zero_grad()
            way.backward()
            gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
        assert relative(*gradients) <= 1e-5  # computing masked tokens only loses nothing


def test_r02_no_masked_token_gives_loss_zero_and_a_gradient_everywhere(shape, tiny_model):
    model = tiny_model(shape)
    input_ids, _ = packed_batch()
    nothing = torch.zeros(0, dtype=torch.int64)
    loss = model(input_ids, Documents.from_piece_lengths(LENGTHS, ROW), nothing, nothing)
    loss.loss_sum.backward()
    assert loss.loss_sum.item() == 0.0
    assert loss.num_correct.item() == 0
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize("size", [{"hidden_size": 64}, {"hidden_size": 768, "num_heads": 12}])
@pytest.mark.parametrize("initialisation", ["truncated_normal", "xavier", "normal", "small_output"])
def test_initial_loss_is_ln_v(size, initialisation):
    torch.manual_seed(0)
    config = EncoderConfig(num_layers=2, num_heads=2, vocab_size=8192, max_length=64, initialisation=initialisation)
    model = MaskedLanguageModel(config.model_copy(update=size))
    input_ids = torch.randint(0, 8192, (512,))
    masked = torch.arange(0, 512, 3)
    with torch.no_grad():
        loss = model(input_ids, Documents.from_lengths([64] * 8), masked, input_ids[masked])
    assert abs(loss.loss_sum.item() / len(masked) - math.log(8192)) <= 0.3


@pytest.mark.parametrize("shape", ["pre-learned-gelu", "post-learned-gelu", "rope-geglu"])
def test_overfits_100_rows(shape, tiny_model, tiny_config):
    torch.manual_seed(0)
    model = MaskedLanguageModel(tiny_config(shape, hidden_size=64, max_length=16))
    input_ids = torch.randint(5, 203, (100 * 16,))
    documents = Documents.from_piece_lengths([[16]] * 100, 16)
    masked = torch.arange(3, 1600, 8)
    targets = input_ids[masked].clone()
    input_ids[masked] = 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    for _ in range(150):
        loss = model(input_ids, documents, masked, targets)
        optimizer.zero_grad()
        (loss.loss_sum / len(masked)).backward()
        optimizer.step()
    assert loss.loss_sum.item() / len(masked) < 0.05
    assert loss.num_correct.item() == len(masked)


def test_rope_bases_change_without_the_weights(tiny_model):
    model, input_ids = tiny_model("rope-geglu-local").eval(), torch.randint(5, 203, (2, 40))
    for bases in ({"rope_base": 1e6, "local_rope_base": 2e4}, {"rope_base": 500.0, "local_rope_base": 1e4}):
        expected = tiny_model("rope-geglu-local", **bases).eval()
        before = model.logits(input_ids)
        model.encoder.set_rope_bases(expected.config)
        assert model.config == expected.config
        assert torch.equal(model.logits(input_ids), expected.logits(input_ids))
        assert not torch.equal(model.logits(input_ids), before)

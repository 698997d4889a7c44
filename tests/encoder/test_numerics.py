"""R21 (fully masked rows), R23 (gradient checkpointing), R24 (bounds), dropout's places and kernels."""

import itertools
import warnings

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen

from encoder import Documents, attention, attention_kernel

ROW = 48


def batch(rows=3):
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(5, 203, (rows * ROW,), generator=generator)
    documents = Documents.from_piece_lengths([[20, 25], [48], [7, 7, 30]] * (rows // 3), ROW)
    masked = torch.arange(2, rows * ROW - 5, 6)
    return input_ids, documents, masked, input_ids[masked]


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_r21_fully_padded_row_gives_zeros_and_finite_gradients(shape, backend, tiny_model):
    model = tiny_model(shape)
    input_ids = torch.randint(5, 203, (3, 24))
    keep = torch.ones(3, 24, dtype=torch.bool)
    keep[0, 4:] = False
    keep[1] = False
    with sdpa_kernel([backend, SDPBackend.MATH]):
        hidden = model.encoder.hidden(input_ids, keep)
        logits = model.logits(input_ids, keep)
        (hidden.square().sum() + logits.square().sum()).backward()
        without = model.encoder.hidden(input_ids[[0, 2]], keep[[0, 2]])
    assert torch.equal(hidden[1], torch.zeros_like(hidden[1]))
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert (hidden[[0, 2]] - without).abs().max() <= 1e-5


@pytest.mark.parametrize("every", [1, 2])
def test_r23_checkpointing_changes_neither_loss_nor_gradients(shape, every, tiny_model):
    dropout = {"embedding_dropout": 0.1, "hidden_dropout": 0.1, "attention_dropout": 0.1}
    found = []
    for gradient_checkpointing in (0, every):
        model = tiny_model(shape, num_layers=3, gradient_checkpointing=gradient_checkpointing, **dropout)
        torch.manual_seed(7)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # re-entrant checkpointing would warn that no input needs a gradient
            loss = model(*batch())
            loss.loss_sum.backward()
        found.append((loss, {name: parameter.grad for name, parameter in model.named_parameters()}))
    (plain, gradients), (recomputed, others) = found
    assert torch.equal(plain.loss_sum, recomputed.loss_sum)
    for name, gradient in gradients.items():
        assert others[name] is not None, name
        assert (gradient - others[name]).abs().max() <= 1e-6, name


def saved_bytes(model, inputs):
    """Bytes that autograd keeps from the forward pass, parameters left out."""
    kept = {}
    own = {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor):
        if tensor.data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(*inputs)
    return sum(kept.values()), loss


def test_r23_checkpointing_keeps_less(tiny_model):
    inputs = batch(rows=12)
    kept = {}
    for every in (0, 2, 1):
        kept[every], loss = saved_bytes(tiny_model("rope-geglu", num_layers=8, gradient_checkpointing=every), inputs)
        loss.loss_sum.backward()
    assert kept[2] < 0.65 * kept[0]
    assert kept[1] < 0.25 * kept[0]


def test_dropout_acts_in_each_of_its_three_places(tiny_model):
    inputs = batch()
    losses = {}
    for place in ("", "embedding_dropout", "hidden_dropout", "attention_dropout"):
        model = tiny_model("rope-geglu", **({place: 0.3} if place else {}))
        torch.manual_seed(0)
        first = model(*inputs).loss_sum
        torch.manual_seed(0)
        assert torch.equal(model(*inputs).loss_sum, first)
        losses[place] = first.item()
        with torch.no_grad():
            assert model.eval()(*inputs).loss_sum.item() == pytest.approx(losses[""], rel=1e-6)
    assert len(set(losses.values())) == 4


@pytest.mark.parametrize("shape", ["pre-learned-gelu", "post-sinusoidal-relu", "rope-geglu"])
def test_r24_too_long_or_past_the_table_is_an_error_before_any_computation(shape, tiny_model):
    model = tiny_model(shape)
    exact = torch.randint(5, 203, (1, 48))
    assert model.logits(exact).shape == (1, 48, 203)
    assert model.encoder(exact[0], Documents.from_lengths([48])).shape == (48, 72)
    for length in (49, 5_000):
        ids = torch.randint(5, 203, (length,))
        message = f"a document of {length} tokens is longer than the model's max_length of 48"
        with pytest.raises(ValueError, match=message):
            model.logits(ids[None])
        with pytest.raises(ValueError, match=message):
            model(ids, Documents.from_lengths([length]), ids[:1], ids[:1])
    for wrong in (203, -1):
        exact[0, 7] = wrong
        with pytest.raises(ValueError, match=f"token id {wrong} is outside the word embedding of vocab_size 203"):
            model.logits(exact)


def reference_varlen(query, key, value, starts, key_starts, longest, key_longest, *, window_size=(-1, -1)):
    """What torch's variable-length kernel computes, by its documentation, document by document."""
    assert starts is key_starts
    assert starts.dtype == torch.int32
    assert int(starts.diff().max()) == longest == key_longest
    out = torch.empty_like(query)
    for start, end in itertools.pairwise(starts.tolist()):
        q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))
        positions = torch.arange(end - start)
        apart = positions[:, None] - positions[None, :]
        seen = torch.ones_like(apart, dtype=torch.bool)
        if window_size != (-1, -1):
            seen = (apart <= window_size[0]) & (apart >= -window_size[1])
        out[start:end] = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen).transpose(0, 1)
    return out


def test_varlen_path_computes_the_same(shape, tiny_model, monkeypatch):
    model = tiny_model(shape)
    with torch.no_grad():
        grouped = model(*batch()).loss_sum
        monkeypatch.setattr(attention, "attention_kernel", lambda *_: "varlen")
        monkeypatch.setattr(varlen, "varlen_attn", reference_varlen)
        assert model(*batch()).loss_sum.item() == pytest.approx(grouped.item(), rel=1e-5)


def test_kernel_is_named_by_what_it_can_do(tiny_config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    plain, dropping = tiny_config(hidden_size=64), tiny_config(hidden_size=64, attention_dropout=0.1)
    assert attention_kernel("cpu", torch.float32, plain) == "grouped"
    assert attention_kernel("cuda", torch.bfloat16, plain) == "varlen"
    assert attention_kernel("cuda", torch.float32, plain) == "grouped"
    assert attention_kernel("cuda", torch.bfloat16, dropping) == "grouped"  # the flash kernel has no dropout
    assert (
        attention_kernel("cuda", torch.bfloat16, tiny_config()) == "grouped"
    )  # heads of width 36: not a multiple of 8


@pytest.mark.parametrize(
    ("capability", "kernel"), [((7, 0), "grouped"), ((7, 5), "grouped"), ((8, 0), "varlen"), ((12, 0), "varlen")]
)
def test_cards_before_ampere_get_the_grouped_kernel(capability, kernel, tiny_config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    config = tiny_config(hidden_size=64)
    assert attention_kernel(torch.device("cuda", 1), torch.bfloat16, config) == kernel

    @torch.compile(backend="eager", fullgraph=True)  # the choice is no break in the graph of a compiled layer
    def compiled(x):
        return x + 1 if attention_kernel(torch.device("cuda", 1), torch.bfloat16, config) == "varlen" else x

    torch._dynamo.reset()
    assert compiled(torch.zeros(1)).item() == (1.0 if kernel == "varlen" else 0.0)


def test_bfloat16_by_autocast_and_by_weights_stays_near_float32(shape, tiny_model):
    model = tiny_model(shape)
    exact = model(*batch()).loss_sum.item()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(*batch()).loss_sum
    mixed.backward()
    half = model.bfloat16()(*batch()).loss_sum
    half.backward()
    for loss in (mixed, half):
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact, rel=0.02)

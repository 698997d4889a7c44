"""On a CUDA device: the flash kernel equals the others, padding is finite under every backend, and it is fast."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from encoder import Documents, EncoderConfig, MaskedLanguageModel, attention_kernel
from encoder import attention as attention_module

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SIZE = {"num_layers": 2, "hidden_size": 128, "num_heads": 2, "vocab_size": 512, "max_length": 256}
SHAPES = [{"position": "learned"}, {"position": "rope"}, {"position": "rope", "local_window": 32, "global_every": 2}]
LENGTHS = [[100, 150], [256], [3, 60, 1, 190], [128, 128]]


def batch():
    torch.manual_seed(0)
    input_ids = torch.randint(5, 512, (4 * 256,), device="cuda")
    masked = torch.arange(0, 4 * 256 - 10, 7, device="cuda")
    return input_ids, Documents.from_piece_lengths(LENGTHS, 256).to("cuda"), masked, input_ids[masked]


def loss_and_gradients(config, dtype=torch.bfloat16):
    torch.manual_seed(0)
    model = MaskedLanguageModel(config).cuda()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        loss = model(*batch()).loss_sum
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("shape", SHAPES)
def test_flash_equals_grouped_equals_float32(shape, monkeypatch):
    config = EncoderConfig(**SIZE, **shape)
    assert attention_kernel("cuda", torch.bfloat16, config) == "varlen"
    flash, flash_gradient = loss_and_gradients(config)
    exact, exact_gradient = loss_and_gradients(config, torch.float32)
    monkeypatch.setattr(attention_module, "attention_kernel", lambda *_: "grouped")
    grouped, grouped_gradient = loss_and_gradients(config)
    assert flash == pytest.approx(grouped, rel=2e-3)
    assert flash == pytest.approx(exact, rel=5e-3)
    for gradient in (flash_gradient, grouped_gradient):
        assert (gradient - exact_gradient).norm() <= 0.05 * exact_gradient.norm()


def test_flash_kernel_is_what_runs():
    model = MaskedLanguageModel(EncoderConfig(**SIZE)).cuda()
    inputs = batch()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile, torch.autocast("cuda"):
        model(*inputs).loss_sum.backward()
        torch.cuda.synchronize()
    names = [event.key.lower() for event in profile.key_averages()]
    assert any("flash" in name for name in names), names


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_r21_fully_padded_row_is_finite_under_every_backend(backend, dtype):
    model = MaskedLanguageModel(EncoderConfig(**SIZE)).cuda()
    input_ids = torch.randint(5, 512, (2, 64), device="cuda")
    keep = torch.ones(2, 64, dtype=torch.bool, device="cuda")
    keep[1] = False
    with sdpa_kernel([backend, SDPBackend.MATH]), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        hidden = model.encoder.hidden(input_ids, keep)
        hidden.float().square().sum().backward()
    assert not hidden[1].any()
    assert hidden.isfinite().all()
    gradients = [parameter.grad for parameter in model.encoder.parameters()]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_compiled_model_does_not_recompile():
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    model = MaskedLanguageModel(EncoderConfig(**SIZE)).cuda()
    compiled = torch.compile(model)
    graphs = []
    for step in range(12):
        lengths = [[40 + 3 * step, 150], [256 - 5 * step], [3, 60 + step, 190 - 2 * step]]
        input_ids = torch.randint(5, 512, (3 * 256,), device="cuda")
        masked = torch.arange(0, 300 + 7 * step, 3, device="cuda")
        documents = Documents.from_piece_lengths(lengths, 256).to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            found = compiled(input_ids, documents, masked, input_ids[masked]).loss_sum
            expected = model(input_ids, documents, masked, input_ids[masked]).loss_sum
        assert found.item() == pytest.approx(expected.item(), rel=2e-3)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[3] == graphs[-1]

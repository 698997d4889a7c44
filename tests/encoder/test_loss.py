"""The chunked loss is torch's cross-entropy, and the logits of all tokens never exist at once."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from encoder import loss as loss_module
from encoder.loss import chunked_cross_entropy


def leaves(num_tokens, dtype=torch.float32):
    torch.manual_seed(0)
    sizes = ((num_tokens, 24), (101, 24), (101,))
    hidden, weight, bias = (torch.randn(*size).to(dtype).requires_grad_() for size in sizes)
    return hidden, weight, bias, torch.randint(0, 101, (num_tokens,))


@pytest.mark.parametrize("chunk_tokens", [1, 7, 40, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_cross_entropy_in_value_and_gradients(chunk_tokens, smoothing, monkeypatch):
    monkeypatch.setitem(loss_module.CHUNK_ELEMENTS, "cpu", chunk_tokens * 101)
    hidden, weight, bias, targets = leaves(40)
    found = chunked_cross_entropy(hidden, weight, bias, targets, smoothing)
    (found.loss_sum / 3).backward()
    gradients = [tensor.grad.clone() for tensor in (hidden, weight, bias)]
    for tensor in (hidden, weight, bias):
        tensor.grad = None
    logits = F.linear(hidden, weight, bias)
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    (expected / 3).backward()
    assert torch.allclose(found.loss_sum, expected, rtol=1e-5)
    assert found.num_correct == (logits.argmax(-1) == targets).sum()
    for gradient, tensor in zip(gradients, (hidden, weight, bias), strict=True):
        assert torch.allclose(gradient, tensor.grad, atol=1e-5)


def test_autocast_and_half_parameters_agree_with_float32():
    hidden, weight, bias, targets = leaves(40)
    exact = chunked_cross_entropy(hidden, weight, bias, targets)
    exact.loss_sum.backward()
    expected = weight.grad.clone()
    weight.grad = None
    with torch.autocast("cpu", torch.bfloat16):
        mixed = chunked_cross_entropy(hidden, weight, bias, targets)
    mixed.loss_sum.backward()
    assert weight.grad.dtype == torch.float32
    assert mixed.loss_sum.item() == pytest.approx(exact.loss_sum.item(), rel=0.01)
    assert (weight.grad - expected).norm() <= 0.02 * expected.norm()
    half = chunked_cross_entropy(
        *(tensor.detach().bfloat16().requires_grad_() for tensor in (hidden, weight, bias)), targets
    )
    half.loss_sum.backward()
    assert half.loss_sum.dtype == torch.float32
    assert half.loss_sum.item() == pytest.approx(exact.loss_sum.item(), rel=0.01)


def test_without_gradients_nothing_is_kept():
    hidden, weight, bias, targets = leaves(40)
    with torch.no_grad():
        found = chunked_cross_entropy(hidden, weight, bias, targets)
    assert not found.loss_sum.requires_grad


MEASURE = """
import re, sys, torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from encoder.loss import chunked_cross_entropy
torch.set_num_threads(1)
hidden, weight, bias = (torch.randn(*s, requires_grad=True) for s in ((2000, 8), (50_000, 8), (50_000,)))
targets = torch.randint(0, 50_000, (2000,))
chunked_cross_entropy(hidden[:1], weight, bias, targets[:1]).loss_sum.backward()
# not ru_maxrss, which a child takes over from the process that started it
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
if sys.argv[1] == "chunked":
    chunked_cross_entropy(hidden, weight, bias, targets).loss_sum.backward()
else:
    F.cross_entropy(F.linear(hidden, weight, bias), targets, reduction="sum").backward()
print((peak() - before) / 1024)
"""


def test_peak_memory_is_far_below_the_logits_of_all_masked_tokens(root):
    full = 2000 * 50_000 * 4 / 2**20  # 381 MiB

    def peak(way):
        command = [sys.executable, "-c", MEASURE, way]
        return float(subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout)

    assert peak("chunked") < 0.35 * full
    assert peak("plain") > full  # the measurement sees what it is there to see


def test_a_tie_is_no_right_prediction():
    """A collapsed model gives every token the same logit: it has found nothing."""
    hidden, weight, bias = torch.zeros(6, 8), torch.zeros(11, 8), torch.zeros(11)
    assert chunked_cross_entropy(hidden, weight, bias, torch.arange(6)).num_correct == 0
    bias[3] = 1e-3
    assert chunked_cross_entropy(hidden, weight, bias, torch.full((6,), 3)).num_correct == 6


def test_evaluation_computes_no_gradient():
    products = torch.ops.aten.mm.out, torch.ops.aten.addmm_.default, torch.ops.aten.addmm.default

    class CountProducts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function in products
            return function(*args, **(kwargs or {}))

    counts = []
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled), CountProducts() as mode:
            chunked_cross_entropy(*leaves(40))
        counts.append(mode.count)
    assert counts == [3, 1]

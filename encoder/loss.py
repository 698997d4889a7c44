"""Cross-entropy over the vocabulary that never holds the logits of more than a chunk of tokens.

The gradients of a chunk are computed while its logits exist, in the forward pass: three matrix multiplications a
chunk, as many as plain cross-entropy takes, and memory for `CHUNK_ELEMENTS` logits. torch's own
`linear_cross_entropy` works alike but has neither label smoothing nor the count of right predictions, which would
take a second pass over the logits.

Shapes: M masked tokens, H hidden width, V vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_ELEMENTS = {"cpu": 2**23, "cuda": 2**27}  # logits of one chunk: 32 MiB and 512 MiB in float32


class MaskedLoss(NamedTuple):
    """Sums over the masked tokens of a batch; the step divides by the count of all ranks and micro-batches."""

    loss_sum: Tensor  # () float32
    num_correct: Tensor  # () int64: targets that are more probable than every other token


@torch.compiler.disable  # type: ignore[untyped-decorator]
def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, label_smoothing: float = 0.0
) -> MaskedLoss:
    """Sum of the cross-entropy of `hidden @ weight.T + bias` against `targets`.

    hidden (M, H), weight (V, H), bias (V,), targets (M,) int64. With M = 0 the loss is 0 and every gradient zero.
    """
    # inside a Function the gradient mode is off, so the caller's is passed in: without it no gradient is computed
    needs_gradients = torch.is_grad_enabled()
    loss_sum, num_correct = _ChunkedCrossEntropy.apply(hidden, weight, bias, targets, label_smoothing, needs_gradients)
    return MaskedLoss(loss_sum, num_correct)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        label_smoothing: float,
        needs_gradients: bool,
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        x, matrix, offset = hidden.to(dtype), weight.to(dtype), bias.to(dtype)
        gradients = None
        if needs_gradients and any(ctx.needs_input_grad):
            gradients = torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(bias)
        loss_sum = torch.zeros((), dtype=torch.float32, device=hidden.device)
        num_correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        size = max(1, CHUNK_ELEMENTS.get(device, CHUNK_ELEMENTS["cpu"]) // len(weight))
        with torch.autocast(device, enabled=False):
            for start in range(0, len(x), size):
                rows, target = x[start : start + size], targets[start : start + size]
                logits = F.linear(rows, matrix, offset).float()
                loss, correct = _replace_by_gradient(logits, target, label_smoothing)
                loss_sum += loss
                num_correct += correct
                if gradients:
                    gradient = logits.to(dtype)
                    torch.mm(gradient, matrix, out=gradients[0][start : start + size])
                    _add_product(gradients[1], gradient, rows)
                    gradients[2].add_(logits.sum(0))
        ctx.gradients = gradients
        ctx.hidden_dtype = hidden.dtype
        ctx.mark_non_differentiable(num_correct)
        return loss_sum, num_correct

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        assert ctx.gradients is not None, "backward runs once for each forward: the gradients are scaled in place"
        hidden, weight, bias = (gradient.mul_(upstream[0]) for gradient in ctx.gradients)
        ctx.gradients = None
        return hidden.to(ctx.hidden_dtype), weight, bias, None, None, None


def _replace_by_gradient(logits: Tensor, target: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed loss and number of right predictions of a chunk; its `logits` (m, V) become their gradient, in place.

    The maximum serves the count and the softmax, the exponentials serve the loss and the gradient: passes over the
    logits cost nearly as much as the matrix products.
    """
    index = target[:, None]
    right = logits.gather(1, index)
    largest_other = logits.scatter_(1, index, -torch.inf).amax(-1, keepdim=True)
    logits.scatter_(1, index, right)
    num_correct = (right > largest_other).sum()  # a tie is no right prediction: equal logits know nothing
    largest = torch.maximum(right, largest_other)
    loss = -(1 - label_smoothing) * right.sum()
    if label_smoothing:
        loss -= label_smoothing * logits.mean(-1).sum()
    total = logits.sub_(largest).exp_().sum(-1, keepdim=True)
    loss += (largest + total.log()).sum()
    logits.div_(total)
    logits.scatter_add_(1, index, torch.full_like(right, label_smoothing - 1))
    if label_smoothing:
        logits.sub_(label_smoothing / logits.shape[1])
    return loss, num_correct


def _add_product(total: Tensor, gradient: Tensor, rows: Tensor) -> None:
    """total (V, H) += gradient.T @ rows, without a temporary product where the types are the same."""
    if total.dtype == rows.dtype:
        total.addmm_(gradient.T, rows)
    else:
        total.add_(gradient.T @ rows)

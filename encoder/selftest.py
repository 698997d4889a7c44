"""Does an encoder of a configuration work? The command `python -m pretrain.check CONFIG [key=value …]`.

For people who change the encoder. The initial loss and the gradients are those of the full size; everything else runs
on the same shape made small (2 layers, 2 heads), so that the whole takes less than two minutes on a CPU.
"""

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from configs import Config, InputError, load_config
from encoder.config import EncoderConfig
from encoder.documents import Documents
from encoder.model import MaskedLanguageModel

VOCAB_SIZE, LENGTH = 503, 32  # of the small model; 503 is prime, so that no other size equals it by chance
TOLERANCE = 1e-5  # largest difference of hidden states and gradients that counts as equal, in float32
OVERFIT_STEPS = 200


class CheckConfig(Config):
    """The section of a run's configuration that the command reads."""

    encoder: EncoderConfig


class Outcome(NamedTuple):
    """What a check found; `passed` is None where the check does not apply."""

    passed: bool | None
    found: str


def check_initial_loss(config: EncoderConfig) -> Outcome:
    """A new model has no knowledge, so its loss is that of a uniform guess: near ln V, at full size."""
    loss, expected = _full_size_loss(config)[0], math.log(config.known_vocab_size)
    return Outcome(abs(loss - expected) <= 0.3, f"{loss:.2f}, ln V = {expected:.2f}, allowed ± 0.3")


def check_gradients(config: EncoderConfig) -> Outcome:
    """Every parameter has a finite gradient that is not zero, at full size."""
    model = _full_size_loss(config)[1]
    gradients = {name: _gradient(parameter) for name, parameter in model.named_parameters()}
    wrong = [name for name, gradient in gradients.items() if not gradient.any() or not gradient.isfinite().all()]
    return Outcome(not wrong, f"none, or not finite, for {', '.join(wrong[:5])}" if wrong else "all finite")


def check_padding(config: EncoderConfig) -> Outcome:
    """A document has the same hidden states alone and with padding behind it, whatever ids the padding has."""
    model = _small_model(config).eval()
    document = _tokens(1, LENGTH // 2)
    padded = [torch.cat([document, _tokens(1, LENGTH // 2, seed)], dim=1) for seed in (1, 2)]
    keep = torch.arange(LENGTH)[None] < LENGTH // 2
    with torch.no_grad():
        alone = model.encoder.hidden(document)
        beside = [model.encoder.hidden(ids, keep)[:, : LENGTH // 2] for ids in padded]
    return _equal("largest difference", max(_distance(alone, hidden) for hidden in beside))


def check_packing(config: EncoderConfig) -> Outcome:
    """A document has the same hidden states alone and packed beside others."""
    model = _small_model(config).eval()
    ids, lengths = _tokens(1, 2 * LENGTH)[0], [[5, LENGTH - 5], [LENGTH]]
    with torch.no_grad():
        packed = model.encoder(ids, Documents.from_piece_lengths(lengths, LENGTH))
        parts = zip(ids.split([5, LENGTH - 5, LENGTH]), packed.split([5, LENGTH - 5, LENGTH]), strict=True)
        difference = max(_distance(model.encoder.hidden(part[None])[0], hidden) for part, hidden in parts)
    return _equal("largest difference", difference)


def check_order(config: EncoderConfig) -> Outcome:
    """Reversing a document changes more than the order of its hidden states: the encoder knows positions."""
    if config.position == "none":
        return Outcome(None, "position: none")
    model, ids = _small_model(config).eval(), _tokens(1, LENGTH)
    with torch.no_grad():
        difference = _distance(model.encoder.hidden(ids), model.encoder.hidden(ids.flip(1)).flip(1))
    found = f"reversing changes hidden states by {difference:.1e}, more than {TOLERANCE:.0e} expected"
    return Outcome(difference > TOLERANCE, found)


def check_overfits(config: EncoderConfig) -> Outcome:
    """100 rows of random tokens are learned by heart."""
    model = _small_model(config)
    ids, documents = _tokens(1, 100 * LENGTH)[0], Documents.from_piece_lengths([[LENGTH]] * 100, LENGTH)
    masked = torch.arange(3, len(ids), LENGTH // 2)
    targets = ids[masked].clone()
    ids[masked] = 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(OVERFIT_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20)
        loss = model(ids, documents, masked, targets).loss_sum / len(masked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Outcome(loss.item() < 0.1, f"loss {loss.item():.3f} after {OVERFIT_STEPS} steps, below 0.1 expected")


def check_checkpointing(config: EncoderConfig) -> Outcome:
    """Recomputing layers changes neither the loss nor a gradient, with dropout on."""
    gradients = []
    for every in (0, 1):
        dropout = {"embedding_dropout": 0.1, "hidden_dropout": 0.1, "attention_dropout": 0.1}
        model = _small_model(config, gradient_checkpointing=every, **dropout)
        ids, masked = _tokens(1, 4 * LENGTH)[0], torch.arange(0, 4 * LENGTH, 5)
        torch.manual_seed(1)
        loss = model(ids, Documents.from_lengths([LENGTH] * 4), masked, ids[masked]).loss_sum
        loss.backward()
        gradients.append(torch.cat([loss.detach().view(1), *(_gradient(p).flatten() for p in model.parameters())]))
    scale = float(gradients[0].abs().max())
    return _equal("largest relative difference", _distance(*gradients) / scale)


def check_export(config: EncoderConfig) -> Outcome:
    """Plain AutoModel classes load the exported weights and give the same logits."""
    if config.huggingface_architecture is None:
        return Outcome(None, "no architecture of transformers has this shape (exportable: false)")
    from encoder.huggingface.export import prove, write_weights  # imports transformers, which takes seconds

    model = _small_model(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        write_weights(model, Path(folder))
        try:
            report = prove(model, Path(folder))
        except RuntimeError as error:
            return Outcome(False, str(error))
    architecture = config.huggingface_architecture
    return Outcome(True, f"{architecture}, largest difference of a logit {report['max_difference']:.1e}")


CHECKS: dict[str, Callable[[EncoderConfig], Outcome]] = {
    "initial loss is near ln V": check_initial_loss,
    "gradient reaches every parameter": check_gradients,
    "padding does not leak": check_padding,
    "packing does not leak": check_packing,
    "order matters": check_order,
    "overfits 100 rows": check_overfits,
    "checkpointing is equal": check_checkpointing,
    "export is equal": check_export,
}


def _full_size_loss(config: EncoderConfig) -> tuple[float, MaskedLanguageModel]:
    """Mean loss of a new model of the full size on random tokens, and the model with its gradients."""
    torch.manual_seed(0)
    model = MaskedLanguageModel(config)
    length = min(LENGTH, config.known_max_length)
    ids, masked = torch.randint(0, config.known_vocab_size, (8 * length,)), torch.arange(0, 8 * length, 2)
    loss = model(ids, Documents.from_lengths([length] * 8), masked, ids[masked]).loss_sum / len(masked)
    loss.backward()
    return loss.item(), model


def _small_model(config: EncoderConfig, **changes: float) -> MaskedLanguageModel:
    """The shape of `config` with 2 layers of 2 heads, no dropout, and biases and norms that are not just 0 and 1."""
    head = min(config.head_size, 32)
    small = {
        "num_layers": 2, "hidden_size": 2 * head, "num_heads": 2, "vocab_size": VOCAB_SIZE, "max_length": LENGTH,
        "ffn_size": max(8, round(2 * head * config.feed_forward_size / config.hidden_size)),
        "local_window": config.local_window and min(config.local_window, 8), "global_every": 2, "pad_id": 0,
        "embedding_dropout": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0, "gradient_checkpointing": 0,
    }  # fmt: skip
    torch.manual_seed(0)
    model = MaskedLanguageModel(config.model_copy(update=small | changes))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def _tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(5, VOCAB_SIZE, (rows, length), generator=torch.Generator().manual_seed(seed))


def _gradient(parameter: Tensor) -> Tensor:
    """The gradient of a parameter; NaN where the loss does not reach it, so that no comparison holds."""
    return torch.full_like(parameter, math.nan) if parameter.grad is None else parameter.grad


def _distance(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def _equal(what: str, difference: float) -> Outcome:
    return Outcome(difference <= TOLERANCE, f"{what} {difference:.1e}, at most {TOLERANCE:.0e} expected")


def main(arguments: list[str]) -> int:
    """Check the encoder of a run's configuration; one line a check, exit code 1 when one fails.

    usage: python -m pretrain.check CONFIG [key=value …]
    """
    if not arguments:
        raise InputError("usage: python -m pretrain.check CONFIG [key=value …]")
    shape = load_config(CheckConfig, arguments[0], arguments[1:], ignore_other_sections=True).encoder
    assumed = {"vocab_size": shape.vocab_size or 32_768, "max_length": shape.max_length or 512}
    shape = shape.model_copy(update=assumed)
    print(f"{shape.num_layers} layers of width {shape.hidden_size}, {shape.num_parameters():,} parameters, {assumed}")
    failed = 0
    words = {True: "pass", False: "FAIL", None: "skip"}
    for name, check in CHECKS.items():
        passed, found = check(shape)
        failed += passed is False
        print(f"{words[passed]}  {name}: {found}", flush=True)
    print(f"{failed} of {len(CHECKS)} checks failed" if failed else "all checks passed")
    return int(failed > 0)

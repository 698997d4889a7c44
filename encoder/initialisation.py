"""How weights start: linear and embedding weights by `encoder.initialisation`, biases zero, norms one."""

import math

from torch import Tensor, nn

from encoder.config import EncoderConfig

SMALL_OUTPUT = 0.1
HEAD_GAIN = 0.5


def initialise(model: nn.Module, config: EncoderConfig) -> None:
    """Fill every weight of `model` in place from torch's default generator."""
    residual = 1 / math.sqrt(2 * config.num_layers)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            is_output = name.endswith((".attention.output", ".feed_forward.down"))
            _linear(module, config, residual if is_output else 1.0, name.endswith(".feed_forward.down"))
        elif isinstance(module, nn.Embedding):
            _embedding(module, config)
        elif isinstance(module, nn.LayerNorm) and name == "head.norm" and config.initialisation == "normal":
            # tied to embeddings N(0, 1/d), a unit norm would give logits of deviation 1 and a loss of ln V + 0.5
            nn.init.constant_(module.weight, HEAD_GAIN)


def _linear(module: nn.Linear, config: EncoderConfig, scale: float, is_last: bool) -> None:
    if config.initialisation == "xavier":
        nn.init.xavier_uniform_(module.weight)
    else:
        small = SMALL_OUTPUT if is_last and config.initialisation == "small_output" else 1.0
        _truncated_normal(module.weight, config.initializer_range * scale * small)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def _embedding(module: nn.Embedding, config: EncoderConfig) -> None:
    if config.initialisation == "xavier":
        nn.init.xavier_uniform_(module.weight)
    elif config.initialisation == "normal":
        nn.init.normal_(module.weight, std=config.hidden_size**-0.5)
    else:
        _truncated_normal(module.weight, config.initializer_range)


def _truncated_normal(weight: Tensor, std: float) -> None:
    nn.init.trunc_normal_(weight, std=std, a=-3 * std, b=3 * std)

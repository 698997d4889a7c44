"""`python -m pretrain.inspect MODEL_OR_CHECKPOINT TEXT [key=value …]`: what an encoder does with a text.

Prints the most probable tokens for each mask in the text, and for each layer the size of its activations and the
entropy of each attention head. Writes the attention maps of one layer, or of one of its heads, as a PNG. Reads a
Hugging Face folder (Bert, RobertaPreLayerNorm, ModernBert), a checkpoint, or a run. Cost: one forward pass.
"""

import math
from pathlib import Path

import torch
from pydantic import Field
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from torch import Tensor

from configs import Config, InputError, run_command
from configs.loader import validate
from data.tokenizer.load import load_tokenizer
from encoder import MaskedLanguageModel, check_bounds, load_model
from encoder.inspection import LayerView, look_inside
from pretrain.runs.folder import RunFolder

USAGE = "usage: python -m pretrain.inspect MODEL_OR_CHECKPOINT TEXT [key=value …]"


class InspectConfig(Config):
    """What is shown."""

    fill_ins: int = Field(5, ge=1, description="fill-ins shown for each mask")
    layer: int = Field(-1, description="layer of the attention maps; -1 is the last")
    head: int | None = Field(None, ge=0, description="head of the attention map; none: all heads of the layer")
    png: str = Field("attention.png", description="file of the attention maps; empty: none")


def open_model(path: Path) -> tuple[MaskedLanguageModel, Path]:
    """The model and the tokenizer folder of a Hugging Face folder, a checkpoint or a run."""
    if (path / "config.json").exists():
        return load_model(path), path
    run, checkpoint = RunFolder.locate(path)
    return load_model(checkpoint), run.tokenizer


def fill_ins(logits: Tensor, input_ids: list[int], mask_id: int, tokenizer: Tokenizer, count: int) -> list[str]:
    """A line for each mask: its position and the `count` most probable tokens; logits (T, V).

    The word embedding may have more rows than the tokenizer has tokens; those are left out.
    """
    lines = []
    logits = logits[:, : tokenizer.get_vocab_size()]
    for position, token_id in enumerate(input_ids):
        if token_id == mask_id:
            best = logits[position].softmax(-1).topk(min(count, logits.shape[1]))
            found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            words = ", ".join(f"{tokenizer.id_to_token(found_id)} {probability:.3f}" for found_id, probability in found)
            lines.append(f"mask at token {position}: {words}")
    return lines


def layer_table(views: list[LayerView], length: int) -> Table:
    """One row for each layer."""
    table = Table(title=f"{length} tokens; uniform attention has entropy {math.log(length):.2f}")
    for column in ("layer", "norm", "max", "attention adds", "feed-forward adds", "active", "entropy by head (nat)"):
        table.add_column(column, justify="right")
    for number, view in enumerate(views):
        table.add_row(
            str(number),
            f"{view.hidden_norm:.2f}",
            f"{view.hidden_max:.2f}",
            f"{view.attention_share:.0%}",
            f"{view.feed_forward_share:.0%}",
            f"{view.active:.0%}",
            " ".join(f"{entropy:.2f}" for entropy in view.entropy.tolist()),
        )
    return table


def draw_attention(view: LayerView, tokens: list[str], layer: int, head: int | None, png: Path) -> None:
    """Write the attention maps of one layer: one head, or all side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # here, as matplotlib takes a while to import
    from matplotlib.figure import Figure

    heads = range(len(view.attention)) if head is None else [head]
    columns = min(4, len(heads))
    rows = math.ceil(len(heads) / columns)
    side = max(3.0, 0.18 * len(tokens))  # inches of one map
    figure = Figure(figsize=(side * columns, side * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for number, axes in zip(heads, figure.subplots(rows, columns, squeeze=False).flat, strict=False):
        axes.imshow(view.attention[number].numpy(), vmin=0.0, cmap="viridis")
        axes.set_title(f"layer {layer}, head {number}")
        axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=6)
        axes.set_yticks(range(len(tokens)), tokens, fontsize=6)
    for axes in figure.axes[len(heads) :]:
        axes.remove()
    png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(png, dpi=120)


def main(arguments: list[str]) -> None:
    """Show the fill-ins, attention and activations of TEXT.

    usage: python -m pretrain.inspect MODEL_OR_CHECKPOINT TEXT [key=value …]
    """
    if len(arguments) < 2:
        raise InputError(USAGE)
    values = {key: value for key, _, value in (argument.partition("=") for argument in arguments[2:])}
    config = validate(InspectConfig, values, "command line")
    model, folder = open_model(Path(arguments[0]))
    vocabulary = load_tokenizer(str(folder))
    encoding = vocabulary.tokenizer.encode(arguments[1])
    input_ids = torch.tensor(encoding.ids)
    check_bounds(model.config, input_ids, len(input_ids))
    layer = config.layer + model.config.num_layers if config.layer < 0 else config.layer
    if not 0 <= layer < model.config.num_layers:
        raise InputError(f"layer {config.layer}: the model has {model.config.num_layers} layers, from 0")
    if config.head is not None and config.head >= model.config.num_heads:
        raise InputError(f"head {config.head}: the model has {model.config.num_heads} heads a layer, from 0")
    logits, views = look_inside(model, input_ids)
    console = Console()
    lines = fill_ins(logits, encoding.ids, vocabulary.special.mask, vocabulary.tokenizer, config.fill_ins)
    console.print("\n".join(lines) or "no mask in the text", markup=False, highlight=False)
    console.print(layer_table(views, len(input_ids)))
    if config.png:
        draw_attention(views[layer], encoding.tokens, layer, config.head, Path(config.png))
        console.print(f"attention of layer {layer}: {config.png}", markup=False)


if __name__ == "__main__":
    run_command(main, InspectConfig, USAGE)

"""`python -m pretrain.export RUN_OR_CHECKPOINT OUT`: a plain Hugging Face folder from a checkpoint.

Reads `encoder.json`, `model.safetensors` and the run's tokenizer; never sees DeepSpeed. `encoder.huggingface.export`
reloads what it wrote in a fresh process and compares before the folder gets its name. The model card is generated from
what the run wrote down, and claims nothing that it did not measure.
"""

import json
from pathlib import Path

from configs import InputError, load_config, run_command
from encoder.huggingface.export import export_folder
from pretrain.checkpoint.format import CONFIG_FILE, TRAINING_FILE
from pretrain.config import PretrainConfig
from pretrain.monitor.history import read_history
from pretrain.runs.folder import RunFolder

USAGE = "usage: python -m pretrain.export RUN_OR_CHECKPOINT OUT"


def main(arguments: list[str]) -> None:
    """Write a Hugging Face folder (weights, config, tokenizer, model card) from a run's newest checkpoint, or from one.

    usage: python -m pretrain.export RUN_OR_CHECKPOINT OUT
    """
    if len(arguments) != 2:
        raise InputError(USAGE)
    run, checkpoint = RunFolder.locate(Path(arguments[0]))
    out = Path(arguments[1])
    config = load_config(PretrainConfig, checkpoint / CONFIG_FILE)
    training = json.loads((checkpoint / TRAINING_FILE).read_text(encoding="utf-8"))
    card = model_card(config, training, run.metrics, out.name)
    difference = export_folder(checkpoint, run.tokenizer, out, card)
    architecture = config.encoder.huggingface_architecture
    print(f"{out}: {architecture}, largest difference of logits after reloading {difference:.1e}")


def model_card(config: PretrainConfig, training: dict[str, object], metrics: Path, name: str) -> str:
    """Markdown for the hub: how to load, the shape, how it was trained, the last numbers of `metrics` (jsonl)."""
    shape, data = config.encoder, config.data
    sources = "\n".join(f"- `{source.path or source.hub}`, weight {source.weight:g}" for source in data.sources)
    step = training["step"]
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
tags: [masked-language-modeling, encoder, lacuna]
---

# {name}

A {shape.norm}-LN masked-language-model encoder in the `{shape.huggingface_architecture}` architecture of \
transformers; no remote code.

```python
from transformers import AutoModel, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModel.from_pretrained("{name}")
vectors = model(**tokenizer(["a sentence"], return_tensors="pt")).last_hidden_state
```

## Shape

| layers | heads | width | feed-forward | positions | vocabulary | longest input | parameters |
|---|---|---|---|---|---|---|---|
| {shape.num_layers} | {shape.num_heads} | {shape.hidden_size} | {shape.feed_forward_size} {shape.activation} | \
{shape.position} | {shape.vocab_size} | {shape.max_length} tokens | {shape.num_parameters():,} |

## Training

{step} steps of {data.rows_per_step} rows of {data.sequence_length} tokens, {training["tokens"]:,} tokens in all, \
{data.mask.rate:.0%} of them masked (by {data.mask.unit}; mask, random, kept: {list(data.mask.replace)}); \
seed {config.seed}.

Sources:

{sources}

{_numbers(metrics, int(str(step)))}
"""


def _numbers(metrics: Path, step: int) -> str:
    last: dict[str, dict[str, float]] = {}
    for entry in read_history(metrics):
        if entry["kind"] in ("train", "eval") and entry["step"] <= step:
            last[entry["kind"]] = entry
    lines = ["## Numbers", ""]
    if "train" in last:
        lines.append(f"- training loss at step {last['train']['step']}: {last['train']['loss']:.3f} nat a masked token")
    if "eval" in last:
        held_out = last["eval"]
        lines.append(
            f"- held-out loss at step {held_out['step']}: {held_out['loss']:.3f} nat a masked token, accuracy "
            f"{held_out['accuracy']:.3f}, on {held_out['masked_tokens']:,} masked tokens"
        )
    return "\n".join(lines) if len(lines) > 2 else ""


if __name__ == "__main__":
    run_command(main)

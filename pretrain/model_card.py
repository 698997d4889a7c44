"""The README of an exported folder: generated from what the run wrote down, no claim that it did not measure."""

import json
from pathlib import Path

from pretrain.config import PretrainConfig


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

A {shape.norm}-LN masked-language-model encoder in the `{shape.home}` architecture of transformers; no remote code.

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
    for line in metrics.read_text(encoding="utf-8").splitlines() if metrics.exists() else []:
        entry = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
        if entry.get("kind") in ("train", "eval") and entry["step"] <= step:
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

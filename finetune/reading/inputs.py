"""Texts to model inputs: one `Inputs` a model folder knows its tokenizer, its length and whether it has segment ids.

What a model can take is read from an empty skeleton of it (meta device: no memory, no weights), so every limit is
checked before a real tensor exists: tokens beyond the position table and ids beyond the embedding never reach a device.
Segment ids are sent exactly when the model has at least two segments. A text that is too long is cut, keeps its final
SEP, and is counted in `truncated`; a context that one window does not hold is counted in `windowed`.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

from configs import InputError

Offsets = list[tuple[int, int] | None]  # of each token of a window: characters of the context, None outside it
Encoding = dict[str, list[int]]  # input_ids and, where the model has segments, token_type_ids


def quiet_transformers() -> None:
    """Errors only: what matters of loading (missing weights) is checked and raised by our own code."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not torch.accelerator.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # saving imports DeepSpeed, which else warns on stdout


@dataclass
class Inputs:
    """Tokenizer of a model folder with the model's limits; counts the texts that were cut or read in windows."""

    tokenizer: Any
    model_config: Any
    max_length: int
    has_segments: bool
    truncated: int = field(default=0)
    windowed: int = field(default=0)

    def take_counts(self) -> dict[str, int]:
        """{truncated, windowed}: the texts (or pairs) of either kind since the last call."""
        counts = {"truncated": self.truncated, "windowed": self.windowed}
        self.truncated = self.windowed = 0
        return counts

    def told(self, counts: dict[str, int], num_rows: int) -> list[str]:
        """A line for each of `counts` that is not 0."""
        ways = {"truncated": "cut", "windowed": "read in windows"}
        long = f"texts longer than {self.max_length} tokens,"
        return [f"{long} {ways[name]}: {count} in {num_rows} rows" for name, count in counts.items() if count]

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoding]:
        """Encode texts (or text pairs) with CLS and SEP, at most `max_length` tokens each."""
        batch = self._tokenize(list(texts), list(pairs) if pairs is not None else None)
        return [self._encoding(batch, row) for row in range(len(texts))]

    def encode_words(self, rows: Sequence[Sequence[str]]) -> list[tuple[Encoding, list[int]]]:
        """Encode rows of words; with each the token position of every word's first piece, -1 for a word without one."""
        texts = [list(words) for words in rows]
        batch = self._tokenize(texts, None, is_split_into_words=True)
        encoded = []
        for i, words in enumerate(texts):
            first: dict[int | None, int] = {}
            for position, word in enumerate(batch.word_ids(i)):
                first.setdefault(word, position)
            encoded.append((self._encoding(batch, i), [first.get(word, -1) for word in range(len(words))]))
        return encoded

    def encode_windows(self, question: str, context: str, step: int) -> list[tuple[Encoding, Offsets]]:
        """Question and context in windows that move by `step` tokens, with each token's characters in the context.

        A question longer than half the model's length is cut there and counted.
        """
        half = self.max_length // 2
        asked = self.tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        if len(asked) > half:
            self.truncated += 1
            question = question[: asked[half - 1][1]]
        room = self.max_length - min(len(asked), half) - self.tokenizer.num_special_tokens_to_add(pair=True)
        batch = self.tokenizer(
            [question],
            [context],
            truncation="only_second",
            max_length=self.max_length,
            stride=room - min(step, room),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=self.has_segments,
            return_attention_mask=False,
        )
        self.windowed += len(batch["offset_mapping"]) > 1
        return [
            (
                self._encoding(batch, i),
                [place if part == 1 else None for place, part in zip(places, batch.sequence_ids(i), strict=True)],
            )
            for i, places in enumerate(batch["offset_mapping"])
        ]

    def _tokenize(self, texts: Any, pairs: Any, is_split_into_words: bool = False) -> Any:
        batch = self.tokenizer(
            texts,
            pairs,
            truncation=True,
            max_length=self.max_length,
            is_split_into_words=is_split_into_words,
            return_token_type_ids=self.has_segments,
            return_attention_mask=False,
        )
        self.truncated += sum(bool(encoding.overflowing) for encoding in batch.encodings)
        return batch

    def _encoding(self, batch: Any, row: int) -> Encoding:
        return {key: batch[key][row] for key in ("input_ids", "token_type_ids") if key in batch}

    def pad(self, encodings: Sequence[Encoding], device: torch.device) -> dict[str, Tensor]:
        """Right-pad to the longest: input_ids, attention_mask (1 = token) and token_type_ids, each (rows, length)."""
        length = max(len(encoding["input_ids"]) for encoding in encodings)
        fills = {"input_ids": self.tokenizer.pad_token_id, "token_type_ids": 0}
        batch = {
            key: torch.tensor([e[key] + [fills[key]] * (length - len(e[key])) for e in encodings], device=device)
            for key in encodings[0]
        }
        sizes = torch.tensor([len(encoding["input_ids"]) for encoding in encodings], device=device)
        batch["attention_mask"] = (torch.arange(length, device=device)[None] < sizes[:, None]).long()
        return batch


def load_inputs(folder: str, max_length: int | None = None) -> Inputs:
    """Read tokenizer and limits of the model `folder`.

    `max_length` in tokens; None takes what the tokenizer and the position table allow, at most 512. InputError when the
    folder is no model, the tokenizer lacks a special token or has more ids than the embedding, or `max_length` exceeds
    the position table.
    """
    config = load_model_config(folder)
    with torch.device("meta"):
        skeleton = AutoModel.from_config(config)
    takes_segments = "token_type_ids" in inspect.signature(skeleton.forward).parameters
    has_segments = takes_segments and getattr(config, "type_vocab_size", 0) > 1
    tokenizer = _load_tokenizer(folder, has_segments)
    rows = skeleton.get_input_embeddings().num_embeddings
    size = max(tokenizer.get_vocab().values()) + 1
    if size > rows:
        raise InputError(f"{folder}: the tokenizer has {size} ids, the model's embedding only {rows} rows")
    limit = _position_limit(skeleton)
    if max_length is not None and max_length > limit:
        raise InputError(f"max_length {max_length} is more than the {limit} positions of {folder}")
    tokenizer.model_max_length = max_length or min(tokenizer.model_max_length, limit, 512)
    return Inputs(tokenizer, config, tokenizer.model_max_length, has_segments)


def _load_tokenizer(folder: str, has_segments: bool) -> Any:
    """The folder's fast tokenizer, made to send segment ids by default exactly when the model has them."""
    names = ["input_ids", *(["token_type_ids"] if has_segments else []), "attention_mask"]
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, model_input_names=names)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: no tokenizer that AutoTokenizer loads: {_first_line(error)}") from None
    if not tokenizer.is_fast:
        raise InputError(f"{folder}: the tokenizer is not a fast one (tokenizer.json is missing)")
    for name in ("pad", "cls", "sep"):
        if getattr(tokenizer, f"{name}_token_id") is None:
            raise InputError(f"{folder}: the tokenizer has no {name.upper()} token; an encoder needs PAD, CLS and SEP")
    return tokenizer


def load_model_config(folder: str) -> Any:
    """The `config.json` of a model folder; InputError when there is none that transformers knows."""
    if not Path(folder).exists() and folder.startswith((".", "/", "runs")):
        raise InputError(f"{folder}: no such model folder")
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: not a model folder that transformers loads: {_first_line(error)}") from None


def _position_limit(skeleton: torch.nn.Module) -> int:
    """Longest input in tokens. RoBERTa's kin count positions from padding_idx + 1 in the same table."""
    for name, module in skeleton.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return int(getattr(skeleton.config, "max_position_embeddings", None) or 10**9)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

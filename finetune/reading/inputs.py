"""Texts to model inputs: one `Inputs` per model folder knows its tokenizer, its length and whether it has segment ids.

Segment ids are sent exactly when the model has at least two segments. A text that is too long is truncated, keeps its
final SEP, and is counted in `truncated`; a context that does not fit into one window is counted in `windowed`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Offsets = list[tuple[int, int] | None]  # of each token of a window: characters of the context, None outside it
Encoding = dict[str, list[int]]  # input_ids and, where the model has segments, token_type_ids


@dataclass
class Inputs:
    """Tokenizer of a model folder with the model's limits; counts the texts that were truncated or read in windows."""

    tokenizer: Any
    model_config: Any
    max_length: int
    has_segments: bool
    truncated: int = field(default=0)
    windowed: int = field(default=0)

    def take_counts(self) -> dict[str, int]:
        """{truncated, windowed}: the texts (or pairs) of either sort since the last call."""
        counts = {"truncated": self.truncated, "windowed": self.windowed}
        self.truncated = self.windowed = 0
        return counts

    def describe_counts(self, counts: dict[str, int], num_rows: int) -> list[str]:
        """A line for each of `counts` that is not 0."""
        treatments = {"truncated": "cut", "windowed": "read in windows"}
        long = f"texts longer than {self.max_length} tokens,"
        return [f"{long} {treatments[name]}: {count} in {num_rows} rows" for name, count in counts.items() if count]

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

        A question longer than half the model's length is truncated there and counted.
        """
        half = self.max_length // 2
        offsets = self.tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        if len(offsets) > half:
            self.truncated += 1
            question = question[: offsets[half - 1][1]]
        room = self.max_length - min(len(offsets), half) - self.tokenizer.num_special_tokens_to_add(pair=True)
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

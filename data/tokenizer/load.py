"""Texts to token ids: a tokenizer folder as it is, the roles of its special tokens, and where words begin.

Ids travel as uint32 with the highest bit set where a word begins (when masks need words), so that one array says all.
`encode_batch_fast` is used where only ids are needed; words need `encode_batch`, which also finds offsets.
"""

import itertools
import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from configs import InputError
from data import hashing

U32 = NDArray[np.uint32]
WORD_BEGINS = np.uint32(1 << 31)
ROLES = ("cls_token", "sep_token", "pad_token", "mask_token", "unk_token")


class SpecialIds(NamedTuple):
    """Ids of the roles, and all ids that are special or name no token (sorted): never masked, never a replacement."""

    cls: int
    sep: int
    pad: int
    mask: int
    every: tuple[int, ...]
    vocab_size: int  # rows that an embedding needs


class LoadedTokenizer(NamedTuple):
    """A loaded tokenizer."""

    tokenizer: Tokenizer
    special: SpecialIds
    digest: str
    unit: str  # of data.mask


def load_tokenizer(folder: str, unit: str = "token") -> LoadedTokenizer:
    """Load a folder with tokenizer.json. Raises InputError naming the folder and the role that is missing."""
    path = Path(folder)
    if not (path / "tokenizer.json").is_file():
        raise InputError(f"tokenizer: no tokenizer.json in the folder '{folder}'")
    text = (path / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    roles = _roles(path)
    found = {role: tokenizer.token_to_id(roles[role]) for role in ROLES if role in roles}
    if "cls_token" not in found and "bos_token" in roles:
        found["cls_token"] = tokenizer.token_to_id(roles["bos_token"])
    if "sep_token" not in found and "eos_token" in roles:
        found["sep_token"] = tokenizer.token_to_id(roles["eos_token"])
    for role in ROLES[:4]:
        if found.get(role) is None:
            raise InputError(f"tokenizer: the folder '{folder}' names no {role}")
    every = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    every |= {token_id for token_id in found.values() if token_id is not None}
    known = set(tokenizer.get_vocab(with_added_tokens=True).values())
    size = max(known) + 1
    every |= set(range(size)) - known
    cls, sep, pad, mask = (int(found[role] or 0) for role in ROLES[:4])
    special = SpecialIds(cls, sep, pad, mask, tuple(sorted(every)), size)
    return LoadedTokenizer(tokenizer, special, hashing.digest(text, *map(str, special.every)), unit)


def _roles(path: Path) -> dict[str, str]:
    """Role → token of tokenizer_config.json and special_tokens_map.json."""
    roles: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path / name).is_file():
            values: dict[str, Any] = json.loads((path / name).read_text(encoding="utf-8"))
            for role, token in values.items():
                content = token.get("content") if isinstance(token, dict) else token
                if role.endswith("_token") and isinstance(content, str):
                    roles[role] = content
    return roles


def encode(loaded: LoadedTokenizer, texts: Sequence[str]) -> list[U32]:
    """Ids of each text without special tokens; with word beginnings when the masks' unit needs them."""
    if not texts:
        return []
    if loaded.unit != "token":
        from data.tokenizer.words import encode_words

        return encode_words(loaded, texts)
    return to_arrays(loaded.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False))


def to_arrays(encodings: Sequence[Encoding]) -> list[U32]:
    """The ids of each encoding, as parts of one array: one a document would leave holes between what the tokenizer
    frees, 2 % of its time. An id costs 6 ns through array.array, where numpy alone takes 15.
    """
    ids, ends = array("I"), [0]
    for encoding in encodings:
        ids.fromlist(encoding.ids)
        ends.append(len(ids))
    joined = np.frombuffer(ids, np.uint32) if ids else np.empty(0, np.uint32)
    return [joined[start:end] for start, end in itertools.pairwise(ends)]

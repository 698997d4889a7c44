"""Texts to token ids: a tokenizer folder, the ids of its special tokens, and where words begin.

An id travels as uint32 whose highest bit says that a word begins there, where masks need words: one array says all.
`encode_batch_fast` finds ids only. `encode_batch` takes longer, as it also finds the words of the tokenizer's
pre-tokenizer; jieba's words in Chinese cost 1-2 microseconds a character more.
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
REQUIRED_ROLES = ("cls_token", "sep_token", "pad_token", "mask_token")
STAND_INS = {"cls_token": "bos_token", "sep_token": "eos_token"}  # as transformers' own tokenizers name them
# code points that BERT's normalizer takes for Chinese characters
CHINESE_RANGES = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))


class SpecialIds(NamedTuple):
    """Ids of the special tokens by role, and of all that are never masked and never a replacement."""

    cls: int
    sep: int
    pad: int
    mask: int
    every: tuple[int, ...]  # special ones, and numbers below vocab_size that name no token; sorted
    vocab_size: int  # rows that an embedding needs


class LoadedTokenizer(NamedTuple):
    """A tokenizer, with what `encode` and masks need of it."""

    tokenizer: Tokenizer
    special: SpecialIds
    digest: str  # of its files, as states and caches name it
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
    special = _special_ids(tokenizer, _tokens_by_role(path), folder)
    return LoadedTokenizer(tokenizer, special, hashing.digest(text, *map(str, special.every)), unit)


def _special_ids(tokenizer: Tokenizer, tokens: dict[str, str], folder: str) -> SpecialIds:
    ids = {}
    for role in (*REQUIRED_ROLES, "unk_token"):
        token = tokens.get(role, tokens.get(STAND_INS.get(role, "")))
        ids[role] = None if token is None else tokenizer.token_to_id(token)
        if ids[role] is None and role in REQUIRED_ROLES:
            raise InputError(f"tokenizer: the folder '{folder}' names no {role}")
    every = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    every |= {token_id for token_id in ids.values() if token_id is not None}
    known = set(tokenizer.get_vocab(with_added_tokens=True).values())
    vocab_size = max(known) + 1
    every |= set(range(vocab_size)) - known
    cls, sep, pad, mask = (int(ids[role] or 0) for role in REQUIRED_ROLES)
    return SpecialIds(cls, sep, pad, mask, tuple(sorted(every)), vocab_size)


def _tokens_by_role(path: Path) -> dict[str, str]:
    """The special tokens that tokenizer_config.json (or special_tokens_map.json) names, by role."""
    tokens: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path / name).is_file():
            values: dict[str, Any] = json.loads((path / name).read_text(encoding="utf-8"))
            for role, token in values.items():
                content = token.get("content") if isinstance(token, dict) else token
                if role.endswith("_token") and isinstance(content, str):
                    tokens[role] = content
    return tokens


def encode(loaded: LoadedTokenizer, texts: Sequence[str]) -> list[U32]:
    """Ids of each text without special tokens; with word beginnings when the masks' unit needs them."""
    if not texts:
        return []
    if loaded.unit == "token":
        return _ids(loaded.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False))
    encodings = loaded.tokenizer.encode_batch(list(texts), add_special_tokens=False)
    result = _ids(encodings)
    for text, encoding, ids in zip(texts, encodings, result, strict=True):
        words = np.array(encoding.word_ids, float)  # None, of a special token, becomes nan: never equal
        begins = np.ones(len(ids), bool)
        begins[1:] = words[1:] != words[:-1]
        if loaded.unit == "chinese_word" and len(ids):
            starts = np.array([start for start, _ in encoding.offsets])
            begins &= ~_inside_chinese_word(text)[starts]
        ids[begins] |= WORD_BEGINS
    return result


def _ids(encodings: Sequence[Encoding]) -> list[U32]:
    """The ids of each encoding, as views of one array.

    An array for each document would fragment the memory that the tokenizer frees, which costs it 2 % of its time. An
    id costs 6 ns through array.array, where numpy alone takes 15.
    """
    ids, ends = array("I"), [0]
    for encoding in encodings:
        ids.fromlist(encoding.ids)
        ends.append(len(ids))
    joined = np.frombuffer(ids, np.uint32) if ids else np.empty(0, np.uint32)
    return [joined[start:end] for start, end in itertools.pairwise(ends)]


def _inside_chinese_word(text: str) -> NDArray[np.bool_]:
    """For each character (and the end): a Chinese one that is not the first of jieba's word."""
    import jieba

    jieba.setLogLevel("WARNING")
    codes = np.frombuffer((text + " ").encode("utf-32-le", errors="surrogatepass"), "<u4")
    inside = np.zeros(len(codes), bool)
    for low, high in CHINESE_RANGES:
        inside |= (codes >= low) & (codes <= high)
    lengths = [len(word) for word in jieba.cut(text, HMM=False)]
    inside[np.cumsum([0, *lengths])] = False
    return inside

"""Where words begin: the tokenizer's own pre-tokens, for any fast tokenizer, and jieba's words in Chinese if asked for.

`encode_batch`, which finds words, takes longer than `encode_batch_fast`; jieba costs 1-2 microseconds a character.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.tokenizer.load import U32, WORD_BEGINS, LoadedTokenizer, to_arrays

_CHINESE = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2FA1F))  # as BERT's normalizer splits


def encode_words(loaded: LoadedTokenizer, texts: Sequence[str]) -> list[U32]:
    """Ids of each text, the highest bit set where a word begins."""
    encodings = loaded.tokenizer.encode_batch(list(texts), add_special_tokens=False)
    result = to_arrays(encodings)
    for text, encoding, ids in zip(texts, encodings, result, strict=True):
        words = np.array(encoding.word_ids, float)  # None, of a special token, becomes nan: never equal
        begins = np.ones(len(ids), bool)
        begins[1:] = words[1:] != words[:-1]
        if loaded.unit == "chinese_word" and len(ids):
            starts = np.array([start for start, _ in encoding.offsets])
            begins &= ~_inside_chinese_word(text)[starts]
        ids[begins] |= WORD_BEGINS
    return result


def _inside_chinese_word(text: str) -> NDArray[np.bool_]:
    """For each character (and the end): a Chinese one that is not the first of jieba's word."""
    import jieba

    jieba.setLogLevel("WARNING")
    codes = np.frombuffer((text + " ").encode("utf-32-le", errors="surrogatepass"), "<u4")
    inside = np.zeros(len(codes), bool)
    for low, high in _CHINESE:
        inside |= (codes >= low) & (codes <= high)
    lengths = [len(word) for word in jieba.cut(text, HMM=False)]
    inside[np.cumsum([0, *lengths])] = False
    return inside

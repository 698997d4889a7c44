"""Scores of a Unigram model that are the same in every process.

The trainer of tokenizers 0.23.3 adds up fractions in the order of a hash map: the same text gives the same entries, but
scores that differ by up to 0.003, and with them the numbers of the entries. So the entries are scored anew from whole
numbers: how often each stands in the best segmentation of all words, at first the one of the fewest entries. One more
pass over the text, and a few microseconds a different word and round; memory as for training.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models

ROUNDS = 4
UNSEEN = 0.5  # counted for an entry that no segmentation has


def rescore(tokenizer: Tokenizer, texts: Iterable[str], special: list[str]) -> None:
    """Replace the scores of a trained Unigram model, and number its entries by them, behind the special ones."""
    model = json.loads(tokenizer.to_str())["model"]
    unknown = special.index(model["vocab"][model["unk_id"]][0])
    entries = sorted({entry for entry, _ in model["vocab"]} - set(special))
    words = _count_words(tokenizer, texts)
    scores = dict.fromkeys(entries, -1.0)
    for _ in range(ROUNDS):
        scored = models.Unigram([*((token, 0.0) for token in special), *scores.items()], unknown, False)
        counts: Counter[str] = Counter()
        for word, times in words.items():
            for token in scored.tokenize(word):
                counts[token.value] += times
        total = math.log(sum(counts[entry] for entry in entries))
        scores = {entry: math.log(counts[entry] or UNSEEN) - total for entry in entries}
        scores = dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))
    tokenizer.model = models.Unigram([*((token, 0.0) for token in special), *scores.items()], unknown, False)


def _count_words(tokenizer: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    words: Counter[str] = Counter()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    return words

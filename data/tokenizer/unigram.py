"""Scores of a Unigram model that are the same in every process.

The trainer of tokenizers 0.23.3 adds up fractions in the order of a hash map: the same text gives the same entries, but
scores that differ by up to 0.003, and so other ids. So the entries are scored again from whole numbers: how often each
is used in the best segmentation of all words, where the first round prefers the fewest entries. This costs one more
pass over the text and a few microseconds for each distinct word and round; memory as for training.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models

ROUNDS = 4
UNSEEN_COUNT = 0.5  # of an entry that no segmentation uses


def rescore(tokenizer: Tokenizer, texts: Iterable[str], special: list[str]) -> None:
    """Replace the scores of a trained Unigram model; its ids follow them, behind those of the special tokens."""
    model = json.loads(tokenizer.to_str())["model"]
    unknown = special.index(model["vocab"][model["unk_id"]][0])
    entries = sorted({entry for entry, _ in model["vocab"]} - set(special))
    words: Counter[str] = Counter()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text)
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    scores = dict.fromkeys(entries, -1.0)
    for _ in range(ROUNDS):
        scored = models.Unigram([*((token, 0.0) for token in special), *scores.items()], unknown, False)
        counts: Counter[str] = Counter()
        for word, times in words.items():
            for token in scored.tokenize(word):
                counts[token.value] += times
        total = math.log(sum(counts[entry] for entry in entries))
        scores = {entry: math.log(counts[entry] or UNSEEN_COUNT) - total for entry in entries}
        scores = dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))
    tokenizer.model = models.Unigram([*((token, 0.0) for token in special), *scores.items()], unknown, False)

"""How well a tokenizer fits its sources: unknown rate, tokens per word and per character, on a sample of each."""

from typing import Any

from tokenizers import Tokenizer

from data.config import SourceConfig

SAMPLE_SIZE = 2000


class Sample:
    """At most 2,000 documents, evenly spaced over a stream of any length; no randomness."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._seen, self._every = 0, 1

    def add(self, text: str) -> None:
        """Keep every n-th text; when there are too many, drop each second one and double n."""
        if self._seen % self._every == 0:
            self.texts.append(text)
            if len(self.texts) > SAMPLE_SIZE:
                self.texts, self._every = self.texts[::2], self._every * 2
        self._seen += 1


def report(tokenizer: Tokenizer, sources: list[SourceConfig], samples: list[Sample]) -> dict[str, Any]:
    """The contents of report.json; words are what white space separates (Chinese has few), rates shares of tokens."""
    unknown = tokenizer.token_to_id("[UNK]")
    by_source = {}
    for source, sample in zip(sources, samples, strict=True):
        tokens = unknowns = 0
        for encoding in tokenizer.encode_batch_fast(sample.texts, add_special_tokens=False):
            tokens += len(encoding.ids)
            unknowns += encoding.ids.count(unknown) if unknown is not None else 0
        words = sum(len(text.split()) for text in sample.texts)
        characters = sum(map(len, sample.texts))
        by_source[source.title] = {
            "documents": len(sample.texts),
            "tokens": tokens,
            "unknown_rate": round(unknowns / max(tokens, 1), 6),
            "tokens_per_word": round(tokens / max(words, 1), 4),
            "tokens_per_character": round(tokens / max(characters, 1), 4),
        }
    return {"vocab_size": tokenizer.get_vocab_size(), "sources": by_source}

"""How well a tokenizer fits its sources: unknown rate, tokens per word and per character, on a sample of each."""

from typing import Any

from tokenizers import Tokenizer

from data.config import SourceConfig
from data.progress import Sample


def report(tokenizer: Tokenizer, sources: list[SourceConfig], samples: list[Sample]) -> dict[str, Any]:
    """JSON-able figures; words are what white space separates (so Chinese has few), rates are shares of tokens."""
    unknown = tokenizer.token_to_id("[UNK]")
    by_source = {}
    for source, sample in zip(sources, samples, strict=True):
        tokens = unknowns = 0
        for encoding in tokenizer.encode_batch_fast(sample.texts, add_special_tokens=False):
            tokens += len(encoding.ids)
            unknowns += encoding.ids.count(unknown if unknown is not None else -1)
        words = sum(len(text.split()) for text in sample.texts)
        characters = sum(map(len, sample.texts))
        by_source[source.path or source.hub] = {
            "documents": len(sample.texts),
            "tokens": tokens,
            "unknown_rate": round(unknowns / max(tokens, 1), 6),
            "tokens_per_word": round(tokens / max(words, 1), 4),
            "tokens_per_character": round(tokens / max(characters, 1), 4),
        }
    return {"vocab_size": tokenizer.get_vocab_size(), "sources": by_source}

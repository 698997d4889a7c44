"""Trains a tokenizer on the same sources that batches come from, and writes a folder that `AutoTokenizer` loads.

Two passes over the text, streamed: one counts characters (for the alphabet) and keeps a sample (for report.json), the
other trains; memory grows with the number of different words only. The same text and configuration give the same files:
tokenizers' trainers number the alphabet in the order of a hash map, so it is given to them in a fixed order; Unigram's
entries are scored again, in one more pass.
"""

import json
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from configs import Config, InputError, load_config
from configs.atomic import write_text
from data.config import BadInputConfig, SourceConfig
from data.progress import count_records, progress_bar
from data.sources.bad_input import Counts, accept
from data.sources.formats import plan, read
from data.tokenizer.load import load_tokenizer
from data.tokenizer.report import Sample, report
from data.tokenizer.unigram import rescore

USAGE = "python -m data.tokenizer CONFIG [key=value ...]: train a tokenizer"
PAD, UNK, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class TokenizerConfig(Config):
    """What the tokenizer is and what it learns from."""

    output: str = Field(description="folder to write")
    existing: str = Field("", description="tokenizer folder or vocab.txt to use unchanged, instead of training")
    algorithm: Literal["wordpiece", "bpe", "unigram"] = Field("wordpiece", description="bpe is byte-level")
    vocab_size: int = Field(32768, ge=64, description="entries at most; rounded up to a multiple of 64")
    lowercase: bool = Field(True, description="lower-case and strip accents")
    normalization: Literal["none", "nfc", "nfkc"] = Field("nfc", description="Unicode normal form")
    split_chinese: bool = Field(True, description="a token never holds more than one Chinese character")
    character_coverage: float = Field(
        0.9995, gt=0, le=1, description="share of the text whose characters are known; the rest is UNK (not bpe)"
    )
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to become an entry")
    sources: list[SourceConfig] = Field(default_factory=list, description="the text")
    max_document_bytes: int = Field(1 << 20, ge=16, description="longer documents are cut")
    bad_input: BadInputConfig = Field(default_factory=BadInputConfig, description="policies for bad input")


def main(arguments: list[str]) -> int:
    """Train (or take) a tokenizer and write its folder."""
    if not arguments:
        raise InputError(f"usage: {USAGE}")
    values = train(load_config(TokenizerConfig, arguments[0], arguments[1:]))
    print(json.dumps(values, indent=2, ensure_ascii=False))
    return 0


def train(config: TokenizerConfig) -> dict[str, object]:
    """Train by `config`, write the folder, and return what report.json says.

    Raises InputError for bad input, a vocabulary smaller than the alphabet, or an output that cannot be written.
    """
    output = Path(config.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=output).close()
    except OSError as error:
        raise InputError(f"output: cannot write to '{output}' ({error.strerror})") from None
    if not config.sources:
        raise InputError("the key 'sources' is required")
    tokenizer = untrained(config)
    samples = [Sample() for _ in config.sources]
    characters = _count_characters(config, tokenizer, samples)
    if config.existing:
        tokenizer = _existing(config, tokenizer, output)
    else:
        tokenizer = _trained(config, tokenizer, characters)
        save(tokenizer, output)
    values = report(tokenizer, config.sources, samples)
    write_text(output / "report.json", json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    return values


def _texts(config: TokenizerConfig, title: str, samples: list[Sample] | None = None) -> Iterator[str]:
    """The usable texts of all sources, in order. Raises InputError for bad input under policy `error`."""
    policies, limit, counts = config.bad_input, config.max_document_bytes, Counts()
    for number, source in enumerate(config.sources):
        units = plan(source, 1, policies).units
        with progress_bar() as bar:
            for unit in bar.track(units, description=f"{title}, source {number + 1}"):
                records = read(unit, unit.first, source, limit, cut_long=policies.too_long == "replace")
                for record in count_records(bar, records):
                    if record.fault and not accept(record, policies, counts):
                        continue
                    if samples is not None:
                        samples[number].add(record.text)
                    yield record.text


def untrained(config: TokenizerConfig) -> Tokenizer:
    """The normalizer, pre-tokenizer and decoder of an algorithm, around an empty model."""
    forms: dict[str, list[Any]] = {"none": [], "nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()]}
    form = forms[config.normalization]
    if config.algorithm == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
        bert = normalizers.BertNormalizer(handle_chinese_chars=config.split_chinese, lowercase=config.lowercase)
        tokenizer.normalizer = normalizers.Sequence([*form, bert])
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer
    lowering: list[Any] = [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    split: list[Any] = [pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated")] if config.split_chinese else []
    tokenizer = Tokenizer(models.BPE() if config.algorithm == "bpe" else models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(form + lowering if config.lowercase else form)
    if config.algorithm == "bpe":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        tokenizer.decoder = decoders.ByteLevel()
    else:
        metaspace = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([metaspace, *split])
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return tokenizer


def _count_characters(config: TokenizerConfig, tokenizer: Tokenizer, samples: list[Sample]) -> Counter[str]:
    characters: Counter[str] = Counter()
    for text in _texts(config, "counting characters", samples):
        characters.update(tokenizer.normalizer.normalize_str(text))
    if not characters:
        raise InputError("sources: there is no text to train on")
    return characters


def _trained(config: TokenizerConfig, tokenizer: Tokenizer, characters: Counter[str]) -> Tokenizer:
    size = -(-config.vocab_size // 64) * 64
    alphabet = _alphabet(characters, config.character_coverage)
    texts, special = _texts(config, "training"), list(SPECIAL)
    options: dict[str, Any] = {"vocab_size": size, "show_progress": sys.stderr.isatty()}
    pairs: dict[str, Any] = {"min_frequency": config.min_frequency}
    if config.algorithm == "bpe":
        every_byte = sorted(pre_tokenizers.ByteLevel.alphabet())
        bpe = trainers.BpeTrainer(special_tokens=special, initial_alphabet=every_byte, **pairs, **options)
        tokenizer.train_from_iterator(texts, bpe)
        return tokenizer
    continuations = ["##" + character for character in alphabet if _may_continue(character, config.split_chinese)]
    least = len(special) + len(continuations) + len(alphabet)
    if least > size:
        raise InputError(
            f"vocab_size: {size} is too small for the alphabet of {len(alphabet)} characters; "
            f"raise it above {least} or lower character_coverage={config.character_coverage}"
        )
    options["initial_alphabet"] = alphabet
    if config.algorithm == "unigram":
        tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(special_tokens=special, unk_token=UNK, **options))
        rescore(tokenizer, _texts(config, "scoring"), special)
        return tokenizer
    numbered = special + continuations  # the trainer numbers only its special tokens in the order given
    options |= {"special_tokens": numbered, "limit_alphabet": len(alphabet)}
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(**pairs, **options))
    fresh = untrained(config)  # in which the continuations are no special tokens
    fresh.model = models.WordPiece(vocab=tokenizer.get_vocab(), unk_token=UNK)
    return fresh


def _existing(config: TokenizerConfig, tokenizer: Tokenizer, output: Path) -> Tokenizer:
    """Take a folder, or the entries of a vocab.txt (WordPiece), as they are."""
    path = Path(config.existing)
    if path.is_dir():
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(path).save_pretrained(output)
        return load_tokenizer(str(output)).tokenizer
    if not path.is_file() or config.algorithm != "wordpiece":
        raise InputError(f"existing: '{path}' is neither a tokenizer folder nor a WordPiece vocab.txt")
    entries = path.read_text(encoding="utf-8").splitlines()
    missing = [token for token in SPECIAL if token not in entries]
    if missing:
        raise InputError(f"existing: '{path}' lacks the entries {', '.join(missing)}")
    tokenizer.model = models.WordPiece(vocab={token: i for i, token in enumerate(entries)}, unk_token=UNK)
    save(tokenizer, output)
    return tokenizer


def _alphabet(characters: Counter[str], coverage: float) -> list[str]:
    """The most frequent characters that make up `coverage` of the text, in order of code point."""
    total = sum(count for c, count in characters.items() if not c.isspace())
    chosen, covered = [], 0
    for character, count in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        if covered >= coverage * total:
            break
        if not character.isspace():
            chosen.append(character)
            covered += count
    return sorted(chosen)


def _may_continue(character: str, split_chinese: bool) -> bool:
    """Whether BERT's pre-tokenizer lets it stand inside a word: no punctuation, no Chinese."""
    is_ascii_symbol = character.isascii() and not character.isalnum()
    is_chinese = split_chinese and unicodedata.name(character, "").startswith("CJK ")
    return not (is_ascii_symbol or is_chinese or unicodedata.category(character).startswith("P"))


def save(tokenizer: Tokenizer, output: Path) -> None:
    """Add template and roles, and write what AutoTokenizer reads."""
    from transformers import PreTrainedTokenizerFast

    wordpiece = isinstance(tokenizer.model, models.WordPiece)
    added = [AddedToken(t, special=True, lstrip=t == MASK and not wordpiece, normalized=False) for t in SPECIAL]
    tokenizer.add_special_tokens(added)
    ids = [(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0", pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1", special_tokens=ids
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNK,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=added[-1],
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(output)

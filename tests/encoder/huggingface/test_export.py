"""What is exported is what plain AutoModel classes load: R27, R28, R29 and every shape that transformers has."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from encoder.huggingface.export import export_folder

ARCHITECTURES = {"pre": "RobertaPreLayerNorm", "post": "Bert", "rope": "ModernBert"}


@pytest.fixture(scope="session")
def exported(tmp_path_factory, tiny_model, write_checkpoint, tokenizer_folder):
    """`exported(shape)`: our model and the folder it was exported to, once a session."""
    done = {}

    def export(shape):
        if shape not in done:
            model = tiny_model(shape, pad_id=179, cls_id=175, sep_id=176, mask_id=177, unk_id=178).eval()
            folder = tmp_path_factory.mktemp(shape)
            write_checkpoint(model, folder / "checkpoint")
            difference = export_folder(folder / "checkpoint", tokenizer_folder, folder / "out", "# A card\n")
            done[shape] = (model, folder / "out", difference)
        return done[shape]

    return export


def test_export_is_equal_and_complete(exportable_shape, exported):
    model, out, difference = exported(exportable_shape)
    report = json.loads((out / "export.json").read_text())
    assert difference == report["max_difference"] <= 1e-4
    assert report["max_hidden_difference"] <= 1e-5
    assert report["missing"] == report["unexpected"] == []
    assert (out / "README.md").read_text() == "# A card\n"
    assert AutoConfig.from_pretrained(out).architectures == [f"{model.config.huggingface_architecture}ForMaskedLM"]
    assert model.config.huggingface_architecture == ARCHITECTURES[exportable_shape.split("-")[0]]
    assert sorted(path.name for path in out.parent.iterdir()) == ["checkpoint", "out"]


def test_document_of_exactly_max_length_is_equal(exportable_shape, exported):
    model, out, _ = exported(exportable_shape)
    input_ids = torch.randint(0, 175, (2, model.config.max_length))
    with torch.no_grad():
        theirs = AutoModelForMaskedLM.from_pretrained(out)(input_ids).logits
        assert (model.logits(input_ids) - theirs).abs().max() <= 1e-4


def test_r22_padding_changes_nothing_in_the_exported_model(exportable_shape, exported):
    model, out, _ = exported(exportable_shape)
    text = torch.randint(0, 175, (1, 20))
    padded = torch.cat([text, torch.full((1, 20), 179)], dim=1)
    mask = torch.arange(40)[None] < 20
    for kernel in ("eager", "sdpa"):
        theirs = AutoModel.from_pretrained(out, attn_implementation=kernel)
        with torch.no_grad():
            alone = theirs(text).last_hidden_state
            beside = theirs(padded, attention_mask=mask.long()).last_hidden_state[:, :20]
            ours = model.encoder.hidden(padded, mask)[:, :20]
            other_pads = model.encoder.hidden(torch.where(mask, padded, 5), mask)[:, :20]
        assert (alone - beside).abs().max() <= 1e-5
        assert (alone - ours).abs().max() <= 1e-5
        assert torch.equal(ours, other_pads)


def test_r27_exported_tokenizer_says_which_inputs_the_model_takes(exportable_shape, exported):
    _, out, _ = exported(exportable_shape)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.model_max_length == 48
    pair = tokenizer("w1 w2", "w3", return_tensors="pt")
    assert set(pair) == {"input_ids", "attention_mask"}  # no segments were learned
    assert pair["input_ids"].tolist() == [[175, 1, 2, 176, 3, 176]]
    theirs = AutoModel.from_pretrained(out).eval()
    with torch.no_grad():
        without = theirs(**pair).last_hidden_state
        if theirs.config.model_type != "modernbert":
            segments = tokenizer("w1 w2", "w3", return_token_type_ids=True)["token_type_ids"]
            assert segments == [0, 0, 0, 0, 1, 1]
            sent = theirs(**pair, token_type_ids=torch.tensor([segments])).last_hidden_state
            assert torch.equal(sent, without)  # two rows of zeros: sending them is harmless


def test_r28_tied_weight_is_stored_once_and_loads_tied(exportable_shape, exported):
    _, out, _ = exported(exportable_shape)
    stored = load_file(out / "model.safetensors")
    assert not any("decoder.weight" in name for name in stored)
    theirs = AutoModelForMaskedLM.from_pretrained(out)
    head, embedding = theirs.get_output_embeddings(), theirs.get_input_embeddings()
    assert head.weight.data_ptr() == embedding.weight.data_ptr()
    again = AutoModelForMaskedLM.from_pretrained(out)
    input_ids = torch.randint(0, 175, (2, 30))
    assert torch.equal(theirs(input_ids).logits, again(input_ids).logits)
    loss = theirs.train()(input_ids, labels=input_ids).loss
    loss.backward()
    torch.optim.AdamW(theirs.parameters(), lr=1e-2).step()
    assert torch.equal(head.weight, embedding.weight)
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in again.parameters())


def test_r29_auto_model_loads_every_weight(exportable_shape, exported):
    _, out, _ = exported(exportable_shape)
    _, info = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    _, info = AutoModel.from_pretrained(out, output_loading_info=True)
    assert all("pooler" in name for name in info["missing_keys"])
    assert all(name.startswith(("lm_head", "cls", "head", "decoder")) for name in info["unexpected_keys"])
    _, info = AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert all(name.startswith(("classifier", "bert.pooler")) for name in info["missing_keys"])


def test_fill_mask_works(exportable_shape, exported):
    _, out, _ = exported(exportable_shape)
    fills = pipeline("fill-mask", model=str(out), device="cpu")("w1 [MASK] w3", top_k=3)
    assert [fill["sequence"].split()[0] for fill in fills] == ["w1"] * 3


def test_an_export_replaces_an_export_and_nothing_else(exported, tokenizer_folder, tmp_path):
    _, out, _ = exported("rope-geglu")
    checkpoint = out.parent / "checkpoint"
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and is no export"):
        export_folder(checkpoint, tokenizer_folder, tmp_path, "card")
    with pytest.raises(ValueError, match="exists and is no export"):
        export_folder(checkpoint, tokenizer_folder, tmp_path / "thesis.txt", "card")
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    shutil.copytree(out, tmp_path / "new")
    export_folder(checkpoint, tokenizer_folder, tmp_path / "new", "second")
    assert (tmp_path / "new" / "README.md").read_text() == "second"


def test_tokenizer_larger_than_the_embedding_is_refused(tiny_model, write_checkpoint, tokenizer_folder, tmp_path):
    model = tiny_model("rope-geglu", vocab_size=100)
    write_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"has 180 tokens, the model's vocab_size is 100"):
        export_folder(tmp_path / "checkpoint", tokenizer_folder, tmp_path / "out", "card")
    with pytest.raises(ValueError, match="AutoTokenizer cannot read it"):
        export_folder(tmp_path / "checkpoint", tmp_path / "nothing", tmp_path / "out", "card")
    assert not (tmp_path / "out").exists()


def test_research_shape_is_not_exported(tiny_model, write_checkpoint, tokenizer_folder, tmp_path):
    model = tiny_model("none-gelu")
    write_checkpoint(model, tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="no architecture of transformers"):
        export_folder(tmp_path / "checkpoint", tokenizer_folder, tmp_path / "out", "card")

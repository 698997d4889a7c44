"""The base presets are the published architectures, parameter by parameter."""

import pytest
import torch
import yaml
from transformers import AutoModelForMaskedLM, BertConfig, ModernBertConfig, RobertaPreLayerNormConfig

from configs.loader import validate
from encoder import EncoderConfig, MaskedLanguageModel

PRE_LN = RobertaPreLayerNormConfig(vocab_size=30_522, max_position_embeddings=512, type_vocab_size=2)
PUBLISHED = {"bert_base": BertConfig(), "pre_ln_base": PRE_LN, "modernbert_base": ModernBertConfig()}
SEGMENTS = {"pre_ln_base": 2 * 768}  # the two rows of zeros that an export adds


@pytest.mark.parametrize("name", PUBLISHED)
def test_base_presets_are_the_published_shapes(name, root):
    values = yaml.safe_load((root / "configs" / f"{name}.yaml").read_text())["encoder"]
    config = validate(EncoderConfig, values, name)
    with torch.device("meta"):
        ours = MaskedLanguageModel(config)
        theirs = AutoModelForMaskedLM.from_config(PUBLISHED[name])
    theirs.tie_weights()
    published = sum(parameter.numel() for parameter in theirs.parameters())
    assert config.num_parameters() == sum(parameter.numel() for parameter in ours.parameters())
    assert config.num_parameters() + SEGMENTS.get(name, 0) == published
    layer_types = getattr(PUBLISHED[name], "layer_types", None) or ["full_attention"] * 12
    assert [config.is_local(layer) for layer in range(config.num_layers)] == [
        t != "full_attention" for t in layer_types
    ]

"""torch.compile: natural documents cause no recompilation after three steps, and change neither loss nor gradients."""

import random

import pytest
import torch
from torch._dynamo.utils import counters

from encoder import Documents, MaskedLanguageModel


def natural_batch(generator, rows=4, row=48):
    """Rows of documents of random lengths with a random number of masked tokens."""
    pieces = []
    for _ in range(rows):
        left, lengths = row, []
        while left > 4:
            lengths.append(min(left, generator.randint(2, row)))
            left -= lengths[-1]
        pieces.append(lengths)
    input_ids = torch.tensor([generator.randrange(5, 203) for _ in range(rows * row)])
    masked = torch.tensor(generator.sample(range(rows * row), generator.randint(15, 40)))
    return input_ids, Documents.from_piece_lengths(pieces, row), masked, input_ids[masked]


def graphs_by_step(model, compiled, steps):
    """Compiled graphs after each step; asserts that losses and gradients are those of `model` itself."""
    torch._dynamo.reset()
    counters.clear()
    generator = random.Random(0)
    graphs = []
    for step in range(steps):
        batch = natural_batch(generator)
        gradients = []
        for way in (model, compiled):
            torch.manual_seed(step)
            model.zero_grad()
            loss = way(*batch).loss_sum / len(batch[2])
            loss.backward()
            gradients.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        assert all((a - b).abs().max() <= 1e-4 for a, b in zip(*gradients, strict=True))
        graphs.append(counters["stats"]["unique_graphs"])
    return graphs


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        ("rope-geglu", {"gradient_checkpointing": 1, "hidden_dropout": 0.1, "attention_dropout": 0.1}),
        ("pre-learned-gelu", {"gradient_checkpointing": 2}),
    ],
)
def test_no_recompilation_after_three_steps(shape, changes, tiny_model):
    model = tiny_model(shape, num_layers=3, **changes)
    graphs = graphs_by_step(model, torch.compile(model, backend="aot_eager"), 12)
    assert graphs[2] == graphs[-1] > 0


@pytest.mark.parametrize("every", [0, 1])
def test_a_compiled_model_follows_new_rope_bases(every, tiny_model):
    model = tiny_model("rope-geglu-local", gradient_checkpointing=every)
    expected = tiny_model("rope-geglu-local", rope_base=1e6, local_rope_base=2e4)
    batch = natural_batch(random.Random(0))
    torch._dynamo.reset()
    counters.clear()
    model.compile(backend="aot_eager")  # in place, as the engines do
    loss = expected(*batch).loss_sum.item()
    assert model(*batch).loss_sum.item() != pytest.approx(loss, rel=1e-4)
    model.encoder.set_rope_bases(expected.config)
    assert model(*batch).loss_sum.item() == pytest.approx(loss, rel=1e-6)
    assert counters["stats"]["unique_graphs"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["rope-geglu-local", "pre-learned-gelu"])
def test_inductor_60_steps_of_natural_documents(shape, tiny_config):
    torch.manual_seed(0)
    model = MaskedLanguageModel(tiny_config(shape))
    graphs = graphs_by_step(model, torch.compile(model), 60)
    assert graphs[2] == graphs[-1] > 0

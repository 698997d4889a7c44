"""A task's model as an ONNX graph, and an ONNX graph in the place of a task's model.

Both axes of every input stay free (batch and length), which `largest_difference` proves by running other shapes than
the sample. Exported with torch's own exporter; run by ONNX Runtime on the CPU.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from finetune.reading.inputs import Inputs

GRAPH_FILE = "model.onnx"
SENTENCE_OUTPUT = ("sentence_embedding",)  # of a model that returns its vectors as one tensor
CHECKED_SHAPES = ((1, 5), (3, 17), (2, None))  # rows, tokens; None: the longest input that the model takes


class _PositionalModel(nn.Module):
    """The model with positional arguments and a tuple of its named outputs: what the exporter wants."""

    def __init__(self, model: nn.Module, output_names: Sequence[str]):
        super().__init__()
        self.model, self.output_names = model, output_names

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        output = self.model(**inputs)
        return (output,) if isinstance(output, Tensor) else tuple(getattr(output, name) for name in self.output_names)


class OnnxModel(nn.Module):
    """Runs a graph with the calls and outputs of the model that it was made from."""

    def __init__(self, path: Path, output_names: Sequence[str]):
        import onnxruntime

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.output_names = output_names
        self.device_marker = nn.Parameter(torch.zeros(0))  # tasks ask a model's parameters where its inputs belong

    def run(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """The outputs in the order of their names."""
        feeds = {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
        return [torch.from_numpy(array) for array in self.session.run(list(self.output_names), feeds)]

    def forward(self, **inputs: Tensor) -> Any:
        """As the task's model: an object with the named outputs, or a sentence encoder's vectors by themselves."""
        tensors = self.run(inputs)
        if self.output_names == SENTENCE_OUTPUT:
            return tensors[0]
        return SimpleNamespace(**dict(zip(self.output_names, tensors, strict=True)))


def sample_inputs(inputs: Inputs, rows: int, length: int) -> dict[str, Tensor]:
    """Random tokens (rows, length), the last row half padding."""
    random = np.random.default_rng(0)
    ids = torch.from_numpy(random.integers(0, len(inputs.tokenizer), (rows, length)))
    mask = torch.ones_like(ids)
    mask[-1, (length + 1) // 2 :] = 0
    ids[mask == 0] = inputs.tokenizer.pad_token_id
    segments = {"token_type_ids": torch.zeros_like(ids)} if inputs.has_segments else {}
    return {"input_ids": ids, "attention_mask": mask, **segments}


def export_graph(
    model: nn.Module, inputs: Inputs, output_names: Sequence[str], path: Path, sample_shape: tuple[int, int] = (2, 8)
) -> None:
    """Write the graph of `model` to `path`; the sample's shape (both numbers above 1) leaves no trace in it."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    sample = sample_inputs(inputs, *sample_shape)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        torch.onnx.export(
            _PositionalModel(model, output_names).eval(),
            tuple(sample.values()),
            str(path),
            input_names=list(sample),
            output_names=list(output_names),
            dynamic_shapes=dict.fromkeys(sample, free),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def largest_difference(model: nn.Module, graph: OnnxModel, inputs: Inputs, per_token: bool) -> float:
    """max |graph - model| at `CHECKED_SHAPES`, padded rows among them; of outputs `per_token` only at real tokens."""
    positional, largest = _PositionalModel(model, graph.output_names).eval(), 0.0
    for rows, length in CHECKED_SHAPES:
        sample = sample_inputs(inputs, rows, length or inputs.max_length)
        with torch.no_grad():
            expected = positional(**sample)
        mask = sample["attention_mask"].bool()
        for ours, theirs in zip(graph.run(sample), expected, strict=True):
            difference = (ours - theirs).abs()
            largest = max(largest, float((difference[mask] if per_token else difference).max()))
    return largest

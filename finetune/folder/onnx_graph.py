"""A task's model as an ONNX graph, and an ONNX graph in the place of a task's model.

Both axes of every input stay free (batch and length), which `check_shapes` proves by running other shapes than the
sample. Exported with torch's own exporter; run by ONNX Runtime on the CPU.
"""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from finetune.reading.inputs import Inputs

GRAPH = "model.onnx"
OUTPUTS = {
    "classification": ["logits"],
    "tagging": ["logits"],
    "answering": ["start_logits", "end_logits"],
    "matching": ["sentence_embedding"],
}
SHAPES = ((1, 5), (3, 17), (2, 0))  # rows, tokens; 0 = the longest input that the model takes


class _Named(nn.Module):
    """The model with a tuple of its named outputs, positional arguments only: what the exporter wants."""

    def __init__(self, model: nn.Module, outputs: list[str]):
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Any:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        output = self.model(**inputs)
        return (output,) if isinstance(output, Tensor) else tuple(getattr(output, name) for name in self.outputs)


class OnnxModel(nn.Module):
    """Runs a graph with the calls and outputs of the model that it was made from."""

    def __init__(self, path: Path, outputs: list[str]):
        import onnxruntime

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.outputs = outputs
        self.device_marker = nn.Parameter(torch.zeros(0))  # tasks ask a model's parameters where its inputs belong

    def forward(self, **inputs: Tensor) -> Any:
        feeds = {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
        tensors = [torch.from_numpy(array) for array in self.session.run(self.outputs, feeds)]
        if self.outputs == OUTPUTS["matching"]:
            return tensors[0]
        return SimpleNamespace(**dict(zip(self.outputs, tensors, strict=True)))


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
    model: nn.Module, inputs: Inputs, outputs: list[str], path: Path, sample_shape: tuple[int, int] = (2, 8)
) -> None:
    """Write the graph of `model` to `path`; the sample's shape (both numbers above 1) leaves no trace in it."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    sample = sample_inputs(inputs, *sample_shape)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with torch.no_grad():
        torch.onnx.export(
            _Named(model, outputs).eval(),
            tuple(sample.values()),
            str(path),
            input_names=list(sample),
            output_names=outputs,
            dynamic_shapes=dict.fromkeys(sample, free),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def largest_difference(model: nn.Module, graph: OnnxModel, inputs: Inputs) -> float:
    """max |graph - model| over real tokens at `SHAPES`, padded rows among them."""
    named, worst = _Named(model, graph.outputs).eval(), 0.0
    for rows, length in SHAPES:
        sample = sample_inputs(inputs, rows, length or inputs.max_length)
        with torch.no_grad():
            expected = named(**sample)
        output = graph(**sample)
        found = (output,) if isinstance(output, Tensor) else tuple(getattr(output, name) for name in graph.outputs)
        mask = sample["attention_mask"].bool()
        for ours, theirs in zip(found, expected, strict=True):
            by_token = ours.shape[:2] == mask.shape and graph.outputs != OUTPUTS["classification"]
            difference = (ours - theirs).abs()
            worst = max(worst, float((difference[mask] if by_token else difference).max()))
    return worst

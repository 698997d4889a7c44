"""Write a safetensors file tensor by tensor.

`safetensors.torch.save_file` wants every tensor in memory at once; a checkpoint gathers one at a time, so rank 0 never
holds more than the largest. The format is a length, a JSON header with offsets, and the raw little-endian values.
"""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor


class TensorFile:
    """A safetensors file of fp32 tensors, added in the order of `shapes`."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name, shape in shapes.items():
            begin, end = end, end + 4 * math.prod(shape)
            header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._shapes = dict(shapes)
        self._expected = list(shapes)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def add(self, name: str, tensor: Tensor) -> None:
        """Append `tensor`: the next name of `shapes`, fp32 on the CPU."""
        assert name == self._expected.pop(0), name
        assert tensor.numel() == math.prod(self._shapes[name]), name
        self._file.write(tensor.contiguous().view(-1).numpy().data)

    def flush(self) -> None:
        """Bring everything to disk, once every tensor is there."""
        assert not self._expected, f"never written: {self._expected}"
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close, whether complete or not; an error of the last bytes was `flush`'s to report."""
        with suppress(OSError):
            self._file.close()

#!/usr/bin/env bash
# Device checks of the encoder, cheapest first: equality of kernels, then throughput. About 8 minutes on one H100.
# Everything goes to $OUT (default runs/gpu).
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-runs/gpu}
mkdir -p "$OUT"
"$PYTHON" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' | tee "$OUT/device.txt"
"$PYTHON" -m pytest -m gpu tests/encoder/test_cuda.py 2>&1 | tee "$OUT/tests.txt" || true
"$PYTHON" -m benchmarks.gpu base large 2>&1 | tee "$OUT/eager.jsonl"
"$PYTHON" -m benchmarks.gpu base large lengths=512,1024 compile=true 2>&1 | tee "$OUT/compiled.jsonl"

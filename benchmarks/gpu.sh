#!/usr/bin/env bash
# Device checks, cheapest first: equality of kernels, one DeepSpeed run in bf16, then throughput, MFU and memory.
# Everything goes to $OUT (default runs/gpu). Not run yet: no device was at hand.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-runs/gpu}
mkdir -p "$OUT"
"$PYTHON" -c 'import torch; print(torch.__version__, torch.cuda.get_device_name())' | tee "$OUT/device.txt"
"$PYTHON" -m pytest -m gpu 2>&1 | tee "$OUT/tests.txt" || true
"$PYTHON" -m examples.sotu_corpus runs/quickstart/corpus
"$PYTHON" -m data.tokenizer configs/quickstart_tokenizer.yaml
"$PYTHON" -m pretrain configs/quickstart.yaml run_dir="$OUT/deepspeed" engine.precision=bf16 training.num_steps=300 \
    2>&1 | tee "$OUT/deepspeed.txt"
"$PYTHON" -m benchmarks.gpu base large 2>&1 | tee "$OUT/eager.jsonl"
"$PYTHON" -m benchmarks.gpu base large lengths=512,1024 compile=true 2>&1 | tee "$OUT/compiled.jsonl"

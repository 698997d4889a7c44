"""Where the figures of RESULTS.md come from: `python -m benchmarks.NAME`, for every module but `inputs` and `timing`.

One thread a process unless OMP_NUM_THREADS says more, and nothing fetched: set here, as torch and transformers read it
when they are imported.
"""

import os

for name, value in {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}.items():
    os.environ.setdefault(name, value)

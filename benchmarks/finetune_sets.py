"""An encoder's folder beside the same shape from scratch on many tasks: `python -m benchmarks.finetune_sets MODEL
[rows] [set …]`.

For each set of ../shared/data: a fixed number of training rows, three seeds, default settings, the test scores of the
pretrained encoder and of random weights of its shape, and where it exists the majority class. One JSON line a set.
"""

import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from configs.loader import validate
from finetune.config import FinetuneConfig
from finetune.run import run

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SETS = {  # task, training rows, test rows
    "SST-2": ("classification", "classification/en_sst2_glue.train", "classification/en_sst2_glue.test"),
    "TREC": ("classification", "classification/en_trec.train", "classification/en_trec.test"),
    "AG News": ("classification", "classification/en_agnews_part.train", "classification/en_agnews_part.dev"),
    "waimai": ("classification", "classification/zh_waimai10k.train", "classification/zh_waimai10k.test"),
    "MRPC": ("classification", "pairs/en_mrpc.train", "pairs/en_mrpc.test"),
    "STS-B": ("matching", "sts/en_stsb.train", "sts/en_stsb.test"),
    "SICK": ("matching", "sts/en_sick.train", "sts/en_sick.test"),
    "CoNLL-2003": ("tagging", "token/en_conll2003.train", "token/en_conll2003.test"),
    "resume NER": ("tagging", "token/zh_resume_ner.train", "token/zh_resume_ner.test"),
}


def first_rows(name: str, count: int, folder: Path) -> str:
    """The first rows of a set as a file of its own."""
    path = folder / f"{name.replace('/', '_')}.jsonl"
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        path.write_text("".join(line for line, _ in zip(file, range(count), strict=False)), encoding="utf-8")
    return str(path)


def measure(name: str, model: str, rows: int, folder: Path) -> dict[str, Any]:
    """One set's line."""
    task, train, test = SETS[name]
    majority = ["majority"] if task == "classification" else []
    config = {
        "task": task, "model": model, "run_dir": str(folder / "run"), "max_length": 64,
        "train": first_rows(train, rows, folder), "test": first_rows(test, 1000, folder),
        "baselines": [*majority, "from_scratch"],
    }  # fmt: skip
    start = time.process_time()
    results = run(validate(FinetuneConfig, config, name))
    scratch = results["baselines"]["from_scratch"]
    line = {"set": name, "metric": results["metric"], "rows": results["train_rows"]}
    for key, found in (("pretrained", results), ("from_scratch", scratch)):
        line |= {key: round(found["mean"], 3), f"{key}_sd": round(found["standard_deviation"], 3)}
    line |= {"majority": results["baselines"].get("majority"), "cpu_seconds": round(time.process_time() - start)}
    if "before" in results:
        line["untrained"] = round(results["before"][results["metric"]], 3)
    return line


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[3:]) <= set(SETS):
        sys.exit(f"usage: python -m benchmarks.finetune_sets MODEL [rows] [{' | '.join(SETS)}]")
    for chosen in sys.argv[3:] or SETS:
        with tempfile.TemporaryDirectory() as temporary:
            count = int(sys.argv[2]) if len(sys.argv) > 2 else 4000
            print(json.dumps(measure(chosen, sys.argv[1], count, Path(temporary)), ensure_ascii=False), flush=True)

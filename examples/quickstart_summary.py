"""The quickstart's results: reads what the stages wrote, writes `runs/quickstart/summary.json`, prints a table.

`python -m examples.quickstart_summary`, the last line of examples/quickstart.sh.
"""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from configs.atomic import write_text

FOLDER = Path("runs/quickstart")
RUN, EXPORT = FOLDER / "pretrain", FOLDER / "export"
STAGES = ["corpus", "tokenizer", "pretrain", "evaluate", "export", "classification", "matching", "fill-ins"]


def read(name: str) -> Any:
    """A JSON file of the quickstart."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def summarize() -> dict[str, Any]:
    """Every number of the quickstart."""
    return {
        "rows": {path.stem: len(path.read_bytes().splitlines()) for path in sorted((FOLDER / "corpus").iterdir())},
        **pretraining(),
        **evaluation(),
        "export": str(EXPORT),
        "export_max_difference": read("export/export.json")["max_difference"],
        "classification": classification(),
        "matching": matching(),
        "fill_ins": read("fill_ins.json"),
        "seconds": seconds(),
    }


def pretraining() -> dict[str, Any]:
    """Compare, bit for bit, the steps that the killed processes and the resumed ones both computed."""
    lines = (RUN / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    entries = [json.loads(line) for line in lines if line.endswith("}")]  # a kill may leave a line unfinished
    train = [entry for entry in entries if entry["kind"] == "train"]
    first: dict[int, tuple[float, str]] = {}
    repeated = equal = 0
    for entry in train:
        computed = (entry["loss"], entry["batch_hash"])
        if entry["step"] in first:
            repeated += 1
            equal += first[entry["step"]] == computed
        first.setdefault(entry["step"], computed)
    return {
        "mlm_loss_first": train[0]["loss"],
        "steps_repeated": repeated,
        "resume_bit_exact": repeated > 0 and repeated == equal and first.keys() == set(range(1, max(first) + 1)),
        "tokens": train[-1]["tokens"],
    }


def evaluation() -> dict[str, Any]:
    """Held-out loss beside the unigram entropy of the same masked tokens."""
    result = json.loads((FOLDER / "evaluation.json").read_text(encoding="utf-8").splitlines()[-1])
    keys = {"mlm_loss_last": "loss", "unigram_entropy": "unigram_entropy", "mlm_accuracy": "accuracy"}
    return {key: result[source] for key, source in keys.items()}


def classification() -> dict[str, Any]:
    """Accuracy of the pretrained encoder, of the same shape from scratch, and of the most frequent class."""
    result = read("era/results.json")
    scratch = result["baselines"]["from_scratch"]
    return {
        "pretrained": result["mean"],
        "from_scratch": scratch["mean"],
        "majority": result["baselines"]["majority"],
        "standard_deviation": {
            "pretrained": result["standard_deviation"],
            "from_scratch": scratch["standard_deviation"],
        },
    }


def matching() -> dict[str, Any]:
    """Retrieval before and after SimCSE."""
    result = read("next/results.json")
    metric = result["metric"]
    return {"before": result["before"][metric], "after": result["after"][metric], "metric": metric}


def seconds() -> dict[str, int]:
    """Seconds of each stage's last start; 0 for one that was interrupted between its output and its time."""
    lines = (FOLDER / "seconds.txt").read_text(encoding="utf-8").splitlines()
    noted = dict(line.split() for line in lines)
    return {stage: int(noted.get(stage, 0)) for stage in STAGES}


def show(summary: dict[str, Any]) -> None:
    """Print the closing table."""
    console = Console(soft_wrap=True, highlight=False)
    console.print()
    for text, words in summary["fill_ins"].items():
        console.print(f"  {text}  →  {', '.join(words)}", markup=False)
    table = Table(title="quickstart")
    table.add_column("measured")
    table.add_column("value", justify="right")
    era, pairs = summary["classification"], summary["matching"]
    rows = {
        "loss of masked words, first step → held-out": (
            f"{summary['mlm_loss_first']:.2f} → {summary['mlm_loss_last']:.2f}"
        ),
        "unigram entropy of the same words": f"{summary['unigram_entropy']:.2f}",
        f"{summary['steps_repeated']} steps after the kill, bit-equal to before": str(summary["resume_bit_exact"]),
        "export: largest difference of logits": f"{summary['export_max_difference']:.1e}",
        "era: pretrained / from scratch / majority": (
            f"{era['pretrained']:.3f} / {era['from_scratch']:.3f} / {era['majority']:.3f}"
        ),
        f"next paragraph, {pairs['metric']}: before / after": f"{pairs['before']:.3f} / {pairs['after']:.3f}",
        "minutes in all": f"{sum(summary['seconds'].values()) / 60:.1f}",
    }
    for row in rows.items():
        table.add_row(*row)
    console.print(table)
    console.print(f"all numbers: {FOLDER / 'summary.json'}; the model: {EXPORT}; the run: {RUN}")


def main() -> None:
    """Write the summary and show it."""
    summary = summarize()
    write_text(FOLDER / "summary.json", json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    show(summary)


if __name__ == "__main__":
    main()

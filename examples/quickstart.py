"""The whole road on one CPU machine: `make quickstart`.

    corpus -> tokenizer -> pretraining (2 DeepSpeed processes, killed and resumed) -> export -> classification, matching

Every stage is a command that a user would type; this file only calls them in order, skips what is done, and reads what
they wrote. Run it again after an interruption and it goes on; after success it says so (`--again` starts afresh).
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.sotu_corpus import write_corpus

ROOT = Path("runs/quickstart")
RUN, EXPORT, DONE = ROOT / "pretrain", ROOT / "export", ROOT / "stages.json"
PROMPTS = [
    "The congress of the united [MASK] has passed the bill.",
    "We must reduce [MASK] for working families.",
    "The treaty between the two [MASK] was ratified by the senate.",
    "Our army and [MASK] are ready to defend the country.",
]
console = Console(soft_wrap=True, highlight=False)


@dataclass(frozen=True)
class Size:
    """How much is computed; `tiny` is what the tests run."""

    steps: int
    overrides: tuple[str, ...]
    tune: tuple[str, ...]
    evaluation_rows: int


SIZES = {
    "full": Size(4000, (), (), 2000),
    "tiny": Size(
        40,
        ("encoder.num_layers=1", "encoder.hidden_size=32", "encoder.num_heads=1", "data.num_lanes=2",
         "data.window_documents=32", "checkpoint.save_every=4", "evaluation.every=6", "evaluation.rows=16"),
        ("seeds=[0]", "training.num_epochs=1"), 16,
    ),
}  # fmt: skip


def call(*command: str) -> str:
    """Run `python …`, its errors on our console; what it printed. Ends this program when it fails."""
    result = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment())
    if result.returncode:
        sys.exit(f"quickstart: `python {' '.join(command)}` ended with exit code {result.returncode}")
    return result.stdout


def environment() -> dict[str, str]:
    """One thread a process, nothing fetched, nothing sent."""
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "TOKENIZERS_PARALLELISM": "false"}
    return {**quiet, "PYTHONWARNINGS": "ignore::FutureWarning", **os.environ}


def history() -> list[dict[str, Any]]:
    """The lines of the run's metrics.jsonl; a torn last one is passed over."""
    path = RUN / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def last_step() -> int:
    """The step of the history's last whole line, read from its end."""
    path = RUN / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = [line for line in file.read().split(b"\n") if line.startswith(b"{") and line.endswith(b"}")]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def pretrain(size: Size) -> dict[str, Any]:
    """Train with two DeepSpeed processes; the first time, kill both without warning half-way, then go on."""
    save_every = 4 if size.steps < 500 else 500
    kill_after = size.steps // 2 // save_every * save_every + save_every // 2
    if not any(entry["kind"] == "stop" for entry in history()):
        if last_step() < kill_after:
            kill_at(kill_after, launch(size))
        if launch(size).wait():
            sys.exit("quickstart: pretraining failed")
    return resume_report()


def kill_at(step: int, launcher: "subprocess.Popen[bytes]") -> None:
    """Kill -9 every process of the run once it is past `step`, as a preemption without warning would."""
    while launcher.poll() is None and last_step() < step:
        time.sleep(0.05)
    if launcher.poll() is None:
        console.print(f"  kill -9 of both processes after step {last_step()}")
        for pid in next(entry["pids"] for entry in reversed(history()) if entry["kind"] == "start"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    launcher.wait()


def launch(size: Size) -> "subprocess.Popen[bytes]":
    """Two processes of `python -m pretrain` under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "pretrain"]
    command += ["configs/quickstart.yaml", f"training.num_steps={size.steps}", *size.overrides]
    with (ROOT / "pretrain.log").open("ab") as log:
        return subprocess.Popen(command, env=environment(), stdout=log, stderr=follow(log))


def follow(log: Any) -> Any:
    """Standard error of the launcher: our console when it is one, else the log."""
    return None if sys.stderr.isatty() else log


def resume_report() -> dict[str, Any]:
    """Compare, bit for bit, the steps that the killed process and the resumed one both computed."""
    first: dict[int, tuple[float, str]] = {}
    repeated = equal = 0
    train = [entry for entry in history() if entry["kind"] == "train"]
    for entry in train:
        seen = (entry["loss"], entry["batch_hash"])
        if entry["step"] in first:
            repeated += 1
            equal += first[entry["step"]] == seen
        first.setdefault(entry["step"], seen)
    steps = {entry["step"] for entry in train}
    return {
        "mlm_loss_first": train[0]["loss"],
        "steps_repeated": repeated,
        "resume_bit_exact": repeated > 0 and repeated == equal and steps == set(range(1, max(steps) + 1)),
        "tokens": train[-1]["tokens"],
    }


def measure(size: Size) -> dict[str, Any]:
    """Held-out loss beside the unigram entropy of the same masked tokens."""
    text = call("-m", "pretrain.evaluate", str(RUN), f"evaluation.rows={size.evaluation_rows}")
    result = json.loads(text.strip().splitlines()[-1])
    keys = {"mlm_loss_last": "loss", "unigram_entropy": "unigram_entropy", "mlm_accuracy": "accuracy"}
    return {key: result[source] for key, source in keys.items()}


def export(size: Size) -> dict[str, Any]:
    """A plain Hugging Face folder, reloaded and compared by the command itself."""
    call("-m", "pretrain.export", str(RUN), str(EXPORT))
    report = json.loads((EXPORT / "export.json").read_text())
    return {"export": str(EXPORT), "export_max_difference": report["max_difference"]}


def classify(size: Size) -> dict[str, Any]:
    """The era of a paragraph, from 100 labels: pretrained, from scratch, majority."""
    call("-m", "finetune", "configs/finetune/quickstart_era.yaml", *size.tune)
    result = json.loads((ROOT / "era" / "results.json").read_text())
    scratch = result["baselines"]["from_scratch"]
    return {
        "classification": {
            "pretrained": result["mean"], "from_scratch": scratch["mean"], "majority": result["baselines"]["majority"],
            "standard_deviation": {
                "pretrained": result["standard_deviation"], "from_scratch": scratch["standard_deviation"]
            },
        }
    }  # fmt: skip


def match(size: Size) -> dict[str, Any]:
    """Find the paragraph that follows, before and after SimCSE."""
    call("-m", "finetune", "configs/finetune/quickstart_next.yaml", *size.tune)
    result = json.loads((ROOT / "next" / "results.json").read_text())
    metric = result["metric"]
    return {"matching": {"before": result["before"][metric], "after": result["after"][metric], "metric": metric}}


def fill_in(size: Size) -> dict[str, Any]:
    """The exported folder's best guesses for a few masks."""
    code = (
        "import json, sys; from transformers import pipeline, logging;"
        "logging.set_verbosity_error(); logging.disable_progress_bar();"
        "fill = pipeline('fill-mask', model=sys.argv[1], top_k=5);"
        "print(json.dumps([[guess['token_str'] for guess in fill(text)] for text in sys.argv[2:]]))"
    )
    guesses = json.loads(call("-c", code, str(EXPORT), *PROMPTS).strip().splitlines()[-1])
    return {"fill_ins": dict(zip(PROMPTS, guesses, strict=True))}


def corpus(size: Size) -> dict[str, Any]:
    """The sotu package's messages as files."""
    return {"rows": write_corpus(ROOT / "corpus")}


def tokenizer(size: Size) -> dict[str, Any]:
    """A WordPiece vocabulary of 4,096."""
    call("-m", "data.tokenizer", "configs/quickstart_tokenizer.yaml")
    return {}


STAGES: list[tuple[str, Callable[[Size], dict[str, Any]], float, str]] = [
    ("corpus", corpus, 2, "249 presidential messages from the sotu package, one in eight held out"),
    ("tokenizer", tokenizer, 8, "WordPiece, 4,096 entries"),
    ("pretrain", pretrain, 310, "2 DeepSpeed ZeRO-1 processes, killed half-way and resumed"),
    ("evaluate", measure, 15, "loss on held-out documents"),
    ("export", export, 20, "a plain Hugging Face folder, reloaded in a fresh process and compared"),
    ("classification", classify, 60, "the era of a paragraph from 100 labels, 3 seeds, and from scratch"),
    ("matching", match, 40, "find the paragraph that follows, before and after SimCSE"),
    ("fill-ins", fill_in, 10, "what the model puts into the gaps"),
]  # fmt: skip


def show(summary: dict[str, Any]) -> None:
    """The closing table."""
    console.print()
    for text, guesses in summary["fill_ins"].items():
        console.print(f"  {text}  →  {', '.join(guesses)}", markup=False)
    table = Table(title="quickstart")
    table.add_column("measured")
    table.add_column("value", justify="right")
    era, matching = summary["classification"], summary["matching"]
    rows = [
        ("loss of masked words, first step → held-out",
         f"{summary['mlm_loss_first']:.2f} → {summary['mlm_loss_last']:.2f}"),
        ("unigram entropy of the same words", f"{summary['unigram_entropy']:.2f}"),
        (f"{summary['steps_repeated']} steps after the kill, bit-equal to before", str(summary["resume_bit_exact"])),
        ("export: largest difference of logits", f"{summary['export_max_difference']:.1e}"),
        ("era: pretrained / from scratch / majority",
         f"{era['pretrained']:.3f} / {era['from_scratch']:.3f} / {era['majority']:.3f}"),
        (f"next paragraph, {matching['metric']}: before / after",
         f"{matching['before']:.3f} / {matching['after']:.3f}"),
        ("minutes in all", f"{sum(summary['seconds'].values()) / 60:.1f}"),
    ]  # fmt: skip
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"all numbers: {ROOT / 'summary.json'}; the model: {EXPORT}; the run: {RUN}")


def main() -> None:
    """Run what is not done yet, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="start afresh, removing runs/quickstart")
    parser.add_argument(
        "--size", choices=SIZES, default="full", help="tiny: seconds instead of minutes, no sense in it"
    )
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    if arguments.again and ROOT.exists():
        shutil.rmtree(ROOT)
    ROOT.mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = json.loads(DONE.read_text()) if DONE.exists() else {"size": arguments.size, "stages": {}}
    if done["size"] != arguments.size:
        sys.exit(f"quickstart: {ROOT} holds a run of size {done['size']}; --again removes it")
    if len(done["stages"]) == len(STAGES):
        console.print(f"Done before: {ROOT / 'summary.json'}. Nothing is trained again; --again starts afresh.")
    for number, (name, stage, _, text) in enumerate(STAGES, 1):
        if name in done["stages"]:
            continue
        left = sum(seconds for other, _, seconds, _ in STAGES if other not in done["stages"])
        estimate = f", about {math.ceil(left / 60)} min left" if arguments.size == "full" else ""
        console.print(f"[{number}/{len(STAGES)}] {name}: {text}{estimate}", markup=False)
        started = time.monotonic()
        result = stage(size)
        done["stages"][name] = {**result, "seconds": round(time.monotonic() - started, 1)}
        DONE.write_text(json.dumps(done, indent=2))
    stages = done["stages"]
    summary = {key: value for stage in stages.values() for key, value in stage.items() if key != "seconds"}
    summary["seconds"] = {name: stage["seconds"] for name, stage in stages.items()}
    (ROOT / "summary.json").write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    show(summary)


if __name__ == "__main__":
    main()

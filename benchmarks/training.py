"""What the loop costs: `python -m benchmarks.training PART [PRESET]`, on the CPU, over ../shared/data/pretrain.

    overhead PRESET    share of a step outside forward, backward, optimizer and gradient exchange; data wait
    processes PRESET   2 processes x 1 thread over 1 process x 2 threads, tokens a second, by engine
    resume             seconds from the command to the first step: fresh, and resumed at steps 4 and 40
    save PRESET        pause of a save and its size on disk

Each part prints Markdown rows for RESULTS.md. Shares are of sums, rates are medians, over the steps after the first
five; both sides of a ratio run in turn, in one go.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import DATA

TEXT = DATA / "pretrain" / "en_news_wiki_web.jsonl.gz"
ENGINES = {
    "ddp": ["engine.name=ddp"],
    "ZeRO-1": ["engine.name=deepspeed", "engine.zero_stage=1"],
    "ZeRO-2": ["engine.name=deepspeed", "engine.zero_stage=2"],
    "ZeRO-3": ["engine.name=deepspeed", "engine.zero_stage=3"],
}
# rows of 128 or 512; 16,384 tokens a step and more at small
SHAPES = {
    "small": ["data.rows_per_step=128", "training.rows_per_device=64"],
    "base": ["data.rows_per_step=8", "training.rows_per_device=4"],
}


def tokenizer(folder: Path) -> Path:
    """A WordPiece vocabulary of the text, trained once."""
    out = folder / "tokenizer"
    if not out.exists():
        source = f"sources=[{{path: {TEXT}, format: jsonl}}]"
        command = [sys.executable, "-m", "data.tokenizer", "configs/tokenizer.yaml", f"output={out}", source]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return out


def start(
    folder: Path, name: str, preset: str, steps: int, *overrides: str, processes: int = 1, threads: int = 2
) -> "subprocess.Popen[bytes]":
    """Start a run of `preset` in `folder / name`."""
    run = folder / name
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command += [
        "-m", "pretrain", f"configs/{preset}.yaml", f"run_dir={run}", f"tokenizer={tokenizer(folder)}",
        f"data.sources=[{{path: {TEXT}, format: jsonl}}]", "data.num_lanes=8", f"training.num_steps={steps}",
        "engine.precision=fp32", "logging.trackers=[]", *SHAPES[preset], *overrides,
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def train(folder: Path, name: str, preset: str, steps: int, *overrides: str, **how: int) -> Path:
    """A whole run of `preset`; its folder."""
    if start(folder, name, preset, steps, *overrides, **how).wait():
        raise RuntimeError((folder / name / "status.json").read_text())
    return folder / name


def steps_of(run: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The run's lines of one kind."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def rate(run: Path) -> float:
    """Tokens a second over all ranks, the median of the steps after the first five."""
    return statistics.median(line["tokens_per_second"] for line in steps_of(run)[5:])


def overhead(folder: Path, preset: str) -> None:
    """Everything that is not forward, backward or optimizer, as a share of the time; tokenising happens on the way."""
    for workers in (0, 2):
        steps = 20 if preset == "small" else 9
        run = train(folder, f"overhead_{workers}", preset, steps, f"data.num_workers={workers}")
        lines = steps_of(run)[5:]
        total = sum(line["seconds"] for line in lines)
        work = sum(line[key] for line in lines for key in ("forward", "backward", "optimizer"))
        wait = sum(line["data_wait"] for line in lines)
        print(
            f"| loop at {preset}, {workers} workers | overhead {1 - work / total:.2%} | data wait {wait / total:.2%} |"
        )


def processes(folder: Path, preset: str) -> None:
    """Throughput of two processes with a thread each over one with two."""
    one = train(folder, "one", preset, 15)
    for name, engine in ENGINES.items():
        two = train(folder, f"two_{name}", preset, 15, *engine, processes=2, threads=1)
        rates = [rate(two), rate(one)]
        print(
            f"| 2 x 1 over 1 x 2 at {preset}, {name} | {rates[0] / rates[1]:.2f} | {rates[0]:,.0f} tokens/s |",
            flush=True,
        )


def resume(folder: Path, preset: str, rounds: int = 3) -> None:
    """Seconds from the command to the first step's line: a run is started, stopped and resumed, `rounds` times over."""
    tokenizer(folder)
    shape = ["data.rows_per_step=16", "training.rows_per_device=16", "checkpoint.save_every=1000"]
    seconds: dict[str, list[float]] = {}
    for number in range(rounds):
        run = folder / f"resume_{number}"
        for name, last in (("fresh", 4), ("resumed early", 40), ("resumed late", 41)):
            before = len(steps_of(run)) if run.exists() else 0
            began = time.perf_counter()
            process = start(folder, run.name, preset, 1000, *shape)
            wait_for_steps(run, before + 1, process)
            seconds.setdefault(name, []).append(time.perf_counter() - began)
            wait_for_steps(run, last, process)
            process.send_signal(signal.SIGTERM)  # saves, and ends
            process.wait()
    fresh = statistics.median(seconds["fresh"])
    for name, values in seconds.items():
        value = statistics.median(values)
        print(f"| from the command to the first step, {name} | {value:.1f} s | {value / fresh:.2f} |", flush=True)


def wait_for_steps(run: Path, count: int, process: "subprocess.Popen[bytes]") -> None:
    """Until the history holds so many steps."""
    while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_text().count('"train"') < count:
        if process.poll() is not None:
            raise RuntimeError((run / "status.json").read_text())
        time.sleep(0.02)


def save(folder: Path, preset: str) -> None:
    """The pause of a save, and what it leaves on disk."""
    run = train(folder, "save", preset, 3, "checkpoint.save_every=1")
    pause = statistics.median(line["seconds"] for line in steps_of(run, "save"))
    newest = max((run / "checkpoints").iterdir())
    size = sum(path.stat().st_size for path in newest.iterdir())
    print(f"| save at {preset} | pause {pause:.1f} s | {size / 1e6:,.0f} MB on disk |", flush=True)


def main() -> None:
    """Run one part."""
    parts = {"overhead": overhead, "processes": processes, "resume": resume, "save": save}
    if len(sys.argv) < 2 or sys.argv[1] not in parts:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        parts[sys.argv[1]](Path(folder), sys.argv[2] if len(sys.argv) > 2 else "small")


if __name__ == "__main__":
    main()

"""How long a start takes over many small files of a store: `python -m benchmarks.stores [FILES]`.

moto's S3 server on loopback, four processes under torchrun, a tiny run over 10 and over FILES (10,000) JSON-lines
files, in turn; seconds from the command to the first step, and of one listing of the many.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import boto3
import fsspec
import yaml

from data.tokenizer.train import TokenizerConfig, train

SERVER = """
import logging, time
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
time.sleep(3600)
"""
LINES = "".join(json.dumps({"text": f"deba kula meni {i} " * 8}) + "\n" for i in range(5))
SHAPE = {"num_layers": 2, "hidden_size": 32, "num_heads": 1}


def seconds_to_first_step(folder: Path, bucket: str, number: int) -> float:
    """Start a run over the bucket's files, wait for its first step, and for its end."""
    run = folder / f"{bucket}_{number}"
    source = {"path": f"s3://{bucket}/text/*.jsonl", "format": "jsonl"}
    config = {
        "run_dir": str(run), "tokenizer": str(folder / "tokenizer"), "encoder": SHAPE,
        "data": {"sources": [source], "sequence_length": 32, "rows_per_step": 8, "num_lanes": 4},
        "training": {"num_steps": 2, "rows_per_device": 2},
    }  # fmt: skip
    run.with_suffix(".yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=4", "-m", "pretrain"]
    start, history = time.monotonic(), run / "metrics.jsonl"
    process = subprocess.Popen([*command, str(run.with_suffix(".yaml"))], stderr=subprocess.DEVNULL)
    while process.poll() is None and not (history.exists() and '"train"' in history.read_text()):
        time.sleep(0.05)
    seconds = time.monotonic() - start
    assert process.wait() == 0
    return seconds


def main() -> None:
    """Print one line a start."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert server.stdout
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= {**keys, "AWS_ENDPOINT_URL": url, "OMP_NUM_THREADS": "1"}
    try:
        client = boto3.client("s3")
        for bucket, files in (("few", 10), ("many", count)):
            client.create_bucket(Bucket=bucket)
            for i in range(files):
                client.put_object(Bucket=bucket, Key=f"text/{i:05d}.jsonl", Body=LINES.encode())
        start = time.monotonic()
        found = len(fsspec.filesystem("s3").find("s3://many/text"))
        print(f"one listing of {found} files: {time.monotonic() - start:.1f} s")
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            (folder / "text.jsonl").write_text(LINES)
            source = {"path": str(folder / "text.jsonl"), "format": "jsonl"}
            train(TokenizerConfig(output=str(folder / "tokenizer"), vocab_size=128, sources=[source]))
            for number in range(2):
                for bucket in ("few", "many"):
                    print(
                        f"{bucket}: {seconds_to_first_step(folder, bucket, number):.1f} s to the first step", flush=True
                    )
    finally:
        server.kill()


if __name__ == "__main__":
    main()

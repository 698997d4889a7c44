"""Checks of the launch and of each machine: processes, versions, processor cores, shared memory, open files, clocks."""

import hashlib
import os
import platform
import resource
import shutil
import socket
import time
from collections import Counter
from importlib import metadata
from pathlib import Path

import torch

from configs import InputError
from pretrain.doctor.examination import Examination, Finding
from pretrain.doctor.verdict import Verdict, describe_difference, failed, in_bytes, passed, skipped, warned

PACKAGES = (
    "torch", "numpy", "tokenizers", "safetensors", "pyarrow", "transformers", "datasets", "accelerate", "deepspeed",
)  # fmt: skip
OUR_CODE = ("configs", "data", "encoder", "pretrain")
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_WITH_NCCL = 1 << 30  # NCCL's documentation asks containers for --shm-size=1g
SHARED_MEMORY_ON_CPU = 16 << 20  # for the semaphores of data workers, and others' use
OTHER_FILES = 256  # descriptors that a process has open beside the files of its sources
CLOCK_TOLERANCE_SECONDS = 1.0


def look_at_processes(examination: Examination) -> Finding:
    """This process's place in the job."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = ""
    return {"world_size": examination.processes.world_size, "address": address}


def judge_processes(examination: Examination, findings: list[Finding]) -> Verdict:
    """How many processes came on which hosts."""
    count = len(findings)
    by_host = Counter(examination.meeting.hosts[rank] for rank in range(count))
    found = f"{count} on {len(by_host)} host(s): " + ", ".join(f"{n} on {host}" for host, n in by_host.items())
    sizes = describe_difference([finding["world_size"] for finding in findings], examination.meeting.hosts)
    if sizes:
        return failed(f"WORLD_SIZE is {sizes}", "give every process the same WORLD_SIZE, or use a launcher")
    unreachable = [rank for rank, finding in enumerate(findings) if not _is_reachable(finding["address"])]
    if len(by_host) > 1 and unreachable:
        return warned(
            f"{found}; the own host name has no address that others could reach on {examination.name(unreachable)}",
            "name the network's interface in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or mend /etc/hosts",
        )
    return passed(found)


def _is_reachable(address: str) -> bool:
    return bool(address) and not address.startswith("127.")


def look_at_process_count(examination: Examination) -> Finding:
    """Nothing: rank 0 knows the number."""
    return {}


def judge_process_count(examination: Examination, findings: list[Finding]) -> Verdict:
    """Whether the batch can be cut over so many processes."""
    try:
        examination.config.check_processes(len(findings))
    except InputError as error:
        return failed(str(error), "start one of the allowed numbers, or change data.num_lanes or data.rows_per_step")
    rows = examination.config.training.rows_per_device
    accumulated = examination.config.data.rows_per_step // rows // len(findings)
    return passed(f"{len(findings)}, each with {accumulated} micro-batch(es) of {rows} rows")


def look_at_versions(examination: Examination) -> Finding:
    """Version of everything that computes, and a digest of our own code."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    versions["CUDA"] = torch.version.cuda or "none"
    versions["this code"] = digest_of_code()
    return versions


def digest_of_code() -> str:
    """Eight hex digits of the names and contents of our own modules."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted(path for package in OUR_CODE for path in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def judge_versions(examination: Examination, findings: list[Finding]) -> Verdict:
    """Equal on all ranks, and all there."""
    differing = []
    for name in findings[0]:
        difference = describe_difference([finding[name] for finding in findings], examination.meeting.hosts)
        if difference:
            differing.append(f"{name} is {difference}")
    if differing:
        return failed("; ".join(differing), "give all hosts the same environment and the same copy of the code")
    found = ", ".join(f"{name} {version}" for name, version in findings[0].items())
    absent = [name for name, version in findings[0].items() if version == "not installed"]
    return warned(found, f"install {', '.join(absent)}, if this run uses it") if absent else passed(found)


def look_at_cores(examination: Examination) -> Finding:
    """Cores that this process may run on, and what wants them."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:
        cores = list(range(os.cpu_count() or 1))
    computing = torch.get_num_threads() if examination.processes.device.type == "cpu" else 1
    return {"cores": cores, "wanted": computing + examination.config.data.num_workers, "threads": computing}


def judge_cores(examination: Examination, findings: list[Finding]) -> Verdict:
    """Enough for the threads and the data workers of all processes of a host."""
    hosts = examination.meeting.hosts
    short = []
    for host in dict.fromkeys(hosts.values()):
        here = [finding for rank, finding in enumerate(findings) if hosts[rank] == host]
        cores, wanted = len({core for finding in here for core in finding["cores"]}), sum(f["wanted"] for f in here)
        if wanted > cores:
            short.append(f"{host} gives {cores} core(s) to {wanted} busy threads and data workers")
    if short:
        return warned("; ".join(short), "set OMP_NUM_THREADS, ask for more cores a task, or lower data.num_workers")
    threads, workers = max(finding["threads"] for finding in findings), examination.config.data.num_workers
    return passed(f"{len(findings[0]['cores'])} for rank 0; {threads} thread(s) and {workers} data workers a rank")


def look_at_shared_memory(examination: Examination) -> Finding:
    """Bytes of /dev/shm; 0 where there is none."""
    if not SHARED_MEMORY.is_dir():
        return {"total": 0, "free": 0}
    usage = shutil.disk_usage(SHARED_MEMORY)
    return {"total": usage.total, "free": usage.free}


def judge_shared_memory(examination: Examination, findings: list[Finding]) -> Verdict:
    """Room for NCCL's transport within a host, and for the data workers' semaphores."""
    with_nccl = examination.processes.device.type == "cuda" and len(findings) > 1
    needed = SHARED_MEMORY_WITH_NCCL if with_nccl else SHARED_MEMORY_ON_CPU
    least = min(findings, key=lambda finding: finding["free"])
    found = f"{in_bytes(least['free'])} of {in_bytes(least['total'])} free"
    short = [rank for rank, finding in enumerate(findings) if finding["free"] < needed]
    if short:
        return warned(
            f"{found} on {examination.name(short)}, {in_bytes(needed)} are wise",
            f"give the container --shm-size=1g or --ipc=host, or delete what lies in {SHARED_MEMORY}",
        )
    return passed(found)


def look_at_open_files(examination: Examination) -> Finding:
    """The limit of open files, and what a data worker of this rank can have open."""
    data = examination.config.data
    lanes = -(-data.num_lanes // examination.processes.world_size)
    of_worker = -(-lanes // max(1, min(data.num_workers, lanes)))
    units = data.open_units if data.shuffle else 1
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = None if hard == resource.RLIM_INFINITY else hard
    return {"limit": limit, "needed": of_worker * len(data.sources) * units + OTHER_FILES}


def judge_open_files(examination: Examination, findings: list[Finding]) -> Verdict:
    """The hard limit counts: a worker raises its own soft one."""
    limits = {rank: finding["limit"] for rank, finding in enumerate(findings) if finding["limit"] is not None}
    allowed = min(limits.values()) if limits else "any number"
    found = f"{findings[0]['needed']} needed by a process, {allowed} allowed (ulimit -Hn)"
    short = [rank for rank, limit in limits.items() if limit < findings[rank]["needed"]]
    if short:
        remedy = "raise the hard limit, or data.num_workers, or lower data.open_units"
        return failed(f"{found} on {examination.name(short)}", remedy)
    return passed(found)


def look_at_clocks(examination: Examination) -> Finding:
    """The time at which all ranks hear the same word of rank 0."""
    examination.meeting.share("clocks/ready", None)
    examination.meeting.from_main("clocks/now", None)
    return {"time": time.time()}


def judge_clocks(examination: Examination, findings: list[Finding]) -> Verdict:
    """How far the hosts' clocks are apart, give or take the way of a message."""
    if len(findings) == 1:
        return skipped("one process")
    apart = [finding["time"] - findings[0]["time"] for finding in findings]
    spread = max(apart) - min(apart)
    found = f"at most {spread:.3f} s apart"
    wrong = [rank for rank, seconds in enumerate(apart) if abs(seconds) > CLOCK_TOLERANCE_SECONDS]
    if wrong:
        shown = ", ".join(f"{examination.name([rank])} {apart[rank]:+.1f} s" for rank in wrong[:4])
        return warned(
            f"{found}: {shown} against rank 0",
            "let chrony or ntpd set the clocks: logs and files' times of several hosts do not fit together",
        )
    return passed(found)

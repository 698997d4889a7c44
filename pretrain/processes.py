"""Who we are among the processes, and the few collectives that the loop needs.

All launchers (torchrun, accelerate, deepspeed, none) set the same environment variables. Every group has a time-out, a
little above the watchdog's limit, so that the watchdog speaks first; collectives outside the engines carry a handful of
numbers a step.
"""

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from configs import InputError

GRACE_SECONDS = 5.0
GLOO_REST_SECONDS = 0.2


@dataclass(frozen=True)
class Processes:
    """This process's place: rank, number of processes, device."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Rank 0: the only one that writes files and prints."""
        return self.rank == 0

    def sum(self, values: Sequence[float], dtype: torch.dtype = torch.int64) -> list[Any]:
        """The sums over all ranks of a few numbers, as python numbers."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=dtype, device=self.device)
        dist.all_reduce(tensor)
        return tensor.tolist()

    def sum_tensor(self, tensor: torch.Tensor) -> list[float]:
        """The sums over all ranks of a small device tensor, as python numbers."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's picklable value, in rank order, on every rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def from_main(self, value: Any) -> Any:
        """Rank 0's picklable value on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def find_processes() -> Processes:
    """Read the launcher's environment, or srun's; touches no process group. InputError when it is incoherent."""
    if not os.environ.get("RANK") and int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        _adopt_slurm_step()
    rank, world_size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= rank < world_size:
        raise InputError(f"the environment's RANK={rank} and WORLD_SIZE={world_size} contradict each other")
    local_rank = _number("LOCAL_RANK", rank)
    if not torch.cuda.is_available():
        return Processes(rank, world_size, torch.device("cpu"))
    count = torch.cuda.device_count()
    if count == 1 and os.environ.get("CUDA_VISIBLE_DEVICES"):
        local_rank = 0  # each process sees its own GPU alone, as `srun --gpus-per-task=1` has it
    if local_rank >= count:
        raise InputError(
            f"local rank {local_rank} has no GPU of its own: this machine shows {count}; start as many processes as "
            "GPUs"
        )
    return Processes(rank, world_size, torch.device("cuda", local_rank))


def _number(name: str, default: int) -> int:
    """A whole number of the environment; a variable that is set but empty counts as not set."""
    text = os.environ.get(name) or str(default)
    if not text.isdigit():
        raise InputError(f"the environment's {name}={text!r} is not a whole number")
    return int(text)


def _adopt_slurm_step() -> None:
    """Set the launchers' variables from those of `srun python -m pretrain …`, which has no launcher in between.

    The processes meet at the step's first host, on a port that follows from the job's and the step's number.
    """
    environment = os.environ
    if not environment.get("MASTER_ADDR"):
        nodes = ["scontrol", "show", "hostnames", environment["SLURM_STEP_NODELIST"]]
        try:
            hosts = subprocess.run(nodes, capture_output=True, text=True, check=True).stdout.split()
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(
                f"scontrol does not name the hosts of this Slurm step ({error}); set MASTER_ADDR to its first host"
            ) from None
        environment["MASTER_ADDR"] = hosts[0]
    port = 20_000 + (int(environment["SLURM_JOB_ID"]) * 7 + int(environment["SLURM_STEP_ID"])) % 20_000
    environment.setdefault("MASTER_PORT", str(port))
    environment["RANK"] = environment["SLURM_PROCID"]
    environment["LOCAL_RANK"] = environment["SLURM_LOCALID"]
    environment["WORLD_SIZE"] = environment["SLURM_STEP_NUM_TASKS"]


def start_process_group(processes: Processes, timeout_seconds: float, always: bool) -> None:
    """Join the default group (gloo on CPU, NCCL on CUDA). `always`: also alone, as DeepSpeed needs one."""
    if processes.device.type == "cuda":
        torch.cuda.set_device(processes.device)
    if processes.world_size == 1 and not always:
        return
    if processes.world_size == 1 and "MASTER_PORT" not in os.environ:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        # without them DeepSpeed looks for mpi4py
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    backend = "nccl" if processes.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds + GRACE_SECONDS))


def limit_groups(timeout_seconds: float) -> None:
    """Give every group the time-out of the default one: those that DeepSpeed adds start with half an hour."""
    for group in distributed_c10d._world.pg_map:
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_seconds + GRACE_SECONDS), group)


def stop_process_group() -> None:
    """Leave the group, if there is one.

    gloo's threads drop a collective's tensors after the collective has ended, and need the interpreter's lock for that;
    one that gets there while the interpreter already ends aborts the process (seen in one exit of six, torch 2.13).
    """
    if dist.is_initialized():
        if dist.get_backend() == "gloo":
            time.sleep(GLOO_REST_SECONDS)
        dist.destroy_process_group()

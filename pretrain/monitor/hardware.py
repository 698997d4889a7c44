"""What the machine could do at most: the denominator of MFU, and the memory in use."""

import resource
import time
from pathlib import Path

import torch

# Dense matrix-multiply peaks in bf16, TFLOP/s, from the vendors' data sheets (without sparsity).
_PEAK_TFLOPS = {
    "B200": 2250.0, "H200": 989.5, "H100 PCIe": 756.0, "H100": 989.5, "A100": 312.0, "A40": 149.7, "L40S": 362.0,
    "L4": 121.0, "A10": 125.0, "V100": 125.0, "RTX 4090": 165.2, "RTX 3090": 71.0,
}  # fmt: skip


def peak_flops(device: torch.device) -> float | None:
    """Floating point operations a second of one device: by its name, on CPU measured; None for an unknown GPU."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return next((peak * 1e12 for key, peak in _PEAK_TFLOPS.items() if key in name), None)
    size = 1024
    a, b = torch.ones(size, size), torch.ones(size, size)
    a @ b  # threads and caches warm
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory this process has used: device memory on CUDA, resident memory on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would start from the peak of the launcher
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

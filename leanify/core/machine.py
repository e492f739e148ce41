"""Facts about this machine and process: memory, devices, versions."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from leanify.core.errors import LeanifyError

CGROUPS = Path("/sys/fs/cgroup")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # the options' numbers in glibc's malloc.h
LIBRARIES = ("leanify", "torch", "timm", "transformers", "accelerate", "numpy")


def memory(key: str) -> int | None:
    """A value from /proc/meminfo in bytes; None without /proc."""
    return _figure(Path("/proc/meminfo"), key)


def status(key: str) -> int | None:
    """A value from /proc/self/status in bytes; None without /proc."""
    return _figure(Path("/proc/self/status"), key)


def _figure(file: Path, key: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), None)


def set_malloc_thresholds(mmap: int, trim: int) -> None:
    """Set two thresholds of glibc's allocator, in bytes. Does nothing under other C libraries.

    A block of at least ``mmap`` bytes is mapped by itself, and is returned to the system when it is freed. The heap is
    trimmed when more than ``trim`` bytes are free at its end, and once now; -1 never trims.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        return
    libc.mallopt(M_MMAP_THRESHOLD, mmap)
    libc.mallopt(M_TRIM_THRESHOLD, trim)
    if trim >= 0:
        libc.malloc_trim(0)


def cores() -> int:
    """The cores that this process may use: by machine, affinity and containers, shared with its launch."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_quota(group) for group in _groups("cpu")]
    core_count = min([usable, *(int(quota) for quota in quotas if quota is not None)])
    return max(1, core_count // max(1, launcher_variable("LOCAL_WORLD_SIZE", 1)))


def _quota(group: Path) -> float | None:
    """The CPU limit of a control group (v1 or v2) in cores; None without a limit."""
    try:
        if (group / "cpu.max").is_file():
            quota, period = map(int, (group / "cpu.max").read_text().split())
        else:
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None
    return quota / period if quota > 0 < period else None


def available_memory(device: torch.device) -> int | None:
    """Bytes that this process may still allocate on a device; None if the system does not report it.

    On a CPU: `free_memory`, divided by the number of processes that a launcher started here.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free_bytes = free_memory() if device.type == "cpu" else None
    return None if free_bytes is None else free_bytes // max(1, launcher_variable("LOCAL_WORLD_SIZE", 1))


def free_memory() -> int | None:
    """Bytes of host memory left: the least of the machine, its containers and the process's own limit of data."""
    limits = [memory("MemAvailable"), *map(_cgroup_free, _groups("memory"))]
    # the limit of data (ulimit -d)
    if sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        used = None if limit == resource.RLIM_INFINITY else status("VmData")
        limits.append(None if used is None else max(0, limit - used))
    return min((size for size in limits if size is not None), default=None)


def _groups(kind: str) -> Iterator[Path]:
    """The control groups of this process that limit memory or cpu (v1 and v2), innermost first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds == "" or kind in kinds.split(","):
            root = CGROUPS / kinds
            inner = root / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def _cgroup_free(group: Path) -> int | None:
    """Bytes left in a control group: its limit minus usage, where page cache counts as free."""
    for limit, usage, reclaimable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            limit_bytes, used = (int((group / name).read_text()) for name in (limit, usage))
            stats = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
        return max(0, limit_bytes - used + int(stats.get(reclaimable, 0)))
    return None


def settled_resident_set() -> int:
    """The resident set in bytes, after returning freed memory to the system (by glibc's malloc_trim)."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return status("VmRSS") or 0


def reset_resident_peak() -> bool:
    """Reset the kernel's peak of the resident set; False if not supported."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def nvml_used(device: torch.device) -> int | None:
    """Bytes used on a GPU according to NVML, including all processes, torch's cache and the CUDA context."""
    if device.type != "cuda":
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(_nvml_handle(device.index or 0)).used)
    except pynvml.NVMLError:
        return None


def _nvml_handle(index: int) -> Any:
    """NVML's handle of the GPU, or MIG slice, that torch numbers ``index``.

    NVML ignores CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, so its own numbers may name another card.
    """
    import pynvml

    # torch knows the identity of its device, which NVML spells with a prefix
    try:
        uuid = str(torch.cuda.get_device_properties(index).uuid)
    except (RuntimeError, AssertionError, AttributeError):  # no driver, or a torch that does not say
        uuid = ""
    prefixes = ("GPU-", "MIG-") if uuid else ()
    for prefix in prefixes:
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
        except pynvml.NVMLError:
            continue
    # the visible GPU from the environment: a UUID, or an NVML index
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[index] if index < len(visible) else str(index)
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def device_name(device: torch.device) -> str:
    """A description of the device for reports, and of how its memory is measured."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads; memory is the process's resident set)"


def parse_device(text: str | None) -> torch.device:
    """The device named (cpu, cuda, cuda:1, mps), by default CUDA or the CPU. Raises LeanifyError."""
    # the default
    if text is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # try it: torch accepts the name of a backend that it was built without
    try:
        device = torch.device(text)
        torch.empty(1, device=device).add_(1)  # a backend that torch lacks fails only at the first tensor
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        devices = ["cpu", *(f"cuda:{number}" for number in range(gpus))]
        if torch.backends.mps.is_available():
            devices.append("mps")
        raise LeanifyError(f"the device {text!r} is not available; available: {', '.join(devices)}") from error
    if device.type == "meta":
        raise LeanifyError("the device 'meta' cannot compute; use cpu or cuda")
    return device


def launcher_variable(name: str, default: int) -> int:
    """A number that a launcher sets (RANK, WORLD_SIZE, …). Raises LeanifyError for anything else."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise LeanifyError(
            f"{name}={text[:80]} in the environment is not a whole number; a launcher sets it, else unset it"
        )
    return int(text)


def check_local_rank() -> None:
    """Raise LeanifyError if a launcher started more processes on this machine than it has GPUs."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = launcher_variable("LOCAL_RANK", 0)
    if gpus and number >= gpus:
        process_count = os.environ.get("LOCAL_WORLD_SIZE", str(number + 1))
        raise LeanifyError(
            f"the launcher started {process_count} processes on this machine, and it has {gpus} GPUs: there is no "
            f"cuda:{number}. Start at most {gpus}, or set CUDA_VISIBLE_DEVICES= to train on CPUs"
        )


def environment() -> dict[str, Any]:
    """The environment of this process: versions, machine, threads, command and git state."""
    return {
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    """Commit of the working directory's repository and whether files were changed; None outside git.

    The working directory may have come with a stranger's model or study: its .git may have hooks, a configuration
    with a file monitor or filters, and objects to be fetched by a command. git runs none of them.
    """

    def run(*arguments: str, is_checked: bool = True) -> str:
        process = subprocess.run(
            ["git", *arguments], capture_output=True, check=is_checked, timeout=10, env=os.environ | variables
        )
        return os.fsdecode(process.stdout)  # the names of files may be in any encoding

    variables: dict[str, str] = {}
    try:
        commit = run("rev-parse", "HEAD").strip()
        # settings without programs that the repository's own files name; no filter is no success
        filters = run("config", "--null", "--name-only", "--get-regexp", "^filter[.]", is_checked=False)
        settings = {"core.fsmonitor": "false", "core.hooksPath": os.devnull}
        settings |= dict.fromkeys(filters.split("\0")[:-1], "")
        variables |= {"GIT_ALLOW_PROTOCOL": "none", "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_COUNT": str(len(settings))}
        for place, (key, value) in enumerate(settings.items()):
            variables |= {f"GIT_CONFIG_KEY_{place}": key, f"GIT_CONFIG_VALUE_{place}": value}
        changes = run("status", "--porcelain", "--ignore-submodules=all")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changes)}

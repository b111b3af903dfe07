"""The accelerators and cores this process may use, found without loading CUDA."""

import os
from pathlib import Path


def gpu_ids() -> list[str]:
    """Names for CUDA_VISIBLE_DEVICES, one per NVIDIA GPU this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number in range(len(list(folder.iterdir())))] if folder.is_dir() else []


def cpu_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def alone(environment: dict[str, str]) -> dict[str, str]:
    """`environment` without what torchrun and accelerate tell a rank, for a process that is none."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    prefixes = ("TORCHELASTIC_", "ACCELERATE_", "FSDP_", "ROLE_", "GROUP_WORLD_SIZE", "TORCH_NCCL_ASYNC")
    return {k: v for k, v in environment.items() if k not in ranks and not k.startswith(prefixes)}

"""What counts as out of memory, however a library spells it, and what doesn't."""

import errno
from pathlib import Path

import pytest

from r3bench.out_of_memory import out_of_memory
from r3bench.sweep.attempts import classify
from r3bench.sweep.executors import local


def _chained(error, cause):
    error.__cause__ = cause
    return error


class OutOfMemoryError(RuntimeError):
    """As torch's and Ray's are called."""


MEMORY = [
    MemoryError(),
    OutOfMemoryError("x"),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("HIP out of memory. Tried to allocate 512.00 MiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 8 GB)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("HIPBLAS_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you tried to "
                 "allocate 400 bytes. Error code 12 (Cannot allocate memory)"),
    RuntimeError("[enforce fail at CPUAllocator.cpp:76] . DefaultCPUAllocator: not enough memory: you tried"),
    RuntimeError("NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error\n"
                 "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'"),
    RuntimeError("Last error:\nFailed to CUDA calloc async 608 bytes: Cuda failure 2 'out of memory'"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("Unable to allocate 1.20 TiB for an array"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    ValueError("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
    ValueError("To serve at least one request with the models's max seq len (40960), (5.6 GiB KV cache is needed, "
               "which is larger than the available KV cache memory (2.1 GiB)"),
    ValueError("Free memory on device (3.2/79.1 GiB) on startup is less than desired GPU memory utilization (0.9)"),
    _chained(RuntimeError("the engine failed"), MemoryError()),
]  # fmt: skip
NOT_MEMORY = [
    ValueError("no number in 'the train ran out of memory'"),
    ValueError("CUDA out of memory"),  # of an answer: no library raises this as a ValueError
    KeyError("out of memory"),
    RuntimeError("the replay ran out of memory slots"),
    RuntimeError("a trajectory fell out of memory_store"),
    RuntimeError("out of resource: shared memory"),
    RuntimeError("CUDA error: device-side assert triggered"),
    OSError(errno.ENOSPC, "No space left on device"),
    TypeError("memory"),
]


@pytest.mark.parametrize("error", MEMORY, ids=lambda error: str(error)[:40] or type(error).__name__)
def test_out_of_memory_is_recognised_however_it_is_spelt(error):
    assert out_of_memory(error) and classify(error).kind == "out_of_memory"


@pytest.mark.parametrize("error", NOT_MEMORY, ids=lambda error: str(error)[:40])
def test_what_is_not_out_of_memory(error):
    assert not out_of_memory(error) and classify(error).kind != "out_of_memory"


def test_the_list_is_the_only_one():
    """No other module looks for such words by itself."""
    root = Path(local.__file__).parents[1]
    texts = {path: path.read_text() for path in root.rglob("*.py") if path.name != "out_of_memory.py"}
    assert not [str(path) for path, text in texts.items() if '"out of memory" in' in text or "OutOfMemoryError" in text]

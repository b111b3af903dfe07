"""How running out of memory is spelt by everything below us: the one list of its signs."""

import errno
import re

DEVICE = r"(?:cuda|hip|rocm|mps|xpu|hpu|npu|gpu|device|nccl|host|cpu|ray|vllm|jit|triton)"
ENDS = r"(?=[ \t]*(?:[.,:;!?'\")(\]]|$|\n|while|when|trying|tried|error|at runtime|during|for|on))"
PLANNED = (  # vLLM looks before it takes, and raises a ValueError
    r"no available memory for the cache blocks|larger than the available kv cache memory"
    r"|free memory on device [^\n]{0,200}less than desired gpu memory utilization"
)
SIGNS = re.compile(  # in the words of an error
    "|".join(
        (
            # torch on any device, the CUDA and HIP runtimes, NCCL ("Cuda failure 2 'out of memory'")
            rf"(?:^|[\n:(]\s*|'|\"|\b{DEVICE}[^\n]{{0,40}}?\b)out of memory{ENDS}",
            r"(?:cuda_error_|cudaerror|hiperror|hip_error_)(?:outofmemory|out_of_memory|memoryallocation)",
            r"\b(?:cu|hip|roc)(?:blas|blaslt|dnn|solver|sparse|fft|rand)_status_(?:alloc_failed|memory_error)",
            # torch on a CPU, C++, numpy and Arrow, the kernel
            r"defaultcpuallocator: (?:can't allocate memory|not enough memory)",
            r"\bcannot allocate memory\b",
            r"\bstd::bad_alloc\b",
            r"\bunable to allocate [\d.]+ [kmgtp]?i?b\b",
            r"\b(?:malloc|realloc) of size \d+ failed",
        )
    )
    + f"|{PLANNED}",
    re.IGNORECASE,
)


def out_of_memory(error: BaseException) -> bool:
    """Whether `error`, or what it was raised from, says that a device or the machine had no memory left.

    An exception of another kind that only quotes such words (a reward's ValueError with an answer in it) doesn't.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if _says_so(found):
            return True
        found = found.__cause__
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True  # torch's, and Ray's
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, RuntimeError):  # torch and the libraries under it
        return bool(SIGNS.search(str(error)))
    return isinstance(error, ValueError) and bool(re.search(PLANNED, str(error), re.IGNORECASE))

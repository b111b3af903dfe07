"""Sampling in processes of their own, each on its GPUs: the answers are those of one process, only sooner.

transformers is handed what one process would have sampled together, a stretch, so how many processes there are changes
no answer. vLLM is handed single answers (`feed`); it always samples this way: its engine prints, keeps memory and
starts processes, none of which belongs into the one that evaluates or has just trained.
"""

import contextlib
import dataclasses
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from r3bench import errors
from r3bench.config.sections import EvalSection
from r3bench.config.strict import plain
from r3bench.devices import alone, cpu_cores, gpu_ids
from r3bench.errors import ConfigError, Lost, StateError, first_line
from r3bench.evaluation.backends.chat import ChatModel
from r3bench.evaluation.backends.feed import Stream
from r3bench.evaluation.backends.sampling import Answered, Completion, Draw, Sampling, collect, stretches

OUTSIDE = tuple(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))  # not its fault
TAIL = 15  # lines of a worker's log that are shown when it ends
ERROR = re.compile(r"\b\w*(Error|Exception): .*")  # the last line of a traceback


class Worker:
    """One sampling process.

    Args:
        devices: GPUs for CUDA_VISIBLE_DEVICES; None: whatever this process sees.
        threads: OMP threads where the environment says nothing.
    """

    def __init__(self, devices: Sequence[str] | None, threads: int) -> None:
        self._closed = False
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, read when the process ends early
        environment = alone({**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
        environment.setdefault("OMP_NUM_THREADS", str(threads))
        if devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "r3bench.evaluation.sampler"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, start_new_session=True,
            text=True, encoding="utf-8",
        )  # fmt: skip
        threading.Thread(target=self._clear, daemon=True).start()

    def _clear(self) -> None:
        """Once the process has ended, end what it started: it may hold a GPU, and the pipe that `receive` reads."""
        self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def send(self, message: dict[str, Any]) -> None:
        """A line to the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # `receive` says why
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Its next line.

        Raises:
            R3BenchError: what the process reports.
            Lost: it was killed from outside.
            StateError: it has ended.
        """
        assert self._process.stdout is not None
        try:
            line = self._process.stdout.readline()
        except ValueError:  # closed meanwhile
            line = ""
        if not line.endswith("\n"):  # none, or one that it died in
            said = self._end()
            raise (Lost if self._process.returncode in OUTSIDE and not self._closed else StateError)(said)
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise getattr(errors, message["error"]["kind"])(message["error"]["message"])
        return message

    def _end(self) -> str:
        code = self._process.wait()
        if self._closed:
            return "a sampling process was ended"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._log.seek(0)
        lines = self._log.read()[-200_000:].decode(errors="replace").rstrip().splitlines()
        print("\n".join(lines[-TAIL:]), file=sys.stderr)
        hint = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
        # an engine is a process of its own: its error comes first, the one that says it ended last
        found = [match for line in lines if (match := ERROR.search(line))]
        cause = f": {found[0][0].strip()[:300]}" if found and code > 0 else ""
        return f"a sampling process {how}{hint}{cause}; the end of its log is above; answered shards are kept"

    def close(self) -> None:
        """End the process and all it started."""
        self._closed = True  # whoever still waits for an answer need not be told why there is none
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Pool(ChatModel):
    """A backend that hands its work to `workers` processes.

    Args:
        name: a folder or hub id.
        section: the `eval` section.
        workers: processes.
        tensor_parallel: GPUs of each.
        vllm: whether they sample with vLLM or with transformers.
    """

    def __init__(self, name: str, section: EvalSection, *, workers: int, tensor_parallel: int, vllm: bool) -> None:
        from transformers import AutoTokenizer

        self.name = "vllm" if vllm else "hf"
        self._batch_size = section.batch_size
        self._failure: BaseException | None = None  # the first; others follow from it
        groups = device_groups(workers, tensor_parallel)
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model '{name}': can't be loaded: {first_line(error)}") from error
        self._free: queue.Queue[Worker] = queue.Queue()
        self._workers = [Worker(group, max(1, cpu_cores() // workers)) for group in groups]
        try:
            for worker in self._workers:
                worker.send(
                    {"model": name, "section": plain(section), "tensor_parallel": tensor_parallel, "vllm": vllm}
                )
            ready = [worker.receive()["ready"] for worker in self._workers]
        except BaseException:  # Ctrl-C while an engine starts, too
            self.close()
            raise
        self.context, self.fingerprint, self.details = (ready[0][k] for k in ("context", "fingerprint", "details"))
        self._stream = Stream(self._workers, int(ready[0]["slots"])) if vllm else None
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(workers)

    def plan(self, shards: int) -> int:
        """See `Backend.plan`: enough that no process waits for another; with vLLM all, so that no answer does."""
        return (shards if self._stream else min(shards, len(self._workers) + 1)) or 1

    def generate(
        self,
        draws: Sequence[Draw],
        sampling: Sampling,
        progress: Callable[[int], None],
        answered: Answered | None = None,
    ) -> list[Completion]:
        """See `Backend.generate`."""
        if self._stream is not None:
            try:
                return collect(self._stream.ask(draws, sampling), progress, answered)
            except BaseException:  # Ctrl-C too
                self.close()
                raise
        lengths = {draw.prompt: max(1, len(self.encode(draw.prompt))) for draw in draws}
        self.check_length(max(lengths.values(), default=0), sampling)
        parts = stretches([lengths[draw.prompt] for draw in draws], draws, self._batch_size)
        futures = {
            self._threads.submit(self._run, [draws[i] for i in part], sampling, progress): part for part in parts
        }
        done: dict[int, Completion] = {}
        try:
            for future in as_completed(futures):
                done.update(zip(futures[future], future.result(), strict=True))
        except BaseException as error:  # noqa: BLE001, raised again; the others' work is of no use
            for future in futures:
                future.cancel()
            self._failure = self._failure or error
            self.close()
            raise self._failure from None
        return [done[i] for i in range(len(draws))]

    def _run(self, draws: Sequence[Draw], sampling: Sampling, progress: Callable[[int], None]) -> list[Completion]:
        with self._worker() as worker:
            worker.send(
                {"draws": [dataclasses.asdict(draw) for draw in draws], "sampling": dataclasses.asdict(sampling)}
            )
            while "answers" not in (message := worker.receive()):
                progress(message["done"])
            return [Completion(**answer) for answer in message["answers"]]

    @contextlib.contextmanager
    def _worker(self) -> Iterator[Worker]:
        worker = self._free.get()
        try:
            yield worker
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()


def device_groups(workers: int, each: int) -> list[list[str] | None]:
    """The GPUs of every worker; None for all where there are none: they share the CPU.

    Raises:
        ConfigError: there are fewer GPUs.
    """
    found = gpu_ids()
    if not found:
        return [None] * workers
    if workers * each > len(found):
        raise ConfigError(
            f"--gpus: got {workers * each}, but this machine offers {len(found)}; nearest that works: "
            f"--gpus {max(each, len(found) // each * each)}"
        )
    return [found[start : start + each] for start in range(0, workers * each, each)]

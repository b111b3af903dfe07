"""Sampling from an OpenAI-compatible server (vLLM's `vllm serve` and others), one request per answer.

The server applies the chat template. Each request carries its answer's own seed, so more samples extend earlier ones as
far as the server honours seeds. A question's repeats share their prefix through the server's prefix cache.
Requests are sent from threads that nobody waits for, whatever shard they belong to: the next goes out as soon as one is
answered, and an evaluation that ends need not wait for a reply that may take an hour.
"""

import contextlib
import hashlib
import http.client
import json
import os
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from r3bench.errors import ConfigError, StateError, nearest
from r3bench.evaluation.backends.connections import Connections
from r3bench.evaluation.backends.sampling import Answered, Completion, Draw, Sampling, collect

ATTEMPTS = 6  # tries of a request that fails for reasons that may pass
PAUSE = 1.0  # seconds before the second try; doubled each time
TIMEOUT = 3600.0  # seconds for one answer
PASSING = (408, 409, 425, 429, 500, 502, 503, 504)  # HTTP codes worth another try


class ServerBackend:
    """Samples through `POST <url>/chat/completions`; the key, if any, comes from the variable OPENAI_API_KEY.

    Args:
        address: 'http://host:8000/v1', with '#name' for one of several models.
        concurrency: requests under way at a time.
    """

    name = "server"
    details: dict[str, str] = {}  # noqa: RUF012, never changed

    def __init__(self, address: str, concurrency: int) -> None:
        url, _, wanted = address.partition("#")
        self.url, self.concurrency = url.rstrip("/"), concurrency
        self._connections = Connections()
        self._ended = threading.Event()
        self._asked: queue.SimpleQueue[tuple[Future[Completion], dict[str, Any]] | None] = queue.SimpleQueue()
        self._open: set[Future[Completion]] = set()  # not answered yet
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        models = {str(row["id"]): row for row in self._call("models").get("data", [])}
        if not models:
            raise ConfigError(f"{self.url}: the server lists no model")
        if wanted and wanted not in models:
            raise ConfigError(f"{self.url}: no model '{wanted}'{nearest(wanted, models)}")
        if not wanted and len(models) > 1:
            raise ConfigError(f"{self.url}: several models; add '#name' for one of {', '.join(sorted(models))}")
        self.model = wanted or next(iter(models))
        self.context = models[self.model].get("max_model_len")
        self.fingerprint = hashlib.sha256(self.model.encode()).hexdigest()[:12]  # weights can't be seen from here

    def chat(self, messages: Sequence[dict[str, str]]) -> str:
        """The messages as JSON: the server applies its template."""
        return json.dumps(list(messages))

    def check(self, prompts: Iterable[str], sampling: Sampling) -> None:
        """See `Backend.check`; how long a prompt is the server knows."""
        if self.context is not None and sampling.max_tokens >= self.context:
            raise ConfigError(f"eval.max_tokens: got {sampling.max_tokens}, the server's context is {self.context}")

    def generate(
        self,
        draws: Sequence[Draw],
        sampling: Sampling,
        progress: Callable[[int], None],
        answered: Answered | None = None,
    ) -> list[Completion]:
        """See `r3bench.evaluation.backends.sampling.Backend`.

        Raises:
            ConfigError: the server refuses a request, for instance because it is longer than the context.
            StateError: the server can't be reached or keeps failing.
        """
        self.check((), sampling)
        bodies = [
            {
                "model": self.model,
                "messages": json.loads(draw.prompt),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
                "seed": draw.seed % 2**31,  # servers take 32 bits
                "n": 1,
            }
            for draw in draws
        ]
        try:
            return collect([self._ask(body) for body in bodies], progress, answered)
        except BaseException:  # whatever ends the batch, Ctrl-C too: send no further request; it goes on
            self.close()
            raise

    def plan(self, shards: int) -> int:
        """See `Backend.plan`: all, so that the last answers of one don't keep the requests of the next waiting."""
        return shards or 1

    def close(self) -> None:
        """See `Backend.close`. Requests under way are cut off, so that the server stops working on them."""
        self._ended.set()
        with self._lock:
            waiting = list(self._open)
        for future in waiting:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(StateError(f"{self.url}: the evaluation was ended"))
        self._connections.cut()
        for _ in self._threads:
            self._asked.put(None)

    def _ask(self, body: dict[str, Any]) -> Future[Completion]:
        future: Future[Completion] = Future()
        with self._lock:
            if self._ended.is_set():
                raise StateError(f"{self.url}: the evaluation was ended")
            self._open.add(future)
            if len(self._threads) < self.concurrency:
                self._threads.append(threading.Thread(target=self._work, daemon=True))
                self._threads[-1].start()
        self._asked.put((future, body))
        return future

    def _work(self) -> None:
        while (item := self._asked.get()) is not None and not self._ended.is_set():
            future, body = item
            with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
                try:
                    future.set_result(_completion(self._call("chat/completions", body), self.url))
                except (ConfigError, StateError) as error:
                    future.set_exception(error)
            with self._lock:
                self._open.discard(future)

    def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        data = None if body is None else json.dumps(body).encode()
        failure = ""
        for attempt in range(ATTEMPTS):
            if attempt and self._ended.wait(PAUSE * 2 ** (attempt - 1)):
                break
            try:
                request = urllib.request.Request(f"{self.url}/{path}", data, headers)
                with self._connections.open(request, TIMEOUT) as response:
                    reply = json.loads(response.read())
                if isinstance(reply, dict):
                    return reply
                failure = f"replied with a {type(reply).__name__}"
            except urllib.error.HTTPError as error:
                failure = f"HTTP {error.code}: {error.read()[:300].decode(errors='replace')}"
                if error.code not in PASSING:
                    raise ConfigError(f"{self.url}/{path}: {failure}") from error
            except (OSError, ValueError, http.client.HTTPException) as error:
                failure = str(error) or type(error).__name__
        raise StateError(f"{self.url}/{path}: no usable reply in {ATTEMPTS} tries; last: {failure}")


def _completion(reply: dict[str, Any], url: str) -> Completion:
    try:
        choice, tokens = reply["choices"][0], int(reply["usage"]["completion_tokens"])
        message = choice["message"]
        # servers that split off the reasoning may have nothing else when the cap cut it
        text = message.get("content") or message.get("reasoning_content") or message.get("reasoning") or ""
        return Completion(str(text), tokens, choice["finish_reason"] == "length")
    except (KeyError, IndexError, TypeError) as error:
        raise StateError(f"{url}: a reply without choices, message or token count: {str(reply)[:200]}") from error

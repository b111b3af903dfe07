"""Sampling from an OpenAI-compatible server (vLLM's `vllm serve` and others), one request per answer.

The server applies the chat template. Each request carries its answer's own seed, so more samples extend earlier ones as
far as the server honours seeds. A question's repeats share their prefix through the server's prefix cache.
"""

import hashlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from r3bench.errors import ConfigError, StateError, nearest
from r3bench.evaluation.sampling import Completion, Draw, Sampling

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

    def generate(self, draws: Sequence[Draw], sampling: Sampling, progress: Callable[[int], None]) -> list[Completion]:
        """See `r3bench.evaluation.sampling.Backend`.

        Raises:
            ConfigError: the server refuses a request, for instance because it is longer than the context.
            StateError: the server can't be reached or keeps failing.
        """
        self.check((), sampling)

        def one(draw: Draw) -> Completion:
            body = {
                "model": self.model,
                "messages": json.loads(draw.prompt),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
                "seed": draw.seed % 2**31,  # servers take 32 bits
                "n": 1,
            }
            completion = _completion(self._call("chat/completions", body), self.url)
            progress(1)
            return completion

        with ThreadPoolExecutor(self.concurrency) as pool:
            futures = [pool.submit(one, draw) for draw in draws]
            try:
                return [future.result() for future in futures]
            except BaseException:  # whatever ends the batch, Ctrl-C too: send no further request; it goes on
                for future in futures:
                    future.cancel()
                raise

    def plan(self, shards: int) -> int:
        """See `Backend.plan`: one shard at a time, whose requests go out together."""
        return 1

    def close(self) -> None:
        """See `Backend.close`: nothing to do."""

    def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        data = None if body is None else json.dumps(body).encode()
        failure = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE * 2 ** (attempt - 1))
            try:
                request = urllib.request.Request(f"{self.url}/{path}", data, headers)
                with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                    reply = json.loads(response.read())
                if isinstance(reply, dict):
                    return reply
                failure = f"replied with a {type(reply).__name__}"
            except urllib.error.HTTPError as error:
                failure = f"HTTP {error.code}: {error.read()[:300].decode(errors='replace')}"
                if error.code not in PASSING:
                    raise ConfigError(f"{self.url}/{path}: {failure}") from error
            except (OSError, ValueError) as error:
                failure = str(error)
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

"""Just enough of Chromium's DevTools protocol, over a pipe, to open a page, click and look."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def chromium() -> str | None:
    """The browser's path, if there is one."""
    return next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


class Page:
    """One tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer, self._number = b"", 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "browser closed"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def wait(self, method: str) -> None:
        """Until an event of that name has been seen."""
        while not any(e.get("method") == method for e in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        """The JSON value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def click(self, selector: str) -> None:
        """A real mouse click in the middle of an element."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors lie above those that the browser gets, which `dup2` overwrites."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


@contextlib.contextmanager
def opened(path: Path, profile: Path) -> Iterator[Page]:
    """A file in headless Chromium with no network, its page and log events switched on."""
    command_read, command_write = _pipe()
    answer_read, answer_write = _pipe()
    binary = chromium()
    assert binary is not None

    def arrange() -> None:
        os.dup2(command_read, 3)
        os.dup2(answer_write, 4)

    process = subprocess.Popen(
        [binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
         "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--proxy-server=127.0.0.1:9", "about:blank"],
        close_fds=False, preexec_fn=arrange,  # noqa: PLW1509, the protocol's pipes must be descriptors 3 and 4
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        page = Page(command_write, answer_read)
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.events.clear()
        page.call("Page.navigate", url=path.as_uri())
        page.wait("Page.loadEventFired")
        yield page
    finally:
        process.terminate()
        process.wait(timeout=30)
        for descriptor in (command_read, command_write, answer_read, answer_write):
            os.close(descriptor)

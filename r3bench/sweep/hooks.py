"""Tells someone how a study goes: runs a command, or posts to an address, when a run fails and when the study is over.

All of it happens beside the study, in a thread: a command that fails, hangs or floods its output costs a line and no
run. Facts are in environment variables, never in the command's text, so that no message can become a command.
"""

import json
import os
import queue
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from r3bench.errors import ConfigError, first_line
from r3bench.records import RunRecord, avg_at_k
from r3bench.secrets import masked
from r3bench.sweep.attempts import Failure
from r3bench.sweep.cells import Cell
from r3bench.sweep.grid import NotifySection

if TYPE_CHECKING:
    from r3bench.sweep.dispatch.dispatcher import Report
    from r3bench.sweep.study import Study

LOG = "hooks.log"  # in the study's folder: what commands print
HURRIED = 5.0  # seconds that the end of a study waits for its messages after a signal
LONGEST = 2000  # characters of a message


class Hooks:
    """A watcher of the dispatcher's.

    Args:
        study: whose runs are told of.
        section: what is run and posted to, and for which events.
        say: takes a line for the user.
        signals: how many signals have asked for an end.

    Raises:
        ConfigError: an address that can't be posted to from here.
    """

    def __init__(
        self, study: "Study", section: NotifySection, say: Callable[[str], None], signals: Callable[[], int]
    ) -> None:
        check_address(section.url)
        self._study, self._section, self._say, self._signals = study, section, say, signals
        self._started: set[str] = set()  # runs of this call: those finished before are no news
        self._jobs: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
        self._child: subprocess.Popen[bytes] | None = None
        self._waiting = 0
        self._over = False
        self._thread = threading.Thread(target=self._work, name="hooks", daemon=True)
        self._thread.start()

    def started(self, cell: Cell) -> None:
        """An attempt was handed to the executor."""
        self._started.add(cell.run_id)

    def ended(self, cell: Cell, record: RunRecord | None, failure: Failure | None) -> None:
        """The cell has a record, or failed for good."""
        if cell.run_id not in self._started:
            return
        about = {"run": cell.run_id, "run_dir": str(self._study.paths(cell).root), "cell": cell.name,
                 "seed": str(cell.seed)}  # fmt: skip
        if failure is not None:
            text = f"{self._study.root.name}: {cell.run_id} failed ({failure.kind}): {failure.message}"
            self._tell("run_failed", text, {**about, "failure": failure.kind, "reason": failure.message})
        elif record is not None and record.train.outcome == "diverged":
            text = f"{self._study.root.name}: {cell.run_id} diverged: {record.train.reason}"
            self._tell("run_diverged", text, {**about, "reason": record.train.reason or ""})
        elif record is not None:
            scores = {task: v for task, s in record.eval.items() if (v := avg_at_k(s)) is not None}
            shown = ", ".join(f"{task} {100 * value:.1f}" for task, value in scores.items())
            text = f"{self._study.root.name}: {cell.run_id} finished{': ' if shown else ''}{shown}"
            self._tell("run_finished", text, {**about, "scores": json.dumps(scores)})

    def over(self, report: "Report") -> None:
        """The dispatcher is done, for whatever reason; waits for the messages, but never for long."""
        counts = {"finished": len(report.finished), "failed": len(report.failed), "left": len(report.left)}
        total = sum(counts.values())
        state = "done" if report.complete else "interrupted" if report.interrupted else "incomplete"
        text = f"{self._study.root.name}: {state}, {counts['finished']} of {total} runs have a record"
        text += f", {counts['failed']} failed" if counts["failed"] else ""
        text += f", {counts['left']} not run" if counts["left"] else ""
        text += f" ({report.reason})" if report.reason else ""
        figures = {key: str(value) for key, value in {**counts, "total": total}.items()}
        self._tell("study_ended", text, {**figures, "state": state, "reason": report.reason or ""})
        self.close()

    def close(self) -> None:
        """End the thread, and a command that still runs."""
        if self._over:
            return
        self._jobs.put(None)
        begun = time.monotonic()
        while self._thread.is_alive():
            limit = HURRIED if self._signals() else self._section.timeout + 1.0
            if time.monotonic() - begun > limit:
                self._over = True
                self._say(f"hooks: not waited for any longer; {self._waiting} events were not told")
                self._kill()
                return
            self._thread.join(0.05)
        self._over = True

    def _tell(self, event: str, text: str, about: Mapping[str, str]) -> None:
        if event not in self._section.events or not (self._section.command or self._section.url):
            return
        facts = {"event": event, "study": self._study.root.name, "study_dir": str(self._study.root.absolute()),
                 "message": text, **about}  # fmt: skip
        self._waiting += 1
        self._jobs.put({key: masked(_plain(value)[:LONGEST]) for key, value in facts.items()})

    def _work(self) -> None:
        while (facts := self._jobs.get()) is not None and not self._over:
            for what, done in (("command", self._run), ("address", self._post)):
                try:
                    done(facts)
                except Exception as error:  # noqa: BLE001, of a client, a server, a shell: no run depends on it
                    if not self._over:
                        self._say(f"hooks: the {what} failed for {facts['event']}: {masked(first_line(error))}")
            self._waiting -= 1

    def _run(self, facts: Mapping[str, str]) -> None:
        if not self._section.command:
            return
        environment = {**os.environ, **{f"R3BENCH_{key.upper()}": value for key, value in facts.items()}}
        with ExitStack() as stack:
            output: Any = subprocess.DEVNULL
            with suppress(OSError):  # a full disk
                output = stack.enter_context(open(self._study.root / LOG, "ab"))
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", self._section.command], env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip
            try:
                code = self._child.wait(self._section.timeout)
            except subprocess.TimeoutExpired:
                self._kill()
                raise TimeoutError(f"no end after {self._section.timeout:g} s; killed") from None
            finally:
                self._child = None
        if code:
            raise RuntimeError(f"exit code {code}; what it printed is in {self._study.root / LOG}")

    def _kill(self) -> None:
        child = self._child
        if child is not None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(1.0)

    def _post(self, facts: Mapping[str, str]) -> None:
        url = self._section.url
        if not url:
            return
        try:
            if url.startswith(("http://", "https://")):
                # Slack and most read "text", Discord "content"
                body = json.dumps({"text": facts["message"], "content": facts["message"], **facts}).encode()
                request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=self._section.timeout):
                    return
            import apprise

            client = apprise.Apprise()
            if not (client.add(url) and client.notify(body=facts["message"], title=f"r3bench {facts['study']}")):
                raise RuntimeError("not delivered")
        except Exception as error:  # noqa: BLE001, of any client; its text may hold the address, which may be a secret
            why = first_line(error).replace(url, shown_address(url))
            raise RuntimeError(f"{shown_address(url)}: {why}") from None


def check_address(url: str | None) -> None:
    """Whether an address can be posted to from here.

    Raises:
        ConfigError: it is no address, or needs a package that isn't installed.
    """
    if not url or url.startswith(("http://", "https://")):
        return
    if "://" not in url:
        raise ConfigError("notify.url: expected an address with a scheme, such as https://... or slack://...")
    try:
        import apprise
    except ImportError:
        raise ConfigError(
            f"notify.url: {shown_address(url)}: needs apprise (pip install 'r3bench[notify]'); http(s) addresses don't"
        ) from None
    if not apprise.Apprise().add(url):
        raise ConfigError(f"notify.url: {shown_address(url)}: not an address that apprise knows")


def shown_address(url: str) -> str:
    """An address without what may be secret: everything behind the host, and a host that isn't one of http."""
    parts = urlsplit(url)
    host = parts.hostname if parts.scheme in ("http", "https") else None
    return f"{parts.scheme}://{host or ''}{'/' if host else ''}***"


def _plain(text: str) -> str:
    """Control characters spelled out: messages of user code go into terminals, chats and variables."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

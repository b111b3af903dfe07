"""A stand-in for the Hugging Face hub: the few requests that an upload makes, answered over HTTP, files in memory."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_right"


@dataclass
class Hub:
    """What the hub has."""

    repos: dict[str, bool] = field(default_factory=dict)  # name -> private
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)  # name -> path -> content
    messages: list[str] = field(default_factory=list)  # of commits
    requests: list[str] = field(default_factory=list)  # method and path
    url: str = ""


@contextmanager
def serve() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hub.requests.append(f"GET {self.path}")
            if self._denied():
                return
            name = self.path.partition("/api/models/")[2].partition("/revision/")[0].partition("?")[0]
            if name in hub.repos:
                self._answer(200, {"id": name, "modelId": name, "private": hub.repos[name], "sha": "0" * 40})
            else:
                self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

        def do_POST(self) -> None:
            hub.requests.append(f"POST {self.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self._denied():
                return
            if self.path == "/api/repos/create":
                self._create(json.loads(body))
            elif self.path == "/api/validate-yaml":
                self._answer(200, {"warnings": [], "errors": []})
            elif "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                found = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
                self._answer(200, {"files": found})
            elif "/commit/" in self.path:
                self._commit(self.path.partition("/api/models/")[2].partition("/commit/")[0], body)
            else:
                self._answer(404, {"error": f"no {self.path}"})

        def _denied(self) -> bool:
            if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                return False
            self._answer(401, {"error": "Invalid credentials"})
            return True

        def _create(self, asked: dict) -> None:
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if name in hub.repos:
                self._answer(409, {"error": "You already created this model repo", "url": f"{hub.url}/{name}"})
                return
            hub.repos[name] = bool(asked.get("private")) or asked.get("visibility") == "private"
            hub.files[name] = {}
            self._answer(200, {"url": f"{hub.url}/{name}", "name": name})

        def _commit(self, name: str, body: bytes) -> None:
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "header":
                    hub.messages.append(item["value"]["summary"])
                elif item["key"] == "file":
                    hub.files[name][item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            self._answer(200, {"commitUrl": f"{hub.url}/{name}/commit/{'0' * 40}", "commitOid": "0" * 40,
                               "hookOutput": "", "success": True})  # fmt: skip

        def _answer(self, status: int, value: dict, headers: dict[str, str] | None = None) -> None:
            content = json.dumps(value).encode()
            self.send_response(status)
            for key, text in {
                "Content-Type": "application/json",
                "Content-Length": str(len(content)),
                **(headers or {}),
            }.items():
                self.send_header(key, text)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()

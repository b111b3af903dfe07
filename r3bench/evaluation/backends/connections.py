"""HTTP requests that can be cut off while they wait for their reply, from another thread."""

import contextlib
import functools
import http.client
import socket
import threading
import urllib.request
import weakref
from typing import Any


class Connections:
    """Opens URLs as `urllib.request.urlopen` does, and knows the connections that are open."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[http.client.HTTPConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        make = self._make

        class Plain(urllib.request.HTTPHandler):
            def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(functools.partial(make, http.client.HTTPConnection), req)

        class Secure(urllib.request.HTTPSHandler):
            def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(functools.partial(make, http.client.HTTPSConnection), req)

        self._opener = urllib.request.build_opener(Plain, Secure)

    def _make(self, kind: Any, host: str, **values: Any) -> Any:
        connection = kind(host, **values)
        with self._lock:
            self._known.add(connection)
        return connection

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        """The reply to `request`; errors are urllib's. `timeout` in seconds."""
        return self._opener.open(request, timeout=timeout)

    def cut(self) -> None:
        """End what is under way: who waits for a reply gets an `OSError`."""
        with self._lock:
            known = list(self._known)
        for connection in known:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

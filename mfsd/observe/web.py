"""A coordinator's web page: the cluster at a glance, self-contained, read only.

`/` is one file without anything from elsewhere; it asks `/status.json` every second. `/healthz` and `/metrics` are for
machines. Served by threads beside the coordinator's loop, which makes each status.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PAGE = Path(__file__).with_name("cluster.html")
STATUS_S = 5.0
T = TypeVar("T")
HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'",
    ),
]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = 10  # a connection that says nothing is closed

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not logged: the page asks every second."""


class Answer(NamedTuple):
    """What a path answers."""

    status: str
    content_type: str
    body: bytes


Making = Callable[[], Answer]


def application(paths: Mapping[str, Making]) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The page and its data as a WSGI application. Each of `paths` gives an answer, or raises TimeoutError."""
    page = PAGE.read_bytes()

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [*HEADERS, ("Allow", "GET, HEAD"), ("Content-Type", "text/plain")])
            return [b"read only\n"]
        path = environment["PATH_INFO"]
        if path == "/":
            start("200 OK", [*HEADERS, ("Content-Type", "text/html; charset=utf-8")])
            return [page]
        if path in paths:
            try:
                found = paths[path]()
            except TimeoutError:
                found = Answer("503 Service Unavailable", "text/plain", b"the coordinator is busy or hangs\n")
            start(found.status, [*HEADERS, ("Content-Type", found.content_type)])
            return [found.body]
        start("404 Not Found", [*HEADERS, ("Content-Type", "text/plain")])
        return [f"there are {', '.join(['/', *paths])}\n".encode()]

    return answer


def in_loop(make: Callable[[], T], loop: asyncio.AbstractEventLoop) -> Callable[[], T]:
    """`make`, called in the loop by another thread. TimeoutError when the loop does not come to it."""

    async def now() -> T:
        return make()

    def ask() -> T:
        future = asyncio.run_coroutine_threadsafe(now(), loop)
        try:
            return future.result(STATUS_S)
        except (concurrent.futures.TimeoutError, concurrent.futures.CancelledError):
            raise TimeoutError from None

    return ask


@contextlib.contextmanager
def serve(
    host: str, port: int, status: Callable[[], bytes], paths: Mapping[str, Making] | None = None
) -> Iterator[int]:
    """Serves the page; `status` is called in the loop that runs now, `paths` by threads of the server, and go before
    it. Gives the port. OSError when it cannot listen."""
    ask = in_loop(status, asyncio.get_running_loop())
    own: dict[str, Making] = {"/status.json": lambda: Answer("200 OK", "application/json", ask())}
    kind = _ServerV6 if ":" in host else _Server
    server = make_server(host, port, application({**own, **(paths or {})}), server_class=kind, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, name="web", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""A coordinator's web page: the cluster at a glance, self-contained, read only.

The files of the folder `page` are all that it loads; it asks `/view.json` every second. `/status.json`, `/healthz` and
`/metrics` are for machines. Served by threads beside the coordinator's loop, which makes each status.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

PAGE = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
STATUS_S = 5.0
GZIP_LEAST = 1_400
"""What fits one packet is not worth packing."""
T = TypeVar("T")
HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
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


Query = Mapping[str, str]
Making = Callable[[Query], Answer]


def page_files() -> dict[str, Answer]:
    """The page by path; `/` is its index."""
    files = {
        f"/{file.name}": Answer("200 OK", TYPES[file.suffix], file.read_bytes())
        for file in sorted(PAGE.iterdir())
        if file.suffix in TYPES
    }
    return {"/": files.pop("/index.html"), **files}


def application(paths: Mapping[str, Making]) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The page and its data as a WSGI application. Each of `paths` gives an answer, or raises TimeoutError."""
    files = page_files()

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [*HEADERS, ("Allow", "GET, HEAD"), ("Content-Type", "text/plain")])
            return [b"read only\n"]
        path = environment["PATH_INFO"]
        if path in files:
            found = files[path]
        elif path in paths:
            try:
                found = paths[path](dict(parse_qsl(environment.get("QUERY_STRING", ""))))
            except TimeoutError:
                found = Answer("503 Service Unavailable", "text/plain", b"the coordinator is busy or hangs\n")
        else:
            found = Answer("404 Not Found", "text/plain", f"there are {', '.join(['/', *paths])}\n".encode())
        body, packed = found.body, []
        if len(body) >= GZIP_LEAST and "gzip" in environment.get("HTTP_ACCEPT_ENCODING", ""):
            body, packed = gzip.compress(body, 1, mtime=0), [("Content-Encoding", "gzip")]
        start(found.status, [*HEADERS, *packed, ("Content-Type", found.content_type)])
        return [body]

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
def serve(host: str, port: int, paths: Mapping[str, Making]) -> Iterator[int]:
    """Serves the page and `paths`, which threads of the server call. Gives the port. OSError when it cannot listen."""
    kind = _ServerV6 if ":" in host else _Server
    server = make_server(host, port, application(paths), server_class=kind, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, name="web", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""A coordinator's web page: the cluster at a glance, self-contained, read only.

It loads only the files of the folder `page`, and asks `/view.json` every second. `/status.json`, `/healthz` and
`/metrics` are for machines. Threads beside the coordinator's loop serve it; the loop makes each status.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

PAGE = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
STATUS_S = 5.0
BODY_BYTES_MAX = 65_536
CONNECTIONS_MAX = 128
"""At a time. Browsers that watch flows keep theirs open."""
GZIP_LEAST = 1_400
"""Smaller bodies fit one packet and are not worth compressing."""
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
    """Serves each connection in a thread, up to CONNECTIONS_MAX, and closes further ones.

    Each takes a descriptor and memory of a process that has more to do.
    """

    daemon_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class QuietHandler(WSGIRequestHandler):
    """Handles one connection in its own thread."""

    timeout = 10  # seconds after which a silent connection is closed

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: readers ask every few seconds."""


class Answer(NamedTuple):
    """The answer of a path."""

    status: str
    content_type: str
    body: bytes
    more: Generator[bytes, None, None] | None = None
    """Further parts as they come, until they end or the reader leaves."""


Query = Mapping[str, str]
Making = Callable[[Query], Answer]
Posting = Callable[[bytes], Answer]


def page_files() -> dict[str, Answer]:
    """The files of the page by path; `/` is its index."""
    files = {
        f"/{file.name}": Answer("200 OK", TYPES[file.suffix], file.read_bytes())
        for file in sorted(PAGE.iterdir())
        if file.suffix in TYPES
    }
    return {"/": files.pop("/index.html"), **files}


def application(
    paths: Mapping[str, Making], posted: Mapping[str, Posting] | None = None
) -> Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]:
    """The page and its data as a WSGI application.

    `paths` and `posted` (questions with a body) give answers or raise TimeoutError. None of them changes anything.
    """
    files, questions = page_files(), posted or {}

    def found_at(environment: WSGIEnvironment) -> Answer:
        path = environment["PATH_INFO"]
        if path in files:
            return files[path]
        if path in questions:
            body = _body(environment)
            return TOO_LARGE if body is None else questions[path](body)
        if path in paths:
            return paths[path](dict(parse_qsl(environment.get("QUERY_STRING", ""))))
        known = ", ".join(["/", *paths, *questions])
        return Answer("404 Not Found", "text/plain", f"there are {known}\n".encode())

    def answer(environment: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        allowed = "POST" if environment["PATH_INFO"] in questions else "GET, HEAD"
        if environment["REQUEST_METHOD"] not in allowed.split(", "):
            start("405 Method Not Allowed", [*HEADERS, ("Allow", allowed), ("Content-Type", "text/plain")])
            return [f"{allowed} only\n".encode()]
        try:
            found = found_at(environment)
        except TimeoutError:
            found = Answer("503 Service Unavailable", "text/plain", b"the coordinator is busy or hangs\n")
        body, packed = found.body, []
        if len(body) >= GZIP_LEAST and "gzip" in environment.get("HTTP_ACCEPT_ENCODING", ""):
            body, packed = gzip.compress(body, 1, mtime=0), [("Content-Encoding", "gzip")]
        write = start(found.status, [*HEADERS, *packed, ("Content-Type", found.content_type)])
        if found.more is not None and environment["REQUEST_METHOD"] != "HEAD":
            with contextlib.suppress(OSError), contextlib.closing(found.more):  # the reader has left, or reads no more
                for part in found.more:
                    write(part)
        return [body]

    return answer


TOO_LARGE = Answer("413 Content Too Large", "text/plain", f"at most {BODY_BYTES_MAX} bytes\n".encode())


def _body(environment: WSGIEnvironment) -> bytes | None:
    """The request's body, or None if it is too large or does not say its length."""
    text = environment.get("CONTENT_LENGTH", "")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= BODY_BYTES_MAX):
        return None
    body: bytes = environment["wsgi.input"].read(int(text))
    return body


def in_loop(make: Callable[[], T], loop: asyncio.AbstractEventLoop) -> Callable[[], T]:
    """Wraps `make` so that another thread can run it in the loop. Raises TimeoutError if the loop is too busy."""

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
    host: str, port: int, paths: Mapping[str, Making], posted: Mapping[str, Posting] | None = None
) -> Iterator[int]:
    """Serves the page, `paths` and `posted`, and yields the port. Server threads call them. Raises OSError if it cannot
    listen on the address."""
    with listening(host, port, application(paths, posted)) as served:
        yield served


@contextlib.contextmanager
def listening(host: str, port: int, application: WSGIApplication) -> Iterator[int]:
    """Serves a WSGI application and yields the port. Server threads call it. Raises OSError if it cannot listen."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    kind = _ServerV6 if family == socket.AF_INET6 else _Server
    server = make_server(host, port, application, server_class=kind, handler_class=QuietHandler)
    thread = threading.Thread(target=server.serve_forever, name="web", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

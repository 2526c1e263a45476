"""The gateway as one ASGI application, and the process that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mfsd.serve.gateway.answer import Receive, Scope, Send
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.errors import ERROR_PAGES, error_page, json_page
from mfsd.serve.gateway.exchange import PATHS
from mfsd.serve.gateway.front import Bounded
from mfsd.serve.gateway.kept import Kept
from mfsd.serve.gateway.pages import Pages
from mfsd.serve.gateway.poll import Log
from mfsd.serve.gateway.proxy import Proxy
from mfsd.serve.gateway.replicas import Card, Stage
from mfsd.serve.gateway.settings import GatewaySettings
from mfsd.serve.gateway.upstream import session

if TYPE_CHECKING:
    from mfsd.serve.gateway.picker import Picker

PROBLEMS_MAX = 16
"""Most errors of the gateway's own polls that are logged, each once."""
LAST_WORD_S = 2
"""Time to write the errors that end requests which have not ended in time."""


class Application:
    """Passes requests for tokens directly to their proxies, because each layer of Starlette wraps every message."""

    def __init__(self, proxies: Mapping[str, Proxy], others: Starlette) -> None:
        self._proxies, self._others = proxies, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        proxy = self._proxies.get(scope.get("path", "")) if scope["type"] == "http" else None
        await (proxy or self._others)(scope, receive, send)


def application(settings: GatewaySettings, log: Log, made: list[Gateway]) -> Application:
    """Returns the application. made: the gateway is appended to it once the loop runs."""

    def gateway() -> Gateway:
        return made[0]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with session() as calls:
            made.append(Gateway(settings, calls, log))
            await gateway().poller.once()
            await gateway().residents.begin()
            tasks = [asyncio.create_task(_poll(gateway())), asyncio.create_task(gateway().poller.watch())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await gateway().residents.close()
                if (predictions := gateway().predictions) is not None:
                    predictions.close()

    async def models(_: Request) -> Response:
        data = [_model(name, card) for name, card in gateway().replicas.models().items()]
        return json_page({"object": "list", "data": data})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        card = gateway().replicas.models().get(name)
        if card is None:
            text = f"no replica serves the model {name!r:.80}; /v1/models lists the models that are served"
            return error_page(404, text, "invalid_request_error", "model_not_found")
        return json_page(_model(name, card))

    async def health(_: Request) -> Response:
        if gateway().stopping:
            return Response(b"the gateway stops\n", 503, media_type="text/plain")
        if any(replica.healthy or replica.stage is not Stage.RUNS for replica in gateway().replicas.all):
            return Response(b"ok\n", media_type="text/plain")
        return Response(b"no replica answers: mfsctl gateway status\n", 503, media_type="text/plain")

    pages = (("/v1/models", models), ("/v1/models/{name:path}", model), ("/health", health))
    proxies = {path: Proxy(gateway, path) for path in PATHS}
    others = Starlette(
        routes=[
            *(Route(path, proxy) for path, proxy in proxies.items()),  # paths with a final slash are redirected
            Route("/v1/responses/{name}", Kept(gateway), methods=["GET"]),
            Route("/v1/responses/{name}/cancel", Kept(gateway), methods=["POST"]),
            *(Route(path, page, methods=["GET"]) for path, page in pages),
        ],
        exception_handlers=ERROR_PAGES,
        lifespan=lifespan,
    )
    return Application(proxies, others)


def _model(name: str, card: Card) -> dict[str, object]:
    known = {"created": card.created, "max_model_len": card.prompt_max}
    return {"id": name, "object": "model", "owned_by": "mfs", **{k: v for k, v in known.items() if v is not None}}


async def _poll(gateway: Gateway) -> None:
    """Polls as long as there is a gateway, also after errors: without polls no replica that is down comes back."""
    logged = set[str]()
    while True:
        pause_s = gateway.settings.state.poll_ms / 1e3
        await asyncio.sleep(pause_s)
        try:
            await gateway.poller.once(most_s=pause_s)
            gateway.residents.tick()
            gateway.admission.wake()
        except Exception as error:
            problem = "".join(traceback.format_exception_only(error)).strip()
            if problem not in logged and len(logged) < PROBLEMS_MAX:
                logged.add(problem)
                gateway.log.warning("poll-failed", problem=problem)


class _Server(uvicorn.Server):
    """uvicorn's server, together with the gateway's own pages and the endpoint picker if they are configured."""

    def __init__(self, config: uvicorn.Config, listen: str, made: list[Gateway]) -> None:
        super().__init__(config)
        self._listen, self._made = listen, made
        self._picker: Picker | None = None
        self._pages: Pages | None = None
        self._signals = 0
        """Number of signals that asked it to stop."""
        self._end_all: Callable[[], object] = _nothing
        """Called by a further SIGINT while requests have time to end."""
        self.problem = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.started:
            return
        (gateway,) = self._made
        settings = gateway.settings
        if not (await self._show(gateway) and await self._pick(gateway)):
            self.should_exit = True
            return
        beside = {"metrics": settings.metrics.listen, "ext_proc": settings.ext_proc.listen}
        more = {name: listen for name, listen in beside.items() if listen}
        gc.freeze()  # lasting objects are not scanned again while requests wait
        gateway.log.info("ready", listen=settings.listen, replicas=len(settings.replicas), **more)

    def keep_problem(self, record: logging.LogRecord) -> bool:
        """Keeps the reason why it cannot listen. uvicorn logs it without the name of the key, and then exits."""
        if not isinstance(record.msg, OSError):
            return True
        self.problem = f"listen = {self._listen}: {record.msg.strerror or record.msg}"
        return False

    async def _show(self, gateway: Gateway) -> bool:
        if gateway.settings.metrics.listen:
            self._pages = Pages(gateway)
            try:
                await self._pages.start()
            except OSError as error:
                self.problem = f"metrics.listen = {gateway.settings.metrics.listen}: {error.strerror or error}"
                return False
        return True

    async def _pick(self, gateway: Gateway) -> bool:
        if not gateway.settings.ext_proc.listen:
            return True
        from mfsd.proto.wire import TlsError
        from mfsd.serve.gateway.picker import Picker

        picker = Picker(gateway)
        try:
            await picker.start()
        except (OSError, TlsError) as error:
            self.problem = f"ext_proc: {error}"
            return False
        self._picker = picker
        return True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles a signal in place of uvicorn, whose own handler of a second SIGINT would leave engines running."""
        self._signals += 1
        self.should_exit = True
        if sig == signal.SIGINT:
            self._end_all()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        (gateway,) = self._made
        settings, loop = gateway.settings, asyncio.get_running_loop()
        gateway.stopping = True
        if self._signals:
            gateway.log.info("stops", requests=len(gateway.ongoing), lame_duck_s=settings.lame_duck_s)
            await self._lame_duck(settings.lame_duck_s)
        end = loop.call_later(settings.drain_s, gateway.end_all)
        self._end_all = partial(loop.call_soon_threadsafe, gateway.end_all)
        if self._picker is not None:
            await asyncio.gather(self._picker.stop(settings.drain_s + LAST_WORD_S), super().shutdown(sockets=sockets))
        else:
            await super().shutdown(sockets=sockets)
        end.cancel()
        self._end_all = _nothing
        if self._pages is not None:
            self._pages.stop()

    async def _lame_duck(self, seconds: float) -> None:
        """Goes on serving for this long, or until a further signal."""
        signals, end_s = self._signals, asyncio.get_running_loop().time() + seconds
        while self._signals == signals and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(0.05)


def _nothing() -> None: ...


class CannotServe(Exception):
    """The gateway cannot serve. `str()` is one line with the reason."""


def serve(settings: GatewaySettings, log: Log) -> bool:
    """Serves until a signal. Returns False if it could not start and uvicorn has logged why. CannotServe."""
    remedy = "restart the gateway to read its configuration again"
    signal.signal(signal.SIGHUP, lambda *_: log.warning("sighup-ignored", remedy=remedy))
    host, port = settings.host_and_port
    made: list[Gateway] = []
    config = uvicorn.Config(
        application(settings, log, made),
        host=host,
        port=port,
        log_level="error",
        access_log=False,
        http=Bounded,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=math.ceil(settings.drain_s) + LAST_WORD_S,
    )
    server = _Server(config, settings.listen, made)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn has them only once it runs
        signal.signal(number, server.handle_exit)
    logging.getLogger("uvicorn.error").addFilter(server.keep_problem)
    with contextlib.suppress(SystemExit):
        server.run()
    if server.problem:
        raise CannotServe(server.problem)
    return server.started

"""The gateway's own pages, at a separate address: clients that send requests must not read about other clients."""

from __future__ import annotations

import asyncio

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.server import ServerState

from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.errors import ERROR_PAGES, json_page
from mfsd.serve.gateway.front import Bounded

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def application(gateway: Gateway) -> Starlette:
    async def status(_: Request) -> Response:
        return json_page(gateway.status())

    async def metrics(_: Request) -> Response:
        return Response(gateway.metrics_text(), media_type=METRICS_TYPE)

    pages = (("/status.json", status), ("/metrics", metrics))
    return Starlette(
        routes=[Route(path, page, methods=["GET"]) for path, page in pages], exception_handlers=ERROR_PAGES
    )


class Pages:
    """Serves the pages in the gateway's loop."""

    def __init__(self, gateway: Gateway) -> None:
        self._address = gateway.settings.metrics.host_and_port
        self._config = uvicorn.Config(
            application(gateway), http=Bounded, ws="none", lifespan="off", log_config=None, access_log=False
        )
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Starts to listen. OSError."""
        self._config.load()
        host, port = self._address
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Bounded(self._config, self._state, app_state={}), host, port
        )

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()

"""The second front: a proxy keeps the requests and asks for the endpoint of each, over Envoy's external processing as
in the Gateway API's inference extension. One gRPC stream is one request.

It uses the same admission, routers and tables as the HTTP front (proxy.py). A request counts at its replica until the
stream reports that its answer is complete, or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from mfsd.policy.route import Call, Refusal, Role, Router
from mfsd.proto import ext_proc_pb2 as pb
from mfsd.proto.certificates import Certificates, server_credentials
from mfsd.serve.gateway import picked
from mfsd.serve.gateway.admission import NoPlace, Place
from mfsd.serve.gateway.answer import Refused
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.exchange import PATHS, Exchange, NotUsable, encoded, object_of, too_large
from mfsd.serve.gateway.ongoing import Ongoing
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.settings import ExtProc
from mfsd.serve.gateway.turn import Turn
from mfsd.serve.gateway.usage import AnswerReader
from mfsd.serve.gateway.xargs import written

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH: Final = "grpc.health.v1.Health"
READY: Final = ("", "readiness", SERVICE)
"""Names of services that health checks may ask for, besides `liveness`."""
ENDPOINTS_MAX: Final = 3
"""Most endpoints that a proxy is given, the chosen one first. It tries the next one if it cannot connect."""
SPARE_BYTES: Final = 1 << 20
"""Size of a message in addition to its body."""
NO_UPSTREAM: Final = (b"502", b"503", b"504")

Context = grpc.aio.ServicerContext[bytes, pb.ProcessingResponse]


class _Left(Exception):
    """The stream has ended: the client has left, or the proxy has lost the engine."""


class _Ended(Exception):
    """The gateway has ended the request, because its engine is lost or the gateway stops. The proxy ends the request
    when this stream ends with an error."""


class _Foreign(Exception):
    """A message is not one of the protocol."""


class _Request:
    def __init__(self, gateway: Gateway, context: Context) -> None:
        self._gateway, self._context = gateway, context
        self._read: asyncio.Future[Any] | None = None
        self._ahead: deque[pb.ProcessingRequest] = deque()
        self._in = self._out = pb.FULL_DUPLEX_STREAMED
        self._head = picked.Head("", "", [])
        self._among: frozenset[str] | None = None
        self._body = bytearray()
        self._begun = self._decided = self._answering = False
        self._events = False
        self._exchange: Exchange | None = None
        self._turn: Turn | None = None
        self._reader: AnswerReader | None = None
        self._outcome = ""
        self._ongoing = Ongoing()

    async def run(self) -> None:
        """Serves the stream. _Foreign, _Ended."""
        self._gateway.ongoing.add(self._ongoing)
        try:
            async for message in self._messages():
                await self._take(message)
                if self._outcome == "refused":
                    return
        except _Left:
            pass
        except asyncio.CancelledError:
            if self._ongoing.refused is None:
                raise
            self._outcome = "failed"
            raise _Ended(self._ongoing.refused.message) from None
        finally:
            self._gateway.ongoing.discard(self._ongoing)
            if self._read is not None:
                self._read.cancel()
            self._over()

    async def _take(self, message: pb.ProcessingRequest) -> None:
        kind = message.WhichOneof("request")
        if (kind == "request_headers") == self._begun:
            problem = "came before" if kind != "request_headers" else "is the second of"
            raise _Foreign(f"{kind or 'an unknown part'} {problem} request_headers")
        if kind == "request_headers":
            self._begun = True
            await self._request_head(message)
        elif kind == "request_body":
            await self._request_body(message.request_body)
        elif kind == "request_trailers":
            if self._in == pb.FULL_DUPLEX_STREAMED and not self._decided:
                await self._decide_by_body(last=False)
            await self._write(pb.ProcessingResponse(request_trailers=pb.TrailersResponse()))
        elif kind == "response_headers":
            await self._answer_head(message)
        elif kind == "response_body":
            await self._answer_body(message.response_body)
        elif kind == "response_trailers":
            self._complete()
            await self._write(pb.ProcessingResponse(response_trailers=pb.TrailersResponse()))

    # ---- the stream --------------------------------------------------------------------------------------------------

    async def _messages(self) -> AsyncIterator[pb.ProcessingRequest]:
        while True:
            message = self._ahead.popleft() if self._ahead else await self._next()
            if message is None:
                return
            yield message

    async def _next(self) -> pb.ProcessingRequest | None:
        if self._read is None:
            raw: Any = await self._context.read()
        else:
            raw, self._read = await self._read, None
        if raw is grpc.aio.EOF:
            return None
        try:
            return pb.ProcessingRequest.FromString(raw)
        except DecodeError:
            raise _Foreign("a message is not a ProcessingRequest") from None

    async def _place(self, call: Call, prompt: Prompt) -> Place:
        """Waits for a place. NoPlace. _Left withdraws the waiting call."""
        admission = self._gateway.admission
        task = asyncio.ensure_future(admission.place(call, prompt, Role.BOTH, self._among))
        try:
            while not task.done():
                if self._read is None:
                    self._read = asyncio.ensure_future(self._context.read())
                await asyncio.wait({task, self._read}, return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    message = await self._next()
                    if message is None:
                        raise _Left
                    self._ahead.append(message)
            return task.result()
        except (asyncio.CancelledError, _Left):
            if task.done() and not task.cancelled() and task.exception() is None:  # the place came at the same moment
                admission.give_back(task.result(), call, prompt)
            raise
        finally:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, NoPlace):
                    await task

    async def _write(self, message: pb.ProcessingResponse) -> None:
        await self._context.write(message)

    # ---- the request -------------------------------------------------------------------------------------------------

    async def _request_head(self, message: pb.ProcessingRequest) -> None:
        if message.observability_mode:
            raise _Left  # in this mode the proxy ignores all answers
        if message.HasField("protocol_config"):
            self._in = message.protocol_config.request_body_mode
            self._out = message.protocol_config.response_body_mode
        self._head = picked.head_of(message.request_headers)
        endpoints = picked.subset_of(message)
        if endpoints is not None:
            self._among = frozenset(one.name for one in self._gateway.replicas.all if one.endpoint in endpoints)
        counts = self._head.method == "POST" and self._head.path in PATHS
        if not counts:
            await self._pass_on()
        elif message.request_headers.end_of_stream or self._in not in (pb.FULL_DUPLEX_STREAMED, pb.BUFFERED):
            if chosen := await self._decide({}):
                await self._write(picked.to_head(chosen, []))
        elif self._in == pb.BUFFERED:
            await self._write(pb.ProcessingResponse(request_headers=pb.HeadersResponse()))

    async def _pass_on(self) -> None:
        """Passes on a request that is not for tokens, such as one for a list of models. It goes to the replica with the
        least load and is not counted."""
        self._decided = True
        names = self._gateway.admission.ranked(Router.LEAST_LOADED, Call(), Prompt(0, 0), self._among, ENDPOINTS_MAX)
        if names:
            await self._write(picked.to_head(self._endpoints(names), []))
        else:
            await self._refuse(Refused(503, "no replica answers", "server_error", "no_replica", 1))

    async def _request_body(self, part: pb.HttpBody) -> None:
        if self._decided or self._in not in (pb.FULL_DUPLEX_STREAMED, pb.BUFFERED):
            if self._in == pb.FULL_DUPLEX_STREAMED:
                for reply in picked.to_request_body(part.body, part.end_of_stream):
                    await self._write(reply)
            else:
                await self._write(pb.ProcessingResponse(request_body=pb.BodyResponse()))
            return
        most = self._gateway.settings.admission.body_max_bytes
        if len(self._body) + len(part.body) > most:
            await self._refuse(too_large(most))
            return
        self._body += part.body
        if part.end_of_stream or self._in == pb.BUFFERED:
            await self._decide_by_body(last=True)

    async def _decide_by_body(self, last: bool) -> None:
        raw = bytes(self._body)
        self._body.clear()
        try:
            body = object_of(raw)
        except NotUsable as error:
            await self._refuse(error.refused)
            return
        endpoints = await self._decide(body)
        if not endpoints:
            return
        exchange = self._exchange
        assert exchange is not None
        waited_s = asyncio.get_running_loop().time() - exchange.began_s
        new = written(body, exchange.wanted, exchange.words, waited_s)
        try:
            content = raw if new is body else encoded(new)
        except NotUsable as error:
            await self._refuse(error.refused)
            return
        if self._in == pb.BUFFERED:
            await self._write(picked.to_whole_body(endpoints, self._head.headers, content))
            return
        await self._write(picked.to_head(endpoints, self._head.headers))
        for reply in picked.to_request_body(content, last):
            await self._write(reply)

    async def _decide(self, body: dict[str, Any]) -> list[str]:
        """Returns the endpoints, the chosen one first; none if the request was refused."""
        gateway, loop = self._gateway, asyncio.get_running_loop()
        self._decided = True
        exchange = self._exchange = Exchange(self._head.path, self._head.headers, body)
        exchange.read(gateway)
        call, prompt = exchange.call, exchange.prompt
        try:
            place = await self._place(call, prompt)
        except NoPlace as error:
            refused = exchange.refused(gateway, error)
            if error.choice.refused is Refusal.MODEL and self._among is not None:
                refused = refused._replace(status=503, kind="server_error", code="no_replica", retry_after_s=1)
            await self._refuse(refused)
            return []
        self._turn = Turn(gateway, place, call, prompt, self._ongoing)
        gateway.metrics.picked.labels(place.replica.name).inc()
        gateway.metrics.overhead.observe(max(0.0, loop.time() - exchange.began_s - place.waited_s))
        router = gateway.settings.route.router
        others = gateway.admission.ranked(router, call, prompt, self._among, ENDPOINTS_MAX - 1, {place.replica.name})
        return self._endpoints([place.replica.name, *others])

    def _endpoints(self, names: list[str]) -> list[str]:
        return [self._gateway.replicas.by_name[name].endpoint for name in names]

    async def _refuse(self, refused: Refused) -> None:
        self._outcome = "refused"
        await self._write(picked.immediate(refused))

    # ---- its answer --------------------------------------------------------------------------------------------------

    async def _answer_head(self, message: pb.ProcessingRequest) -> None:
        self._answering = True
        found, turn = message.response_headers, self._turn
        if turn is None:
            await self._write(pb.ProcessingResponse(response_headers=pb.HeadersResponse()))
            return
        headers = dict(picked.headers_of(found))
        served = picked.served_of(message)
        if served and served != turn.replica.endpoint:
            self._moved(turn, served)
        if headers.get(b":status") in NO_UPSTREAM:  # either the proxy's own answer or the engine's
            self._gateway.doubt(turn.replica)
            self._outcome = "" if served else "failed"
        if self._outcome != "failed":
            turn.replica.sent += 1
            self._gateway.metrics.sent.labels(turn.replica.name).inc()
            if (status := headers.get(b":status", b"")).isdigit() and len(status) == 3:
                turn.answered(int(status))
        self._events = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if self._exchange is not None and headers.get(b":status") == b"200":
            self._reader = self._exchange.answer_reader(self._events)
        if found.end_of_stream:
            self._complete()
        elif self._out == pb.NONE:  # no more messages come until the stream ends
            turn.first_byte()
        await self._write(picked.to_answer_head(turn.replica.name))

    def _moved(self, turn: Turn, served: str) -> None:
        gateway = self._gateway
        other = next((one for one in gateway.replicas.all if one.endpoint == served), None)
        gateway.doubt(turn.replica)
        if other is not None:
            gateway.metrics.sent_elsewhere.labels(turn.replica.name).inc()
            turn.moved(other)

    async def _answer_body(self, part: pb.HttpBody) -> None:
        if self._turn is not None:
            self._turn.first_byte(learn=self._events)
            self._turn.replica.seen()
            if self._reader is not None:
                self._reader.part(part.body)
        if part.end_of_stream:
            self._complete()
        if self._out == pb.FULL_DUPLEX_STREAMED:
            await self._write(picked.to_answer_body(part.body, part.end_of_stream))
        else:
            await self._write(pb.ProcessingResponse(response_body=pb.BodyResponse()))

    def _complete(self) -> None:
        """Ends the turn after the complete answer, so that its replica may get another request before the proxy closes
        the stream."""
        if self._turn is not None:
            self._turn.first_byte()
            self._turn.end(self._outcome == "failed")
            self._turn = None
            if self._exchange is not None:
                self._exchange.answered(self._gateway, self._reader)
            self._outcome = self._outcome or "answered"

    def _over(self) -> None:
        """Cleans up after the stream has ended at either end."""
        if self._turn is not None and self._answering and self._out == pb.NONE:
            self._complete()
        if self._turn is not None:
            if self._answering:  # the client has left, or the engine is lost
                self._gateway.doubt(self._turn.replica)
            self._turn.end(self._outcome == "failed")
        if self._exchange is not None:
            self._gateway.metrics.requests.labels(self._exchange.wanted.tier, self._outcome or "withdrawn").inc()


class Picker:
    """The picker's gRPC server. Make it in the loop that serves."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._settings = gateway, gateway.settings.ext_proc
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Starts to listen. OSError, TlsError."""
        gateway, settings = self._gateway, self._settings
        most = gateway.settings.admission.body_max_bytes + SPARE_BYTES
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", most),
                ("grpc.so_reuseport", 0),
            )
        )
        processor: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Process": grpc.stream_stream_rpc_method_handler(
                self.process, response_serializer=pb.ProcessingResponse.SerializeToString
            )
        }
        health: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.unary_unary_rpc_method_handler(
                self._check,
                request_deserializer=pb.HealthCheckRequest.FromString,
                response_serializer=pb.HealthCheckResponse.SerializeToString,
            )
        }
        for name, handlers in ((SERVICE, processor), (HEALTH, health)):
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        self._bind(server, settings)
        await server.start()
        self._server = server

    def _bind(self, server: grpc.aio.Server, settings: ExtProc) -> None:
        files = settings.tls
        try:
            if files is None:
                server.add_insecure_port(settings.listen)
            else:
                server.add_secure_port(settings.listen, server_credentials(Certificates(files, self._gateway.log)))
        except RuntimeError as error:
            text = (
                f"cannot listen on {settings.listen}: another program may use the port, or the address may not be "
                "this host's"
            )
            raise OSError(text) from error

    async def stop(self, grace_s: float) -> None:
        """Stops; streams that have begun get `grace_s` to end."""
        if self._server is not None:
            await self._server.stop(grace_s)

    async def process(self, _: object, context: Context) -> None:
        open_now = self._gateway.metrics.streams
        open_now.inc()
        try:
            await _Request(self._gateway, context).run()
        except _Foreign as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except _Ended as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            open_now.dec()

    async def _check(
        self, request: pb.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.HealthCheckResponse:
        if request.service == "liveness":
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVING)
        if request.service not in READY:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r:.80}")
        up = not self._gateway.stopping and any(replica.healthy for replica in self._gateway.replicas.all)
        return pb.HealthCheckResponse(
            status=pb.HealthCheckResponse.SERVING if up else pb.HealthCheckResponse.NOT_SERVING
        )

"""Serves a client's request, from its body to the last byte of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from mfsd.policy.route import Choice, Refusal, Role
from mfsd.serve.gateway import pd, responses
from mfsd.serve.gateway.admission import Among, NoPlace
from mfsd.serve.gateway.answer import (
    BODY_S,
    INTERNAL,
    JSON,
    Answer,
    ClientLeft,
    Receive,
    Scope,
    Send,
    TooLarge,
    TooSlow,
    problem,
    read_body,
)
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.exchange import (
    NOT_JSON,
    Exchange,
    NotUsable,
    engine_lost,
    no_socket,
    not_in_two,
    object_of,
    too_large,
    too_slow,
)
from mfsd.serve.gateway.ongoing import Ongoing, until_left
from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.gateway.split import Body, SplitRequest
from mfsd.serve.gateway.turn import Turn
from mfsd.serve.gateway.upstream import FAILED, NoSocket, NotSent, content_of, headers_back, in_a_line, whole_events


class Proxy:
    """The ASGI application of one path."""

    def __init__(self, gateway: Callable[[], Gateway], path: str) -> None:
        self._made, self._path = gateway, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._made()
        answer = Answer(send, last=gateway.stopping)
        try:
            await self._ask(gateway, scope, receive, answer)
        except Exception:
            await answer.failed(INTERNAL)
            raise

    async def _ask(self, gateway: Gateway, scope: Scope, receive: Receive, answer: Answer) -> None:
        if scope["method"] != "POST":
            text = problem("use POST", "invalid_request_error", "method_not_allowed")
            await answer.whole(405, [JSON, (b"allow", b"POST")], text)
            return
        most = gateway.settings.admission.body_max_bytes
        try:
            body = object_of(await read_body(receive, most))
        except ClientLeft:
            return
        except (TooLarge, TooSlow) as error:
            answer.last = True
            await answer.failed(too_large(most) if isinstance(error, TooLarge) else too_slow(BODY_S))
            return
        except NotUsable as error:
            await answer.failed(error.refused)
            return
        exchange = Exchange(self._path, scope["headers"], body)

        async def serve(ongoing: Ongoing) -> str:
            return await self._serve(gateway, exchange, answer, ongoing)

        outcome = "error"
        try:
            outcome = await until_left(gateway.ongoing, answer, scope, receive, serve)
        finally:
            gateway.metrics.requests.labels(exchange.wanted.tier, outcome).inc()

    async def _serve(self, gateway: Gateway, exchange: Exchange, answer: Answer, ongoing: Ongoing) -> str:
        """Serves the request and returns the outcome."""
        exchange.read(gateway)
        try:
            if gateway.replicas.disaggregated and self._path in pd.PATHS:
                return await self._in_two(gateway, exchange, answer, ongoing)
            if not gateway.replicas.whole:
                gateway.metrics.refused.labels("path").inc()
                await answer.failed(not_in_two(self._path))
                return "refused"
            return await self._whole(gateway, exchange, answer, ongoing, Role.BOTH, lambda _: exchange.body)
        except NoPlace as error:
            await answer.failed(exchange.refused(gateway, error))
            return "refused"
        except NotUsable as error:
            await answer.failed(error.refused)
            return "refused"
        except NoSocket as error:
            gateway.poller.no_socket(str(error))
            gateway.metrics.refused.labels("no-socket").inc()
            await answer.failed(no_socket(str(error)))
            return "refused"

    async def _sent(
        self,
        gateway: Gateway,
        exchange: Exchange,
        ongoing: Ongoing,
        role: Role,
        body: Body,
        intended: LiveReplica | None = None,
    ) -> Turn:
        """Sends a call; returns its turn, with the head of the response. NoPlace, NotUsable, NoSocket, FAILED.

        intended: the replica that gets the call if it can take it."""
        loop = asyncio.get_running_loop()
        among = self._among(gateway, exchange)
        missed: LiveReplica | None = None
        for _ in range(len(gateway.replicas.all) + 1):
            place = await gateway.admission.place(exchange.call, exchange.prompt, role, among, intended)
            if missed is not None and missed is not place.replica:
                gateway.metrics.sent_elsewhere.labels(missed.name).inc()
            turn = Turn(gateway, place, exchange.call, exchange.prompt, ongoing)
            try:
                waited_s = loop.time() - exchange.began_s
                content = exchange.for_engine(body(place.replica), waited_s)
                gateway.metrics.overhead.observe(max(0.0, loop.time() - exchange.began_s - place.waited_s))
                turn.response = await gateway.upstream.post(
                    place.replica, exchange.path, content, exchange.headers, exchange.request_id
                )
            except NotSent as error:
                turn.end(failed=True)
                missed = place.replica
                gateway.reconnect.failed(place.replica, error)
                continue
            except FAILED:
                turn.end(failed=True)
                raise
            except BaseException:
                turn.end()
                raise
            place.replica.sent += 1
            gateway.metrics.sent.labels(place.replica.name).inc()
            turn.answered(turn.response.status)
            return turn
        raise NoPlace(Choice(replica=None, reason="cannot connect to any replica", refused=Refusal.UNHEALTHY))

    def _among(self, gateway: Gateway, exchange: Exchange) -> Among:
        """Returns the replicas that may serve the request. An address that no longer exists keeps no answers."""
        keeper = gateway.responses.keeper(exchange.body) if self._path == responses.PATH else None
        return frozenset({keeper}) if keeper is not None and keeper in gateway.replicas.by_name else None

    async def _whole(
        self,
        gateway: Gateway,
        exchange: Exchange,
        answer: Answer,
        ongoing: Ongoing,
        role: Role,
        body: Body,
        intended: LiveReplica | None = None,
    ) -> str:
        try:
            turn = await self._sent(gateway, exchange, ongoing, role, body, intended)
        except FAILED as error:
            return await self._failed(answer, error)
        failed = True
        try:
            await self._relay(gateway, exchange, answer, turn)
            failed = False
        except FAILED as error:
            return await self._failed(answer, error)
        except asyncio.CancelledError:
            failed = False
            raise
        finally:
            turn.end(failed)
        return "answered"

    async def _failed(self, answer: Answer, error: BaseException) -> str:
        await answer.failed(engine_lost(in_a_line(error)))
        return "failed"

    async def _relay(self, gateway: Gateway, exchange: Exchange, answer: Answer, turn: Turn) -> None:
        response = turn.response
        assert response is not None
        headers = headers_back(response, turn.replica)
        keeps = self._path == responses.PATH and response.status == 200
        streams = response.content_type == "text/event-stream"
        reader = exchange.answer_reader(streams) if response.status == 200 else None
        if not streams:
            turn.first_byte()
            content = await content_of(response, turn.replica)
            if reader is not None:
                reader.part(content)
                exchange.answered(gateway, reader)
            if keeps:
                gateway.responses.learn(content, turn.replica.name)
            await answer.whole(response.status, headers, content)
            return
        await answer.begin(response.status, headers)
        async for events in whole_events(response):
            turn.first_byte(learn=True)
            turn.replica.seen()
            if keeps:
                keeps = not gateway.responses.learn_stream(events, turn.replica.name)
            if reader is not None:
                reader.part(events)
            await answer.part(events)
        exchange.answered(gateway, reader)
        await answer.end()

    # ---- prefill and decode apart ------------------------------------------------------------------------------------

    async def _in_two(self, gateway: Gateway, exchange: Exchange, answer: Answer, ongoing: Ongoing) -> str:
        split = SplitRequest(gateway, exchange)
        try:
            return await self._split(gateway, exchange, answer, ongoing, split)
        finally:
            split.end()

    async def _split(
        self, gateway: Gateway, exchange: Exchange, answer: Answer, ongoing: Ongoing, split: SplitRequest
    ) -> str:
        try:
            turn = await self._sent(gateway, exchange, ongoing, Role.PREFILL, split.prefill)
        except FAILED as error:
            return await self._failed(answer, error)
        response = turn.response
        assert response is not None
        failed = False
        try:
            turn.first_byte(learn=True)
            content = await content_of(response, turn.replica)
        except FAILED as error:
            failed = True
            return await self._failed(answer, error)
        finally:
            turn.end(failed)
        found = _object(content) if response.status == 200 else None
        if found is None:  # the engine itself has refused the call
            status = response.status if response.status != 200 else 502
            await answer.whole(status, headers_back(response, turn.replica), content)
            return "answered"
        decode = split.decode(found, turn.replica)
        return await self._whole(gateway, exchange, answer, ongoing, Role.DECODE, decode, split.intended)


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(content)
    except NOT_JSON:
        return None
    return found if isinstance(found, dict) else None

"""One request of a client, from its body to the last byte of its answer."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec

from mfsd.policy.route import Call, Choice, Refusal, Role
from mfsd.serve.gateway import pd
from mfsd.serve.gateway.admission import NoPlace
from mfsd.serve.gateway.answer import Answer, ClientLeft, Receive, Scope, Send, TooLarge, read_body
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.prompt import Prompt, prompt_of
from mfsd.serve.gateway.turn import Turn
from mfsd.serve.gateway.upstream import FAILED, NotSent, headers_back
from mfsd.serve.gateway.xargs import words_of, written
from mfsd.serve.promise import NO_TIER, Wanted, Words

PATHS: Final = (*pd.PATHS, "/v1/responses", "/v1/embeddings")
STATUS: Final = {
    Refusal.MODEL: (404, "invalid_request_error", "model_not_found"),
    Refusal.TIER: (503, "server_error", "no_replica_for_tier"),
    Refusal.TOO_LONG: (413, "invalid_request_error", "context_length_exceeded"),
    Refusal.UNHEALTHY: (503, "server_error", "no_replica"),
    Refusal.SATURATED: (429, "rate_limit_error", "saturated"),
}
UNHEALTHY_RETRY_S: Final = 1


class _Exchange:
    """What is known of one request."""

    __slots__ = ("answer", "began_s", "body", "call", "headers", "path", "prompt", "request_id", "wanted", "words")

    def __init__(self, path: str, headers: list[tuple[bytes, bytes]], answer: Answer, body: dict[str, Any]) -> None:
        self.path, self.headers, self.answer, self.body = path, headers, answer, body
        self.began_s = asyncio.get_running_loop().time()
        self.request_id = uuid.uuid4().hex
        self.call = Call()
        self.prompt = Prompt(0, 0)
        self.wanted, self.words = Wanted(), Words()

    def for_engine(self, body: dict[str, Any], waited_s: float) -> bytes:
        return msgspec.json.encode(written(body, self.wanted, self.words, waited_s))


class Proxy:
    """The ASGI application of one path."""

    def __init__(self, gateway: Callable[[], Gateway], path: str) -> None:
        self._made, self._path = gateway, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway, answer = self._made(), Answer(send)
        if scope["method"] != "POST":
            await answer.failed(405, "use POST", "invalid_request_error", "method_not_allowed")
            return
        most = gateway.settings.admission.body_max_bytes
        try:
            raw = await read_body(receive, most)
        except ClientLeft:
            return
        except TooLarge:
            text = f"the body has more than {most} bytes, which is the limit"
            await answer.failed(413, text, "invalid_request_error", "body_too_large", limit=most)
            return
        try:
            body = msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            await answer.failed(400, f"the body is not JSON: {error}", "invalid_request_error", "invalid_json")
            return
        if not isinstance(body, dict):
            await answer.failed(400, "the body is not a JSON object", "invalid_request_error", "invalid_json")
            return
        exchange = _Exchange(self._path, scope["headers"], answer, body)
        left = False
        task = asyncio.current_task()
        assert task is not None

        async def watch() -> None:
            nonlocal left
            while (await receive())["type"] != "http.disconnect":
                pass
            left = True
            task.cancel()

        watcher = asyncio.create_task(watch())
        try:
            outcome = await self._serve(gateway, exchange)
        except asyncio.CancelledError:
            if not left:
                raise
            outcome = "withdrawn"
        finally:
            watcher.cancel()
        gateway.metrics.requests.labels(exchange.wanted.tier, outcome).inc()

    async def _serve(self, gateway: Gateway, exchange: _Exchange) -> str:
        """The outcome."""
        self._read(gateway, exchange)
        try:
            if gateway.replicas.disaggregated and self._path in pd.PATHS:
                return await self._in_two(gateway, exchange)
            return await self._whole(gateway, exchange, Role.BOTH, exchange.body)
        except NoPlace as error:
            return await self._refused(gateway, exchange, error)

    def _read(self, gateway: Gateway, exchange: _Exchange) -> None:
        """What the request says of itself."""
        body = exchange.body
        words = exchange.words = words_of(body, exchange.headers, gateway.settings.tiers)
        if words.tier and not gateway.settings.tiers:
            wanted = gateway.reader.wanted(words._replace(tier=""))  # for its engine alone
        else:
            wanted = gateway.reader.wanted(words)
        exchange.wanted = wanted
        exchange.prompt = prompt_of(body, gateway.chunked)
        program, known = gateway.programs.program_of(wanted)
        if not known:
            text = f"parent {wanted.parent!r} is not known here; its sessions count for themselves"
            gateway.cannot_use("serve-parent", text)
        now_ns = int(exchange.began_s * 1e9)
        model = body.get("model")
        exchange.call = Call(
            prompt_tokens=exchange.prompt.tokens,
            model=model if isinstance(model, str) else "",
            program=program,
            tier=wanted.tier if wanted.tier != NO_TIER else "",
            importance=wanted.importance,
            arrival_ns=now_ns,
            deadline_ns=None if wanted.ttft_s is None else now_ns + int(wanted.ttft_s * 1e9),
            kv_bytes=exchange.prompt.tokens * gateway.settings.kv.bytes_per_token,
        )

    async def _refused(self, gateway: Gateway, exchange: _Exchange, error: NoPlace) -> str:
        choice = error.choice
        assert choice.refused is not None
        status, kind, code = STATUS[choice.refused]
        gateway.metrics.refused.labels(choice.refused.value).inc()
        text, more = choice.reason, {}
        if choice.refused is Refusal.TOO_LONG:
            text = f"{text}: it has at least {exchange.prompt.tokens_least} tokens, and the limit is {choice.limit}"
            more = {"limit": choice.limit}
        elif choice.refused is Refusal.MODEL:
            text = f"{text} {exchange.call.model!r:.80}; /v1/models has those that there are"
        retry_s = error.retry_after_s or (UNHEALTHY_RETRY_S if choice.refused is Refusal.UNHEALTHY else 0)
        await exchange.answer.failed(status, text, kind, code, retry_s, **more)
        return "refused"

    async def _sent(self, gateway: Gateway, exchange: _Exchange, role: Role, body: dict[str, Any]) -> Turn:
        """The call's turn, with the head of the response. NoPlace, FAILED."""
        loop = asyncio.get_running_loop()
        for _ in range(len(gateway.replicas.all) + 1):
            place = await gateway.admission.place(exchange.call, exchange.prompt, role)
            turn = Turn(gateway, place, exchange.call, exchange.prompt)
            try:
                waited_s = loop.time() - exchange.began_s
                content = exchange.for_engine(body, waited_s)
                gateway.metrics.overhead.observe(max(0.0, loop.time() - exchange.began_s - place.waited_s))
                turn.response = await gateway.upstream.post(
                    place.replica, exchange.path, content, exchange.headers, exchange.request_id
                )
            except NotSent as error:
                turn.end(failed=True)
                gateway.metrics.sent_elsewhere.labels(place.replica.name).inc()
                gateway.down(place.replica, str(error))
                continue
            except FAILED:
                turn.end(failed=True)
                raise
            except BaseException:
                turn.end()
                raise
            place.replica.sent += 1
            gateway.metrics.sent.labels(place.replica.name).inc()
            return turn
        raise NoPlace(Choice(replica=None, reason="no replica can be connected to", refused=Refusal.UNHEALTHY))

    async def _whole(self, gateway: Gateway, exchange: _Exchange, role: Role, body: dict[str, Any]) -> str:
        try:
            turn = await self._sent(gateway, exchange, role, body)
        except FAILED as error:
            return await self._failed(exchange, error)
        failed = True
        try:
            await self._relay(exchange.answer, turn)
            failed = False
        except FAILED as error:
            return await self._failed(exchange, error)
        except asyncio.CancelledError:
            failed = False
            raise
        finally:
            turn.end(failed)
        return "answered"

    async def _failed(self, exchange: _Exchange, error: BaseException) -> str:
        reason = " ".join(str(error).split()) or type(error).__name__
        text = f"the engine did not finish the request ({reason}); it is not sent again, since it may have run"
        await exchange.answer.failed(502, text, "server_error", "engine_lost")
        return "failed"

    async def _relay(self, answer: Answer, turn: Turn) -> None:
        """Events are passed on whole, so that an error can follow the last one of them."""
        response = turn.response
        assert response is not None
        headers = headers_back(response, turn.replica)
        if response.content_type != "text/event-stream":
            turn.first_byte()
            await answer.whole(response.status, headers, await response.read())
            return
        await answer.begin(response.status, headers)
        rest = b""
        async for chunk in response.content.iter_any():
            turn.first_byte(learn=True)
            rest += chunk
            if end := _events_end(rest):
                await answer.part(rest[:end])
                rest = rest[end:]
        await answer.end(rest)

    # ---- prefill and decode apart ------------------------------------------------------------------------------------

    async def _in_two(self, gateway: Gateway, exchange: _Exchange) -> str:
        connector, transfer = gateway.settings.disaggregation.connector, f"mfs-{exchange.request_id}"
        try:
            turn = await self._sent(gateway, exchange, Role.PREFILL, pd.prefill(exchange.body, connector, transfer))
        except FAILED as error:
            return await self._failed(exchange, error)
        response = turn.response
        assert response is not None
        failed = False
        try:
            turn.first_byte(learn=True)
            content = await response.read()
        except FAILED as error:
            failed = True
            return await self._failed(exchange, error)
        finally:
            turn.end(failed)
        found = _object(content) if response.status == 200 else None
        if found is None:  # the engine's own refusal
            status = response.status if response.status != 200 else 502
            await exchange.answer.whole(status, headers_back(response, turn.replica), content)
            return "answered"
        settings = turn.replica.settings
        return await self._whole(
            gateway, exchange, Role.DECODE, pd.decode(exchange.body, connector, transfer, found, settings)
        )


def _events_end(text: bytes) -> int:
    """Where the last whole event ends; 0: there is none."""
    return max((at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := text.rfind(mark)) >= 0), default=0)


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) else None

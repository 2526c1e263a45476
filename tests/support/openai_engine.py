"""An engine's HTTP side without a model: python -m tests.support.openai_engine PORT. It answers like vLLM, keeps every
request, and holds back requests that ask for it until POST /release."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.ports import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
MODEL = "stand-in"
PROMPT_MAX = 4096


class Engine:
    running: asyncio.Task[None]

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.released = asyncio.Event()
        self.fails = self.hangs = self.asleep = False
        self.while_asleep: list[str] = []
        """Paths that were asked for while it slept."""
        self.keeps_weights = "forgetful" not in sys.argv

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answers a request. `hold` in it: after so many tokens, nothing more is sent until /release."""
        body = await request.json()
        if self.fails:
            return web.json_response({"error": {"message": "the model is gone"}}, status=500)
        seen = {"path": request.path, "body": body, "headers": dict(request.headers), "state": "running"}
        self.requests.append(seen)
        try:
            answer = await (self.stream(request, seen) if body.get("stream") else self.whole(seen))
        except (asyncio.CancelledError, ConnectionResetError):
            seen["state"] = "aborted"
            raise
        seen["state"] = "finished"
        return answer

    async def hold(self, seen: dict[str, Any], sent: int) -> None:
        if seen["body"].get("hold") == sent:
            seen["state"] = "held"
            await self.released.wait()

    async def whole(self, seen: dict[str, Any]) -> web.Response:
        await self.hold(seen, 0)
        body = seen["body"]
        fields: dict[str, Any] = {"object": "text_completion", "choices": [choice(body)], **usage(body)}
        asked = body.get("kv_transfer_params") or {}
        if asked.get("do_remote_decode") and "transfer_id" not in asked:
            fields["kv_transfer_params"] = {"do_remote_prefill": True, "remote_engine_id": "P", "remote_port": 1}
        return web.json_response({"model": MODEL, **fields})

    async def stream(self, request: web.Request, seen: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for number in range(int(seen["body"].get("max_tokens") or 4)):
            await self.hold(seen, number)
            event = {"object": "text_completion", "choices": [{"index": 0, "text": f"t{number} "}]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if (seen["body"].get("stream_options") or {}).get("include_usage"):
            await response.write(b"data: " + json.dumps({"choices": [], **usage(seen["body"])}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def run(self) -> None:
        """Runs beside the requests."""

    async def seen(self, _: web.Request) -> web.Response:
        return web.json_response(self.requests)

    async def release(self, _: web.Request) -> web.Response:
        self.released.set()
        self.released = asyncio.Event()
        return web.Response()

    async def to_sleep(self, request: web.Request) -> web.Response:
        """As vLLM and SGLang are put to sleep."""
        while self.hangs:
            await asyncio.sleep(1.0)
        self.asleep = True
        return web.Response(status=500 if self.fails else 200)

    async def wake(self, _: web.Request) -> web.Response:
        if not self.fails:
            self.asleep = False
        return web.Response(status=500 if self.fails else 200)

    async def is_sleeping(self, _: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": self.asleep})

    async def server_info(self, _: web.Request) -> web.Response:
        """As SGLang's."""
        return web.json_response({"enable_memory_saver": True, "enable_weights_cpu_backup": self.keeps_weights})

    async def asked_asleep(self, _: web.Request) -> web.Response:
        return web.json_response(self.while_asleep)

    async def hang(self, _: web.Request) -> web.Response:
        self.hangs = True
        return web.Response()

    async def fail(self, request: web.Request) -> web.Response:
        self.fails = request.match_info["how"] == "on"
        return web.Response()

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "max_model_len": PROMPT_MAX, "created": 7}]})

    async def metrics(self, _: web.Request) -> web.Response:
        running = sum(request["state"] in ("running", "held") for request in self.requests)
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        values = {"num_requests_running": running, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.25}
        cache = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="512"} 1.0\n'
        return web.Response(text=cache + "".join(f"vllm:{name}{labels} {value}\n" for name, value in values.items()))


def choice(body: dict[str, Any]) -> dict[str, Any]:
    """Of a whole answer. `calls` in the request: it calls a tool."""
    if "messages" not in body:
        return {"index": 0, "text": "a b"}
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}] if body.get("calls") else []
    return {"index": 0, "message": {"role": "assistant", "content": "a b", "tool_calls": calls}}


def usage(body: dict[str, Any]) -> dict[str, Any]:
    """As if the answer had as many tokens as `tokens` in the request says; nothing where the request has none."""
    return {"usage": {"prompt_tokens": 3, "completion_tokens": body["tokens"]}} if "tokens" in body else {}


ASLEEP_TOO = ("/wake_up", "/resume_memory_occupation", "/is_sleeping", "/asked_asleep", "/seen", "/fail/on")
"""What an engine may be asked while it sleeps."""


def serve(engine: Engine, port: int) -> None:
    @web.middleware
    async def notes(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Any:
        if engine.asleep and request.path not in ASLEEP_TOO:
            engine.while_asleep.append(request.path)
        return await handler(request)

    async def started(_: web.Application) -> None:
        engine.running = asyncio.create_task(engine.run())

    app = web.Application(middlewares=[notes])
    app.on_startup.append(started)
    for path in ("/v1/completions", "/v1/chat/completions"):
        app.router.add_post(path, engine.complete)
    app.router.add_post("/release", engine.release)
    app.router.add_post("/fail/{how}", engine.fail)
    app.router.add_post("/hang", engine.hang)
    for path in ("/sleep", "/release_memory_occupation"):
        app.router.add_post(path, engine.to_sleep)
    for path in ("/wake_up", "/resume_memory_occupation"):
        app.router.add_post(path, engine.wake)
    for path, page in (("/is_sleeping", engine.is_sleeping), ("/server_info", engine.server_info)):
        app.router.add_get(path, page)
    app.router.add_get("/asked_asleep", engine.asked_asleep)
    for path, page in (("/seen", engine.seen), ("/v1/models", engine.models), ("/metrics", engine.metrics)):
        app.router.add_get(path, page)
    web.run_app(app, host="127.0.0.1", port=port, print=lambda *_: None, handler_cancellation=True)


class StandIn:
    """An engine in a separate process."""

    def __init__(self, module: str = "tests.support.openai_engine", *more: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = (sys.executable, "-m", module, str(self.port), *more)
        self.process = subprocess.Popen(command, cwd=ROOT)

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(self.url + "/v1/models", timeout=5).status == 200)
        return False

    def seen(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.load(urllib.request.urlopen(self.url + "/seen", timeout=10))
        return found

    def release(self) -> None:
        self._post("/release")

    def fail(self, fails: bool) -> None:
        """Sets whether, from now on, each request fails at once."""
        self._post(f"/fail/{'on' if fails else 'off'}")

    def hang(self) -> None:
        """From now on it does not fall asleep, and answers nothing to who asks it to."""
        self._post("/hang")

    def asked_asleep(self) -> list[str]:
        """What it was asked for while it slept."""
        found: list[str] = json.load(urllib.request.urlopen(self.url + "/asked_asleep", timeout=10))
        return found

    def _post(self, path: str) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url + path, method="POST"), timeout=10)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def engines(count: int, module: str = "tests.support.openai_engine", *more: str) -> Iterator[list[StandIn]]:
    """Runs `count` engines. more: further arguments of each, with its number in place of N."""
    made = [StandIn(module, *(word.replace("N", str(number)) for word in more)) for number in range(count)]
    try:
        for one in made:
            eventually(one.answers, "the stand-in engine")
        yield made
    finally:
        for one in made:
            one.process.kill()
            one.process.wait()


if __name__ == "__main__":
    serve(Engine(), int(sys.argv[1]))

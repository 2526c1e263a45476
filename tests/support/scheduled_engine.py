"""An engine's HTTP side without a model, whose steps MFS's own request scheduler plans:
python -m tests.support.scheduled_engine PORT NAME FOLDER. It publishes its status in FOLDER, for mfsctl serve. Its
tokens are t0, t1, ..."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from mfsd.policy.serve import ServeConfig, StepLoad
from mfsd.serve.engine import Engine as Scheduler
from mfsd.serve.headers import FIELD, words_in
from mfsd.serve.publish import Publisher
from mfsd.serve.requests import Fact
from mfsd.serve.settings import Settings
from tests.support.openai_engine import Engine, serve

STEP_S = 0.002


class _Running:
    def __init__(self, prompt: int, wanted: int) -> None:
        self.computed, self.prompt, self.made, self.wanted = 0, prompt, 0, wanted
        self.tokens: asyncio.Queue[int] = asyncio.Queue()


class Scheduled(Engine):
    def __init__(self, name: str, folder: Path) -> None:
        super().__init__()
        config = ServeConfig(step_tokens=64, requests_max=8)
        self._scheduler = Scheduler(Settings(serve=config), config, self._warn, name, time.monotonic)
        self._publisher = Publisher(self._scheduler, self._warn, folder)
        self._left: dict[str, _Running] = {}
        self._arrived = asyncio.Event()

    def _warn(self, kind: str, text: str) -> None:
        print(kind, text, file=sys.stderr)

    async def stream(self, request: web.Request, seen: dict[str, Any]) -> web.StreamResponse:
        body, name = seen["body"], f"r{len(self.requests)}"
        one = _Running(len(str(body["prompt"]).split()), int(body["max_tokens"]))
        self._scheduler.arrived(name, words_in([body.get(FIELD)], (), None, None), 0.0, one.prompt, one.wanted)
        self._left[name] = one
        self._arrived.set()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for _ in range(one.wanted):
                await response.write(b'data: {"choices":[{"text":"t%d "}]}\n\n' % await one.tokens.get())
        finally:
            if self._left.pop(name, None) is not None:
                self._scheduler.ended(name)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def run(self) -> None:
        while True:
            self._publisher.tick()
            if self._left:
                self._step()
                await asyncio.sleep(STEP_S)
            else:
                self._arrived.clear()
                await asyncio.wait({asyncio.ensure_future(self._arrived.wait())}, timeout=0.1)

    def _step(self) -> None:
        waiting = [Fact(name, 0) for name, one in self._left.items() if not one.computed]
        running = [
            Fact(name, min(one.computed, one.prompt) + one.made, 0, one.made)
            for name, one in self._left.items()
            if one.computed
        ]
        decision, key = self._scheduler.plan(waiting, running), object()
        assert decision is not None
        names = tuple(decision.tokens)
        self._scheduler.step_began(decision.plan.load if names else StepLoad(), names, key)
        self._scheduler.step_ended(key)
        for name, tokens in decision.tokens.items():
            one = self._left[name]
            if one.computed < one.prompt:
                one.computed += tokens
            if one.computed < one.prompt:
                continue
            one.tokens.put_nowait(one.made)
            one.made += 1
            self._scheduler.produced(name, 1)
            if one.made == one.wanted:
                del self._left[name]
                self._scheduler.ended(name)


if __name__ == "__main__":
    serve(Scheduled(sys.argv[2], Path(sys.argv[3])), int(sys.argv[1]))

"""One call at one replica, which is counted from its place to its end."""

from __future__ import annotations

import asyncio

import aiohttp

from mfsd.policy.route import Call, Role
from mfsd.serve.gateway.admission import Place
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.exchange import engine_lost
from mfsd.serve.gateway.ongoing import Ongoing
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.settings import NO_TIER


class Turn:
    def __init__(self, gateway: Gateway, place: Place, call: Call, prompt: Prompt, ongoing: Ongoing) -> None:
        self._gateway, self._place, self._call, self._prompt = gateway, place, call, prompt
        self.replica = place.replica
        self._ongoing, self._lost = ongoing, False
        self.response: aiohttp.ClientResponse | None = None
        self._ahead_tokens = self.replica.waiting_tokens
        self._begun_s = self._now_s()
        self._first_s: float | None = None
        self._tier = call.tier or NO_TIER
        gateway.metrics.queue_wait.labels(self._tier).observe(place.waited_s)
        self._inherited = gateway.programs.arrived(call.program, self.replica.name, self._begun_s, call.prompt_tokens)
        if prompt.chunks:
            self.replica.prefixes.sent(prompt.chunks)
        self.replica.turns.add(self)

    def lose(self, problem: str) -> None:
        """Ends the request and frees its place, because its replica is taken for lost."""
        self._lost = True
        self._ongoing.end(engine_lost(problem))

    def moved(self, replica: LiveReplica) -> None:
        """Moves the call, before its first byte, to another replica, because the chosen one could not be used."""
        programs, program, now_s = self._gateway.programs, self._call.program, self._now_s()
        self.replica.leave(self._prompt.tokens)
        self.replica.failed += 1
        self.replica.turns.discard(self)
        programs.ended(program, self._inherited, 0.0, 0.0, now_s)
        self.replica = replica
        replica.begin(self._prompt.tokens)
        self._ahead_tokens = replica.waiting_tokens
        self._inherited = programs.arrived(program, replica.name, now_s, self._call.prompt_tokens)
        if self._prompt.chunks:
            replica.prefixes.sent(self._prompt.chunks)
        replica.turns.add(self)
        self._gateway.admission.wake()  # its former replica has a free place

    def answered(self, status: int) -> None:
        """Handles the head of the answer."""
        gateway, replica = self._gateway, self.replica
        gateway.metrics.answers.labels(replica.name, f"{status // 100}xx").inc()
        if replica.answered(status):
            gateway.log.warning("replica-behind", replica=replica.name, errors=replica.errors, status=status)

    def first_byte(self, learn: bool = False) -> None:
        """Handles the first byte of the answer. learn: it is of the first token, so learn prompt times from it."""
        if self._first_s is not None:
            return
        self._first_s = self._now_s()
        self.replica.first_byte(self._prompt.tokens)
        if learn:
            if self._answers:
                self._gateway.metrics.first_token.labels(self._tier).observe(self._since_arrival_s(self._first_s))
            self.replica.learn(self._ahead_tokens, self._first_s - self._begun_s)

    def end(self, failed: bool = False) -> None:
        """Ends the call, once. Closes a response that was not read to its end, so that its engine aborts the call."""
        if self.response is not None and not self.response.closed:
            self.response.close()
        self.replica.turns.discard(self)
        now_s = self._now_s()
        first_s = self._begun_s if self._first_s is None else self._first_s
        if self._first_s is None:
            self.replica.leave(self._prompt.tokens)
        else:
            self.replica.running -= 1
            if self._answers and not failed and not self._lost:
                self._gateway.metrics.duration.labels(self._tier).observe(self._since_arrival_s(now_s))
        self.replica.failed += failed or self._lost
        wait_s = self._place.waited_s
        self._gateway.programs.ended(
            self._call.program, self._inherited, now_s - first_s, wait_s + first_s - self._begun_s, now_s
        )
        self._gateway.admission.ended(self._place, self._call)
        if not self.replica.turns and self.replica.name not in self._gateway.replicas.by_name:
            self._gateway.metrics.forget(self.replica.name)  # its address is gone, and this call has made them again

    @property
    def _answers(self) -> bool:
        """Whether the client gets the output of this call."""
        return self.replica.settings.role is not Role.PREFILL

    def _since_arrival_s(self, now_s: float) -> float:
        return now_s - self._call.arrival_ns / 1e9

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

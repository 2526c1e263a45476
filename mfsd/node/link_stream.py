"""The link's connections: finds the leader, follows it, and reconnects after every failure."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError

from mfsd.node.link_interface import LinkSettings, Listener, Logger, Promises, Questions
from mfsd.node.link_state import LinkState
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.call import Call, CallEnded, ClosedAtOnce, HandshakeFailed, WrongName
from mfsd.proto.certificates import Certificates, client_context
from mfsd.proto.wire import LINK, address_problem
from mfsd.text import one_line

ANSWER_S = 1.0
"""A coordinator that sends nothing for so long after a hello counts as dead."""
SILENT_HEARTBEATS = 2.5
"""After so many heartbeats without a message the leader is gone or cut off."""
TTL_HEARTBEATS = 3
"""An order holds for at least so many heartbeats."""
TTL_MAX_NS = 1_000_000_000_000
"""The most that the configuration allows."""
BACKOFF_MIN_S = 0.05
REPLACED_WAIT_S = 5.0
"""Wait after another daemon came with this node's name. Two that share one would throw each other out at full speed."""
SILENCE_MAX_S = 25.0
"""Holds whatever heartbeat a coordinator announces: the slowest that can be configured is 10 s."""
REDIRECTS_AT_ONCE = 3
"""Redirects followed without a pause. Coordinators that name each other would otherwise be asked without end."""
FAILED_FOR_S = 1.0
"""How long an address that has failed is not followed when another coordinator names it as leader."""

T = TypeVar("T")


class _Ended(Exception):
    """The stream has ended: try the next address, but not before `wait_s`. ``str()`` says why."""

    def __init__(self, why: str, wait_s: float = 0.0) -> None:
        self.wait_s = wait_s
        super().__init__(one_line(why, 300))


class _Redirect(Exception):
    """Another coordinator leads."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        super().__init__(leader)


class LinkStream:
    """Runs one stream at a time. `connected` while a leader's orders arrive on it."""

    def __init__(
        self,
        settings: LinkSettings,
        state: LinkState,
        listener: Listener,
        log: Logger,
        wake: asyncio.Event,
        clock_ns: Callable[[], int],
        beat: Callable[[], None] = lambda: None,
        questions: Questions | None = None,
        promises: Promises | None = None,
    ) -> None:
        """`beat` is called with each heartbeat of the leader. `promises` learns what the leader says about ports."""
        self._promises = promises
        self._silence_ns = 0
        self._questions = questions
        self._settings = settings
        self._state = state
        self._listener = listener
        self._log = log
        self._wake = wake
        self._clock_ns = clock_ns
        self._beat = beat
        self._certificates = Certificates(settings.tls, log) if settings.tls else None
        self._waking: asyncio.TimerHandle | None = None
        self._reported_s = -math.inf
        """When the last report was written."""
        self._failed_at_s: dict[str, float] = {}
        self._logged = ""
        self.connected = False
        self.leader = ""
        self.problem = "not connected yet"

    def wake_soon(self, interval_s: float) -> None:
        """Has an update, and whatever else there is, sent `interval_s` after the last report.

        Usually that moment has passed. Then the update is sent at once, which costs the loop no timer and no extra
        turn.
        """
        loop = asyncio.get_running_loop()
        at_s = self._reported_s + interval_s
        if at_s <= loop.time():
            self._wake_now()
        elif self._waking is None or at_s < self._waking.when():
            if self._waking is not None:
                self._waking.cancel()
            self._waking = loop.call_at(at_s, self._wake_now)

    def _wake_now(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        self._wake.set()

    async def run(self) -> None:
        watch = asyncio.create_task(self._expire())
        try:
            await self._follow()
        finally:
            watch.cancel()
            if self._waking is not None:
                self._waking.cancel()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        rotation = self._addresses()
        address, failures, redirects = next(rotation), 0, 0
        while True:
            try:
                await self._attempt(address)
            except _Redirect as redirect:
                self._log.info("coordinator-redirects", asked=address, leader=redirect.leader)
                address = redirect.leader
                redirects += 1
                await asyncio.sleep(BACKOFF_MIN_S if redirects > REDIRECTS_AT_ONCE else 0.0)
                continue
            except _Ended as ended:
                redirects = 0
                was_connected = self.connected
                self._not_connected(address, str(ended))
                self._failed_at_s[address] = loop.time()
                failures = 0 if was_connected else failures + 1
                await asyncio.sleep(ended.wait_s)
            address = next(rotation)
            if failures:  # a leader that was just lost is searched for at once
                longest_s = min(self._settings.backoff_max_s, BACKOFF_MIN_S * 2 ** min(failures, 16))
                await asyncio.sleep(random.uniform(longest_s / 2, longest_s))

    def _addresses(self) -> Iterator[str]:
        """All addresses over and over, in a random order, so that daemons spread over the coordinators."""
        order = list(self._settings.addresses)
        random.shuffle(order)
        while True:
            yield from order

    def _not_connected(self, address: str, problem: str) -> None:
        """Logs each new problem once, instead of each attempt."""
        self.connected = False
        self.problem = f"{address}: {problem}"
        if self.problem != self._logged:
            self._logged = self.problem
            self._log.warning("coordinator-lost", address=address, problem=problem)

    async def _attempt(self, address: str) -> None:
        """Runs one stream from hello to end. Raises _Ended or _Redirect."""
        call = Call(LINK)
        tasks: list[asyncio.Task[None]] = []
        try:
            await _within(self._open(call, address), ANSWER_S)
            await self._read(call, address, tasks)
        except CallEnded as ended:
            raise _Ended(_explained(ended, self._certificates is not None)) from ended
        except TimeoutError as error:
            raise _Ended(f"no answer within {ANSWER_S:g} s") from error
        finally:
            for task in tasks:
                task.cancel()
            if self._questions is not None:
                self._questions.forgotten()
            if self._promises is not None:
                self._promises.forgotten()
            await asyncio.gather(*tasks, return_exceptions=True)
            await call.close()

    async def _open(self, call: Call, address: str) -> None:
        """Opens a new connection each time: one that was cut off may take minutes to notice that it works again."""
        context: ssl.SSLContext | None = None
        server_name = ""
        if self._certificates is not None and self._settings.tls is not None:
            context, server_name = client_context(self._certificates.current()), self._settings.tls.server_name
        await call.open(address, context, server_name)
        await call.write(self._state.hello().SerializeToString())

    async def _read(self, call: Call, address: str, tasks: list[asyncio.Task[None]]) -> None:
        silence_s = ANSWER_S
        while True:
            try:
                message = pb.ToNode.FromString(await call.read(silence_s))
            except TimeoutError as error:
                raise _Ended(f"silent for {silence_s:g} s") from error
            except DecodeError as error:
                raise _Ended("it sent what is no message: is it a coordinator?") from error
            now_ns = self._clock_ns()
            match message.WhichOneof("kind"):
                case "welcome":
                    silence_s = self._welcome(message.welcome, address, call, tasks, now_ns)
                    self._silence_ns = int(silence_s * 1e9)
                case "standby":
                    silence_s = self._standby(message.standby, address)
                case "order":
                    self._order(message.order, now_ns)
                case "heartbeat":
                    if self._state.received(message.heartbeat.term, now_ns):
                        if call.free:  # else other signs of life are on their way to it
                            echo = pb.Echo(stamp_ns=message.heartbeat.stamp_ns, epoch=self._state.epoch)
                            call.put(pb.FromNode(echo=echo).SerializeToString())
                        self._beat()
                        if self._promises is not None:
                            self._promises.confirmed(self._silence_ns)
                case "promises":
                    promises = self._state.promises(message.promises, now_ns)
                    if promises is not None and self._promises is not None:
                        self._promises.promised(promises, self._silence_ns)
                case "question":
                    self._question(message.question)
                case "refusal":
                    replaced = message.refusal.code == pb.Refusal.REPLACED
                    raise _Ended(f"refused: {message.refusal.reason}", REPLACED_WAIT_S if replaced else 0.0)
                case _:
                    pass  # a message kind of a later version

    def _welcome(
        self, welcome: pb.Welcome, address: str, call: Call, tasks: list[asyncio.Task[None]], now_ns: int
    ) -> float:
        if not self._state.follow(welcome.authority, welcome.term, now_ns):
            raise _Ended(f"stale leader: its term is {welcome.term}, the highest seen is {self._state.term}")
        for task in tasks:
            task.cancel()
        tasks.clear()
        if self._questions is not None:
            self._questions.forgotten()
        if self._promises is not None:
            self._promises.forgotten()
        tasks.append(asyncio.create_task(self._write(call)))
        self.connected, self.leader, self.problem, self._logged = True, address, "", ""
        self._check_ttl(welcome.heartbeat_ns)
        self._log.info("coordinator", leader=address, term=welcome.term)
        return _silence_s(welcome.heartbeat_ns)

    def _check_ttl(self, heartbeat_ns: int) -> None:
        """Extends a time to live that is too short: the order would come and go with each heartbeat."""
        least_ns = min(TTL_HEARTBEATS * heartbeat_ns, TTL_MAX_NS)
        if self._state.hold_for(least_ns):
            self._log.warning(
                "ttl-too-short",
                ttl_s=self._settings.ttl_ns / 1e9,
                heartbeat_s=heartbeat_ns / 1e9,
                used_s=least_ns / 1e9,
                remedy=f"set [cluster] ttl to at least {TTL_HEARTBEATS} times [coordinator] heartbeat, or lower that",
            )

    def _standby(self, standby: pb.Standby, address: str) -> float:
        """Moves on to the leader, or waits here while none answers."""
        if self.connected:
            self._not_connected(address, "leads no more")
        failed_at_s = self._failed_at_s.get(standby.leader)
        fresh = failed_at_s is not None and asyncio.get_running_loop().time() - failed_at_s < FAILED_FOR_S
        if address_problem(standby.leader) is None and standby.leader != address and not fresh:
            raise _Redirect(standby.leader)
        self.problem = f"{address} stands by and knows of no leader that answers"
        return _silence_s(standby.heartbeat_ns)

    def _order(self, order: pb.Order, now_ns: int) -> None:
        change = self._state.apply(order, now_ns)
        if change is None:
            return
        for refused in order.refused:
            self._log.warning("batch-refused", batch=refused.batch_id, reason=refused.reason)
        self._listener.order(change)

    def _question(self, question: pb.Question) -> None:
        if self._questions is None:
            return
        if question.end:
            self._questions.unasked(question.id)
        else:
            self._questions.asked(question.id, question.request)

    async def _write(self, call: Call) -> None:
        """Reports everything once, then the changes. Returns when the call has ended; reading gives the reason."""
        self._state.start_snapshot()
        snapshot = True
        with contextlib.suppress(CallEnded):
            while True:
                self._wake.clear()
                while (message := self._state.report(self._clock_ns())) is not None:
                    self._reported_s = asyncio.get_running_loop().time()
                    await call.write(message.SerializeToString())
                if snapshot:
                    await call.write(self._state.end_snapshot().SerializeToString())
                    snapshot = False
                if (answer := self._state.next_answer()) is not None:
                    await call.write(answer.SerializeToString())  # only one, then reports again
                else:
                    await self._wake.wait()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._state.expires_in_ns(self._clock_ns()) / 1e9)
            if self._state.expire(self._clock_ns()):
                self._log.warning(
                    "order-expired",
                    ttl_s=self._state.ttl_ns / 1e9,
                    remedy="batches are ordered locally and none is pruned until a coordinator answers",
                )
                self._listener.order_lost()


async def _within(awaitable: Awaitable[T], limit_s: float) -> T:
    """Returns the awaitable's result, or raises TimeoutError.

    Unlike asyncio.wait_for before Python 3.12 it never loses a cancellation that comes together with the result.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_s)
    finally:
        if not task.done():
            task.cancel()
    if not done:
        raise TimeoutError
    return task.result()


def _silence_s(heartbeat_ns: int) -> float:
    return min(max(ANSWER_S / 2, SILENT_HEARTBEATS * heartbeat_ns / 1e9), SILENCE_MAX_S)


def _explained(ended: CallEnded, tls: bool) -> str:
    """Says why the call ended, with the remedy if certificates are the reason.

    A server that does not accept a client's certificate may just close the connection (TLS 1.3).
    """
    check = "check ca, certificate and key at both ends"
    match ended:
        case WrongName():
            return f"its certificate is for another name: {ended}; {check}, or set [cluster] server_name"
        case HandshakeFailed():
            return f"TLS handshake failed: {ended}; {check}"
        case ClosedAtOnce():
            hint = check if tls else "does it expect certificates ([cluster] ca)?"
            return f"it closed the connection at once: {ended}; {hint}"
        case _:
            return str(ended)

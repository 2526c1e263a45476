"""Replicas that calls cannot connect to: real sockets, one of them with a backlog that is full."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from mfsd.policy.route import Role
from mfsd.serve.gateway import upstream
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.replicas import LiveReplica
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings
from tests.support.ext_proc import gateway
from tests.unit.serve.gateway.test_proxy import Client, until

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Listener:
    """Connects no one while its backlog is full; then it answers all."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._filling: list[socket.socket] = []
        self.asked = 0

    def fill(self) -> None:
        self._socket.listen(0)
        with contextlib.suppress(OSError):
            while True:
                self._filling.append(socket.socket())
                self._filling[-1].settimeout(0.2)
                self._filling[-1].connect(self._socket.getsockname())

    def has_room(self) -> None:
        """From now on."""
        self._socket.listen(100)

    async def accept(self) -> None:
        self._socket.setblocking(False)
        await asyncio.start_server(self._answer, sock=self._socket)

    def close(self) -> None:
        """Nothing listens there any more."""
        for one in (*self._filling, self._socket):
            one.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(len(b'{"prompt":"one two"}'))
                self.asked += 1
                writer.write(ANSWER)
        writer.close()


@contextlib.asynccontextmanager
async def replicas(*listeners: Listener) -> AsyncIterator[tuple[Gateway, list[LiveReplica]]]:
    """In the order in which calls prefer them."""
    settings = GatewaySettings(
        replicas=[
            ReplicaSettings(f"http://127.0.0.1:{one.port}", name=name, role=Role.BOTH)
            for name, one in zip("abc", listeners, strict=False)
        ]
    )
    async with gateway(settings) as made:
        yield made, made.replicas.all


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "CONNECT_S", 0.5)


async def ask(made: Gateway) -> int:
    client = Client(made)
    await client.task
    return client.status


def elsewhere(made: Gateway) -> dict[str, float]:
    """Calls, by the replica that they had been meant for."""
    (family,) = made.metrics.sent_elsewhere.collect()
    return {s.labels["replica"]: s.value for s in family.samples if s.name.endswith("_total")}


def test_a_full_backlog_sends_calls_elsewhere_until_it_has_room() -> None:
    async def work() -> None:
        full, other = Listener(), Listener()
        full.fill()
        await other.accept()
        async with replicas(full, other) as (made, (a, b)):
            assert [await ask(made), a.healthy, b.sent] == [200, True, 1]
            a.seen_s = asyncio.get_running_loop().time() + 3600  # polls are answered, by connections that are kept
            assert [await ask(made), a.failed, b.sent] == [200, 1, 2], "it is not tried by calls meanwhile"
            assert elsewhere(made) == {"a": 1.0}
            await full.accept()
            await until(lambda: not a.unconnected)
            assert a.healthy and await ask(made) == 200
            assert (full.asked, other.asked) == (1, 2), "each call has come once"

    run(work)


def test_a_burst_that_finds_the_only_replica_full_is_served_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        full = Listener()
        full.fill()
        async with replicas(full) as (made, (a,)):
            failed = made.reconnect.failed

            def has_room(replica: LiveReplica, error: upstream.NotSent) -> None:
                full.has_room()
                failed(replica, error)

            monkeypatch.setattr(made.reconnect, "failed", has_room)
            burst = [Client(made) for _ in range(20)]
            await until(lambda: a.failed > 0)
            await full.accept()
            await asyncio.gather(*(one.task for one in burst))
            assert {one.status for one in burst} == {200} and a.healthy and full.asked == 20
            assert not elsewhere(made), "they were sent there again"

    run(work)


def test_what_stays_full_is_down_after_two_connections_in_a_row() -> None:
    async def work() -> None:
        full, other = Listener(), Listener()
        full.fill()
        await other.accept()
        async with replicas(full, other) as (made, (a, _)):
            assert await ask(made) == 200 and a.healthy
            await until(lambda: not a.healthy)
            assert "imeout" in a.problem and await ask(made) == 200
            a.up()
            assert not a.unconnected, "a poll that is answered brings it back"

    run(work)


def test_a_refused_connection_takes_a_replica_down_at_once() -> None:
    async def work() -> None:
        gone, other = Listener(), Listener()
        gone.close()
        await other.accept()
        async with replicas(gone, other) as (made, (a, b)):
            assert [await ask(made), a.healthy, b.sent] == [200, False, 1]

    run(work)


def test_connections_of_one_burst_count_once_and_those_of_an_engine_that_answers_do_not_add_up() -> None:
    async def work() -> None:
        replica, now_s = LiveReplica(ReplicaSettings("http://127.0.0.1:1")), asyncio.get_running_loop().time
        replica.up()
        began_s = now_s()
        assert not any(replica.not_connected(began_s) for _ in range(9)) and replica.unconnected == 1
        began_s = now_s()
        replica.seen()
        assert not replica.not_connected(began_s) and replica.unconnected == 1
        while now_s() <= replica.seen_s:  # the clock has steps
            await asyncio.sleep(0)
        assert replica.not_connected(now_s()) and replica.unconnected == 2

    run(work)


def test_a_name_whose_look_up_does_not_end_holds_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async def never(*_: object, **__: object) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
        replica = LiveReplica(ReplicaSettings("http://engine.invalid:8000"))
        async with upstream.session() as calls:
            with pytest.raises(upstream.NotSent) as error:
                await upstream.Upstream(calls).post(replica, "/v1/completions", b"{}", [], "id")
            assert not error.value.refused

    run(work)

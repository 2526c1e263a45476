"""An arbiter with nothing to do writes its heartbeat ahead and sleeps; no reader takes that for a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from mfsd._native import LAYOUT, Client, Stage
from mfsd.transfer import Transfer
from tests.support.arbiter import Server

Eventually = Callable[..., Any]
Serve = Callable[..., Server]

S = 10**9
ASLEEP, AT_REST = 1, 2
"""enum mfs_asleep"""


class Header:
    """What the daemon has written for one client."""

    def __init__(self, server: Server, client: Client) -> None:
        self._memory = server.segments[client.client_id]
        self._client = client  # attached for as long as this is read

    def _at(self, field: str, size: int) -> slice:
        return slice(LAYOUT[f"header.{field}"], LAYOUT[f"header.{field}"] + size)

    @property
    def ahead_ns(self) -> int:
        """Of the heartbeat; negative: its age."""
        written_ns = int.from_bytes(self._memory[self._at("heartbeat_ns", 8)], "little")
        return written_ns - time.monotonic_ns()

    @property
    def asleep(self) -> int:
        return int.from_bytes(self._memory[self._at("arbiter_asleep", 4)], "little")

    @property
    def dormant(self) -> bool:
        return self.ahead_ns > 0 and self.asleep == ASLEEP

    def write(self, ahead_ns: int, asleep: int) -> None:
        heartbeat_ns = time.monotonic_ns() + ahead_ns
        self._memory[self._at("heartbeat_ns", 8)] = heartbeat_ns.to_bytes(8, "little")
        self._memory[self._at("arbiter_asleep", 4)] = asleep.to_bytes(4, "little")


@pytest.fixture
def dormant(serve: Serve, eventually: Eventually) -> tuple[Server, Client, Header]:
    server = serve()
    client = server.attach()
    client.nic("rdma0", 0, 10**9)
    header = Header(server, client)
    eventually(lambda: header.dormant, "a dormant arbiter")
    return server, client, header


def test_every_reader_sees_it_alive(dormant: tuple[Server, Client, Header]) -> None:
    _, client, _ = dormant
    assert client.alive()


def test_a_message_wakes_it(dormant: tuple[Server, Client, Header], eventually: Eventually) -> None:
    """Also one that asks for nothing: the rings are polled once a second only."""
    _, client, header = dormant
    client.batch_begin(7, 4, 0, 0)
    eventually(lambda: header.ahead_ns <= 0 and header.asleep == AT_REST, "an arbiter that is awake again")


def test_a_task_is_permitted(dormant: tuple[Server, Client, Header], take: Callable[[Client, int], list[int]]) -> None:
    _, client, _ = dormant
    task = client.submit(1000, stage=Stage.P2D)
    assert take(client, 1) == [task]


def test_another_client_finds_it_alive(dormant: tuple[Server, Client, Header], eventually: Eventually) -> None:
    server, _, header = dormant
    second = Header(server, server.attach())
    eventually(lambda: header.dormant and second.dormant, "that both are reported")


def test_collectives_alone_end_it(dormant: tuple[Server, Client, Header], eventually: Eventually) -> None:
    """They ring in vain; the next heartbeat sees them."""
    _, client, header = dormant
    client.count_posted(0, Stage.COLLECTIVE, 1000)
    eventually(lambda: header.ahead_ns <= 0, "a heartbeat as it is written while something goes on")


def begins_a_batch(client: Client) -> None:
    client.batch_begin(7, 4, 0, 0)


def sends(client: Client) -> None:
    """For a thousand seconds: no client is given up meanwhile."""
    client.submit(10**12, stage=Stage.P2D)


@pytest.mark.parametrize("act", [begins_a_batch, sends])
def test_not_while_something_goes_on(serve: Serve, eventually: Eventually, act: Callable[[Client], None]) -> None:
    busy, idle = serve(), serve()
    client = busy.attach()
    client.nic("rdma0", 0, 10**3)  # what is sent is not overdue for minutes
    act(client)
    header, later = Header(busy, client), Header(idle, idle.attach())
    eventually(lambda: later.dormant, "that the other, attached later, is dormant")
    assert header.ahead_ns <= 0


@pytest.mark.parametrize("asleep", [ASLEEP, AT_REST])
def test_who_asks_of_a_dead_one_is_not_kept(serve: Serve, asleep: int) -> None:
    """It died with its next heartbeat an hour ahead. Nothing else could end this wait."""
    server = serve(start=False, stale_after_ns=S // 20, heartbeat_ns=S // 100)
    client, other = server.attach(), server.attach()
    client.nic("rdma0", 0, 10**9)
    headers = [Header(server, one) for one in (client, other)]
    for header in headers:
        header.write(3600 * S, asleep)
    assert client.alive()
    client.ask(Transfer(1000, Stage.P2D), 0, None, 0, 1000 * S, 6)
    assert not client.alive()
    assert other.alive(), "a client that has asked for nothing has no reason to doubt"

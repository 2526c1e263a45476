"""NICs beyond the first 16, whose tables lie at the segment's end: served as the first is."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mfsd._native import NICS_FIRST, NICS_MAX, Arbiter, Client, DemandInfo, Direction, RequestInfo, Stage
from tests.support.arbiter import Server

S = 10**9
WINDOW = 131_072
PAGE_BYTES_FIRST = 128 + 64 * 32 + 64 * 256 + 8 * 1024
Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]


@pytest.fixture
def server(serve):
    server = serve()
    for nic in range(NICS_MAX):
        assert server.arbiter.nic(f"rdma{nic}", 0, 1000 + nic) == nic
    return server


@pytest.mark.parametrize("nic", [NICS_FIRST - 1, NICS_FIRST, NICS_MAX - 1])
def test_a_task_is_permitted_and_counted_on_its_own_nic(server, nic: int, take: Take, eventually: Eventually) -> None:
    with server.attach() as client:
        assert client.nic_name(nic) == f"rdma{nic}"
        tasks = [client.submit(WINDOW, stage=Stage.P2D, nic=nic, incoming=incoming) for incoming in (False, True)]
        assert sorted(take(client, 2)) == sorted(tasks), "each direction has a window"
        assert server.arbiter.nic_stats(nic)["in_flight_bytes"] == [WINDOW, WINDOW]
        assert not any(sum(server.arbiter.nic_stats(n)["in_flight_bytes"]) for n in range(NICS_MAX) if n != nic)
        for task in tasks:
            client.complete(task)
        eventually(lambda: server.arbiter.nic_stats(nic)["in_flight_bytes"] == [0, 0])


@pytest.mark.parametrize("nic", [NICS_FIRST, NICS_MAX - 1])
def test_collectives_are_counted(server, nic: int, eventually: Eventually) -> None:
    with server.attach() as client:
        client.count_posted(nic, Stage.COLLECTIVE, 1000)
        client.count_completed(nic, Stage.COLLECTIVE, 1000)
        eventually(lambda: server.arbiter.nic_stats(nic)["unscheduled_carried_bytes"] == 1000)
        assert server.arbiter.client_stats(client.client_id)["collective_bytes"][nic] == 1000
        assert server.arbiter.nic_stats(nic - NICS_FIRST)["unscheduled_carried_bytes"] == 0


def test_a_request_is_known_to_the_queues_of_all_its_nics(server, eventually: Eventually) -> None:
    nics = (0, NICS_FIRST, NICS_MAX // 2, NICS_MAX - 1)
    with server.attach() as client:
        demands = tuple(DemandInfo(1000, nic=nic) for nic in nics)
        slot = client.request_begin(RequestInfo(7, deadline_ns=time.monotonic_ns() + 1000 * S, demands=demands))
        for nic in nics:
            first = client.submit(10 * WINDOW, stage=Stage.BACKGROUND, nic=nic, asked=True)
            assert client.permit_wait(first, 100 * S) is not None
            client.submit(400, stage=Stage.P2D, nic=nic, request_id=7)

        def left() -> list[tuple[int, int]]:
            tasks = server.arbiter.tasks(client.client_id)
            return sorted((task.nic, task.bytes_left) for task in tasks if not task.in_flight)

        eventually(lambda: left() == [(nic, 1000) for nic in nics], "the bytes to come, on each NIC")
        client.request_end(slot)
        eventually(lambda: left() == [(nic, 400) for nic in nics], "all queues know the end")


@pytest.mark.parametrize("nic", [NICS_FIRST - 1, NICS_FIRST, NICS_MAX - 1])
def test_the_outlook_page_has_its_ports(server, nic: int, eventually: Eventually) -> None:
    with server.attach() as client:
        first, second = (client.submit(WINDOW, stage=Stage.REUSE, nic=nic, incoming=True, asked=True) for _ in range(2))
        assert client.permit_wait(first, 100 * S) is not None

        def waits() -> bool:
            page = client.outlook()
            return page is not None and page.ports[2 * nic + 1].waiting_bytes == (0, WINDOW, 0, 0)

        eventually(waits, "what waits, as the copy of the page has it")
        page, port = client.outlook(), client.outlook_port(nic, Direction.IN)
        assert len(page.ports) == 2 * NICS_MAX
        assert (port.rate_bytes_per_s, port.in_flight_bytes, port.waiting_bytes[1]) == (1000 + nic, WINDOW, WINDOW)
        assert client.fetch_ns(nic, 1000, deadline_ns=1) > client.fetch_ns(nic - 1, 1000, deadline_ns=1)
        assert client.permit(second) is None


class OldPage(Server):
    """Gives a page as daemons wrote it that knew the first NICs only: shorter, with nothing in what was reserved."""

    def outlook_fd(self) -> int | None:
        given = super().outlook_fd()
        assert given is not None
        with mmap.mmap(given, 0, prot=mmap.PROT_READ) as page:
            text = bytearray(page[:PAGE_BYTES_FIRST])
        os.close(given)
        text[8:16] = PAGE_BYTES_FIRST.to_bytes(8, "little")
        text[104:108] = bytes(4)
        old = os.memfd_create("old-page", os.MFD_ALLOW_SEALING)
        os.write(old, text)
        fcntl.fcntl(old, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return old


def test_the_page_of_an_older_daemon_has_the_first_nics(folder: Path) -> None:
    with Arbiter(heartbeat_ns=5 * S, stale_after_ns=1000 * S) as arbiter:  # for ten of which the page is believed
        for nic in range(NICS_FIRST + 1):
            arbiter.nic(f"rdma{nic}", 0, 1000 + nic)
        arbiter.start()
        server = OldPage(folder / "s", arbiter)
        with server.attach() as client:
            page, last = client.outlook(), client.outlook_port(NICS_FIRST - 1, Direction.OUT)
            assert page is not None and last is not None
            assert [port.rate_bytes_per_s for port in page.ports[::2]] == [*range(1000, 1000 + NICS_FIRST)]
            assert last.rate_bytes_per_s == 1000 + NICS_FIRST - 1
            assert client.outlook_port(NICS_FIRST, Direction.OUT) is None
            assert client.outlook_port(NICS_MAX - 1, Direction.IN) is None
        server.close()


def test_a_nic_that_comes_later_has_a_gate(serve, take: Take) -> None:
    server = serve()
    with server.attach() as client:
        for number in range(NICS_FIRST + 2):
            nic = client.nic(f"late{number}", 0, 1000)
        assert nic == NICS_FIRST + 1
        task = client.submit(1000, stage=Stage.P2D, nic=nic, asked=True)
        assert client.permit_wait(task, 100 * S) is not None

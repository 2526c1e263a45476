"""NICs beyond the first 16, whose tables lie at the segment's end: served as the first is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from mfsd._native import NICS_FIRST, NICS_MAX, Client, DemandInfo, RequestInfo, Stage

S = 10**9
WINDOW = 131_072
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


def test_a_nic_that_comes_later_has_a_gate(serve, take: Take) -> None:
    server = serve()
    with server.attach() as client:
        for number in range(NICS_FIRST + 2):
            nic = client.nic(f"late{number}", 0, 1000)
        assert nic == NICS_FIRST + 1
        task = client.submit(1000, stage=Stage.P2D, nic=nic, asked=True)
        assert client.permit_wait(task, 100 * S) is not None

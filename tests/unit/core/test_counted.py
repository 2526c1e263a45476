"""What programs have given to a NIC, by permits and by the preloaded library's counters: the rest bypasses MFS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mfsd._native import Client, Stage
from tests.support.arbiter import Server

RATE = 10**9
Eventually = Callable[..., Any]


def permitted(client: Client, nic: int, size_bytes: int, *, incoming: bool = False) -> int:
    """A task that may send now, asked for as an adapter asks."""
    task = client.submit(size_bytes, stage=Stage.P2D, nic=nic, incoming=incoming, asked=True)
    assert client.permit_wait(task, 10**10) is not None
    return task


@pytest.mark.parametrize("incoming", [False, True], ids=["out", "in"])
def test_what_is_permitted_and_posted_past_the_library_counts(serve, eventually: Eventually, incoming: bool) -> None:
    """As UCX's rc_mlx5 does: the library counts nothing."""
    server: Server = serve()
    with server.attach() as client:
        nic = client.nic("rdma0", 0, RATE)
        task = permitted(client, nic, 4096, incoming=incoming)
        wanted = (0, 4096) if incoming else (4096, 0)

        def counts(outstanding_bytes: int) -> bool:
            counted = server.arbiter.counted(nic)
            return (tuple(counted.posted_bytes), counted.outstanding_bytes) == (wanted, outstanding_bytes)

        eventually(lambda: counts(4096), "the task's bytes, which are under way")
        client.complete(task)
        eventually(lambda: counts(0), "the task's bytes, complete")
    eventually(lambda: counts(0), "the same after the program has gone")


@pytest.mark.parametrize("incoming", [False, True], ids=["out", "in"])
def test_what_the_library_counts_has_no_second_count_by_its_permit(
    serve, eventually: Eventually, incoming: bool
) -> None:
    server: Server = serve()
    with server.attach() as client:
        nic = client.nic("rdma0", 0, RATE)
        task = permitted(client, nic, 4096, incoming=incoming)
        client.count_posted(nic, Stage.P2D, 4096)
        client.count_posted(nic, Stage.P2D, 100)  # passed without a permit
        wanted = (100, 4096) if incoming else (4196, 0)
        eventually(lambda: tuple(server.arbiter.counted(nic).posted_bytes) == wanted, f"{wanted} bytes, out and in")
        assert server.arbiter.counted(nic).outstanding_bytes == 4196
        client.complete(task)


def test_a_task_that_ends_without_being_sent_counts_no_more(serve, eventually: Eventually) -> None:
    server: Server = serve()
    with server.attach() as client:
        nic = client.nic("rdma0", 0, RATE)
        client.cancel(permitted(client, nic, 4096))
        eventually(lambda: server.arbiter.client_stats(client.client_id)["cancels"] == 1, "its end")
        counted = server.arbiter.counted(nic)
        assert (tuple(counted.posted_bytes), counted.outstanding_bytes) == ((0, 0), 0)

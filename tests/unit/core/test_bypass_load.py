"""What a port carries past MFS, as the daemon reports it: load and outlook page have it until it lapses."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns as now_ns
from typing import Any

import pytest

from mfsd._native import Client, Policy, Variant
from tests.support.arbiter import Server

RATE = 10**9
SENT, RECEIVED = RATE // 2, RATE // 4
FETCHED = 10**8
HOUR_NS = 3600 * 10**9
Eventually = Callable[..., Any]


def near(value: float, wanted: float) -> bool:
    return value == pytest.approx(wanted, abs=0.02 * max(wanted, 1))


def port_loads(client: Client, nic: int) -> list[float]:
    """Shares of the rate that the outlook page has as never waiting, by direction."""
    ports = [client.outlook_port(nic, direction) for direction in (0, 1)]
    return [port.unscheduled_bytes_per_s / RATE if port is not None else -1.0 for port in ports]


def test_rho_and_use_rise_by_what_bypasses_and_fall_when_it_lapses(serve, eventually: Eventually) -> None:
    server: Server = serve(policy=Policy(variant=Variant.PAPER), load_time_constant_ns=10**6)
    nic = server.arbiter.nic("rdma0", 0, RATE)
    for valid_until_ns, wanted in ((now_ns() + HOUR_NS, (0.5, 0.25)), (now_ns() - 1, (0.0, 0.0))):
        server.arbiter.bypass(nic, SENT, RECEIVED, valid_until_ns)
        for name in ("load", "used"):

            def reached(name: str = name, wanted: tuple[float, float] = wanted) -> bool:
                measured = server.arbiter.nic_stats(nic)[name]  # type: ignore[literal-required]
                return all(map(near, measured, wanted))

            eventually(reached, f"{name} of {wanted}")


def test_more_than_the_link_carries_is_not_believed(serve, eventually: Eventually) -> None:
    server: Server = serve(policy=Policy(variant=Variant.PAPER), load_time_constant_ns=10**6)
    nic = server.arbiter.nic("rdma0", 0, RATE)
    server.arbiter.bypass(nic, 100 * RATE, 0, now_ns() + HOUR_NS)
    eventually(lambda: all(map(near, server.arbiter.nic_stats(nic)["used"], (1.0, 0.0))), "use of the whole link")


def test_the_outlook_page_has_what_bypasses_and_fetches_take_longer(serve, eventually: Eventually) -> None:
    server: Server = serve()
    with server.attach() as client:
        nic = client.nic("rdma0", 0, RATE)
        eventually(lambda: port_loads(client, nic) == [0.0, 0.0], "an idle port")
        alone_ns = client.fetch_ns(nic, FETCHED, deadline_ns=now_ns() + HOUR_NS)
        assert alone_ns is not None and near(alone_ns / 1e9, FETCHED / RATE)
        server.arbiter.bypass(nic, RECEIVED, SENT, now_ns() + HOUR_NS)
        eventually(lambda: all(map(near, port_loads(client, nic), (0.25, 0.5))), "the page with the bypass")
        beside_ns = client.fetch_ns(nic, FETCHED, deadline_ns=now_ns() + HOUR_NS)
        assert beside_ns is not None and beside_ns > 1.9 * alone_ns, "half of the link is left for it"
        server.arbiter.bypass(nic, RECEIVED, SENT, now_ns() - 1)
        eventually(lambda: port_loads(client, nic) == [0.0, 0.0], "the page without it, which is not valid any more")

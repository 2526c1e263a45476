"""Metrics: names by Prometheus' conventions, values from the daemon's status, totals that never fall."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import subprocess

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from mfsd.node.control import (
    ClassStatus,
    ClientStatus,
    DaemonStatus,
    DeadlineStatus,
    NicStatus,
    PortStatus,
    StatusReply,
)
from mfsd.node.totals import NAMES_MAX, OTHERS, Totals
from mfsd.observe import web
from mfsd.observe.metrics import StatusCollector, serve
from mfsd.observe.web import QuietHandler
from tests.support.debian import program
from tests.support.waiting import TIMEOUT_S

CLIENT = ClientStatus(
    client_id=1,
    pid=4711,
    uid=0,
    process="vllm",
    state="active",
    detach_reason=None,
    attached_s=1.0,
    nics=["mlx5_0"],
    queue_pairs={"kv": 2},
    held_bytes=5,
    in_flight_bytes=7,
    submits=10,
    permits=9,
    on_credit=3,
    completes=8,
    cancels=1,
    posted_bytes={"p2d": 4096, "collective": 100},
    completed_bytes={"p2d": 2048},
    bypassed_overflow=1,
    bypassed_hold=2,
    bypassed_stale=3,
    hold_s=0.5,
    torn_slots=0,
    bad_messages=0,
)
NIC = NicStatus(
    index=0,
    name="mlx5_0",
    guid="00",
    rate_bytes_per_s=12_500_000_000,
    window_bytes=2_500_000,
    in_flight_bytes=7,
    incoming_in_flight_bytes=5,
    unscheduled_in_flight_bytes=3,
    load=0.25,
    incoming_load=0.5,
    promotions=4,
    wait_s=1.5,
    classes=[ClassStatus(11, 1, 0, 22, 2), ClassStatus(0, 0, 7, 33, 3)],
    port=PortStatus(1000, 500, {"4": 900, "unknown": 100}, {}, None, 12),
)


def status(clients: list[ClientStatus], totals: Totals) -> StatusReply:
    daemon = DaemonStatus(
        version="0.1.0",
        pid=1,
        epoch=42,
        mode="enforce",
        uptime_s=3.0,
        socket="/run/mfs/mfsd.sock",
        config_file=None,
        cpu_s=0.125,
        messages=6,
        grants=5,
        attached_total=2,
        refused={"EPROTO": 1},
        log_lines_dropped=0,
    )
    return StatusReply(
        daemon,
        [NIC],
        clients,
        totals.with_living(clients),
        DeadlineStatus(met=90, missed=10, recent_met=3, recent_missed=1, window_s=300),
        {
            "failed_open": {"queue_full": 1, "bypass": 2, "given_up": 3, "written_off": 4},
            "ended": {"met": 90, "missed": 10},
            "ledger": {"evicted": 5, "unaccounted": 6},
            "link": {"order_lost": 7},
            "spans": {"exported": 8, "failed": 9},
        },
    )


def text_of(reply: StatusReply) -> str:
    registry = CollectorRegistry()
    registry.register(StatusCollector(lambda: reply))
    return generate_latest(registry).decode()


def samples_of(reply: StatusReply) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text_of(reply))
        for sample in family.samples
    }


def test_promtool_finds_nothing_to_mend() -> None:
    text = text_of(status([CLIENT], Totals()))
    result = subprocess.run(
        [program("prometheus", "promtool"), "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_values_carry_their_labels() -> None:
    samples = samples_of(status([CLIENT], Totals()))
    assert samples["mfs_class_held_bytes", (("class", "0"), ("nic", "mlx5_0"))] == 11
    assert samples["mfs_class_permitted_bytes_total", (("class", "1"), ("nic", "mlx5_0"))] == 33
    assert samples["mfs_nic_load_ratio", (("nic", "mlx5_0"),)] == 0.25
    assert samples["mfs_nic_incoming_load_ratio", (("nic", "mlx5_0"),)] == 0.5
    assert samples["mfs_nic_incoming_in_flight_bytes", (("nic", "mlx5_0"),)] == 5
    assert samples["mfs_posted_bytes_total", (("process", "vllm"), ("stage", "p2d"))] == 4096
    bypass = "mfs_nic_bypass_bytes_total"
    assert samples[bypass, (("direction", "out"), ("nic", "mlx5_0"), ("priority", "4"))] == 900
    assert samples[bypass, (("direction", "in"), ("nic", "mlx5_0"), ("priority", "unknown"))] == 0
    assert samples["mfs_nic_pause_frames_total", (("direction", "in"), ("nic", "mlx5_0"))] == 12
    assert ("mfs_nic_pause_frames_total", (("direction", "out"), ("nic", "mlx5_0"))) not in samples
    assert samples["mfs_failed_open_total", (("process", "vllm"), ("reason", "daemon_gone"))] == 3
    assert samples["mfs_refused_clients_total", (("error", "EPROTO"),)] == 1
    assert samples["mfs_clients", (("state", "active"),)] == 1
    assert samples["mfs_daemon_enforcing", ()] == 1


def test_every_way_to_fail_open_is_counted() -> None:
    samples = samples_of(status([CLIENT], Totals()))
    opened = {labels[0][1]: v for (name, labels), v in samples.items() if name == "mfs_arbiter_failed_open_total"}
    assert opened == {"queue_full": 1, "bypass": 2, "given_up": 3, "written_off": 4}
    of_programs = {dict(labels)["reason"] for name, labels in samples if name == "mfs_failed_open_total"}
    assert of_programs == {"overflow", "hold_limit", "daemon_gone"}
    assert samples["mfs_coordinator_order_lost_total", ()] == 7


def test_requests_and_spans() -> None:
    samples = samples_of(status([CLIENT], Totals()))
    assert samples["mfs_ended_requests_total", (("outcome", "missed"),)] == 10
    assert samples["mfs_requests_in_time_ratio", ()] == 0.75
    assert samples["mfs_forgotten_requests_total", ()] == 5
    assert samples["mfs_unaccounted_tasks_total", ()] == 6
    assert samples["mfs_spans_total", (("outcome", "failed"),)] == 9


def test_no_process_id_is_a_label() -> None:
    assert "4711" not in text_of(status([CLIENT], Totals()))


def test_totals_outlive_their_clients() -> None:
    totals = Totals()
    before = status([CLIENT], totals).totals
    totals.add(CLIENT)
    assert status([], totals).totals == before
    again = status([msgspec.structs.replace(CLIENT, pid=4712)], totals).totals
    assert (again[0].submits, again[0].posted_bytes["p2d"], again[0].hold_s) == (20, 8192, 1.0)


def test_invented_names_share_one_total() -> None:
    totals = Totals()
    for number in range(2 * NAMES_MAX):
        totals.add(msgspec.structs.replace(CLIENT, process=f"program-{number}"))
    everything = totals.with_living([msgspec.structs.replace(CLIENT, process="one more")])
    assert len(everything) == NAMES_MAX + 1
    assert sum(total.submits for total in everything) == 10 * (2 * NAMES_MAX + 1)
    assert next(t for t in everything if t.process == OTHERS).submits == 10 * (NAMES_MAX + 1)


def test_no_total_falls_in_whatever_order_programs_end() -> None:
    totals, seen = Totals(), dict[str, int]()
    living = [msgspec.structs.replace(CLIENT, process=f"program-{number}") for number in range(NAMES_MAX + 10)]
    chance = random.Random(1)
    while living:
        rows = {total.process: total.submits for total in totals.with_living(living)}
        assert all(rows.get(name, 0) >= submits for name, submits in seen.items())
        seen = rows
        totals.add(living.pop(chance.randrange(len(living))))


def test_a_reader_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would keep a thread and a descriptor of the daemon."""
    monkeypatch.setattr(QuietHandler, "timeout", 0.05)

    async def listen() -> bytes:
        with (
            serve("127.0.0.1", 0, lambda: status([CLIENT], Totals())) as port,
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as silent,
        ):
            return await asyncio.to_thread(silent.recv, 1)

    assert asyncio.run(listen()) == b""


def test_readers_beyond_those_that_are_served_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would keep a thread and a descriptor that programs attach with."""
    monkeypatch.setattr(QuietHandler, "timeout", 2 * TIMEOUT_S)
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 2)

    async def listen() -> tuple[bytes, bytes]:
        with serve("127.0.0.1", 0, lambda: status([CLIENT], Totals())) as port, contextlib.ExitStack() as readers:
            first, _, third = (
                readers.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S)) for _ in range(3)
            )
            sent_away = await asyncio.to_thread(third.recv, 1)
            first.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return sent_away, await asyncio.to_thread(first.recv, 12)

    assert asyncio.run(listen()) == (b"", b"HTTP/1.0 200")

"""The daemon's state as Prometheus metrics, by Prometheus' naming conventions: base units, `_total` for counters.

`families` is a pure function of the daemon's status. `serve` gives it a port: an HTTP server in its own thread, which
asks the daemon's loop for a status at every scrape. Stages, classes and program names are labels. Process ids are not,
since every one would be a new series.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from mfsd.node.control import StatusReply
from mfsd.observe.web import listening

SCRAPE_S = 5.0
"""If the daemon does not answer within this, the scrape fails, which is itself a signal."""


def families(status: StatusReply) -> Iterator[Metric]:
    """All exported metrics, one family at a time."""
    yield from _daemon(status)
    yield from _nics(status)
    yield from _use(status)
    yield from _ports(status)
    yield from _programs(status)
    yield from _requests(status)
    yield from _failures(status)


def _daemon(status: StatusReply) -> Iterator[Metric]:
    daemon = status.daemon
    info = InfoMetricFamily("mfs_daemon", "Version, mode and epoch of this daemon.")
    info.add_metric([], {"version": daemon.version, "mode": daemon.mode, "epoch": str(daemon.epoch)})
    yield info
    yield GaugeMetricFamily("mfs_daemon_uptime_seconds", "Time since the daemon started.", value=daemon.uptime_s)
    yield GaugeMetricFamily(
        "mfs_daemon_enforcing",
        "1 when flows are held and permitted, 0 when they are only observed.",
        value=daemon.mode == "enforce",
    )
    yield CounterMetricFamily("mfs_arbiter_cpu_seconds", "Processor time of the arbiter thread.", value=daemon.cpu_s)
    yield CounterMetricFamily("mfs_arbiter_messages", "Messages that programs sent.", value=daemon.messages)
    yield CounterMetricFamily("mfs_attached_clients", "Programs that have attached.", value=daemon.attached_total)
    clients = GaugeMetricFamily(
        "mfs_clients",
        "Programs attached now; detached: given up by the daemon, they run unscheduled.",
        labels=["state"],
    )
    for state in ("active", "detached"):
        clients.add_metric([state], sum(client.state == state for client in status.clients))
    yield clients
    by_abi = GaugeMetricFamily(
        "mfs_clients_by_abi",
        "Programs attached now, by the ABI that they speak; daemon: whether it is this daemon's own.",
        labels=["abi", "daemon"],
    )
    for abi, count in sorted(Counter(client.abi for client in status.clients).items()):
        by_abi.add_metric([abi, "same" if abi == daemon.abi else "other"], count)
    yield by_abi
    refused = CounterMetricFamily(
        "mfs_refused_clients", "Programs that were refused; they run unscheduled.", labels=["error"]
    )
    for error, n in sorted(daemon.refused.items()):
        refused.add_metric([error], n)
    yield refused
    yield CounterMetricFamily(
        "mfs_log_lines_dropped", "Log lines that were dropped for lack of room.", value=daemon.log_lines_dropped
    )


_NIC_GAUGES = (
    ("rate_bytes_per_s", "mfs_nic_rate_bytes_per_second", "Rate that the daemon plans with."),
    ("window_bytes", "mfs_nic_window_bytes", "Most bytes permitted and not completed, in either direction."),
    ("in_flight_bytes", "mfs_nic_in_flight_bytes", "Outgoing bytes permitted and not completed."),
    (
        "incoming_in_flight_bytes",
        "mfs_nic_incoming_in_flight_bytes",
        "Bytes of RDMA reads permitted and not completed.",
    ),
    (
        "unscheduled_in_flight_bytes",
        "mfs_nic_unscheduled_in_flight_bytes",
        "Bytes in flight that never wait for a permit.",
    ),
    ("load", "mfs_nic_load_ratio", "Share of the outgoing rate taken by traffic that goes first (rho); variant paper."),
    (
        "incoming_load",
        "mfs_nic_incoming_load_ratio",
        "Share of the incoming rate taken by traffic that goes first (rho); variant paper.",
    ),
)
_NIC_COUNTERS = (
    ("promotions", "mfs_nic_promotions", "Flows that moved to a more urgent level."),
    ("wait_s", "mfs_nic_permit_wait_seconds", "Time from submission to permit, summed over permits."),
)
_CLASS_GAUGES = (
    ("held_bytes", "mfs_class_held_bytes", "Bytes that wait for a permit."),
    ("held_tasks", "mfs_class_held_tasks", "Tasks that wait for a permit."),
    ("in_flight_bytes", "mfs_class_in_flight_bytes", "Bytes permitted and not completed."),
)
_CLASS_COUNTERS = (
    ("granted_bytes", "mfs_class_permitted_bytes", "Bytes permitted."),
    ("grants", "mfs_class_permits", "Permits given."),
)
_Table = tuple[tuple[str, str, str], ...]
"""Attribute of the status, name of the metric, help."""
_Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]
_OF_NICS: tuple[tuple[_Kind, _Table], ...] = ((GaugeMetricFamily, _NIC_GAUGES), (CounterMetricFamily, _NIC_COUNTERS))
_OF_CLASSES: tuple[tuple[_Kind, _Table], ...] = (
    (GaugeMetricFamily, _CLASS_GAUGES),
    (CounterMetricFamily, _CLASS_COUNTERS),
)


def _nics(status: StatusReply) -> Iterator[Metric]:
    for kind, table in _OF_NICS:
        for attribute, name, text in table:
            family = kind(name, text, labels=["nic"])
            for nic in status.nics:
                if (value := getattr(nic, attribute)) is not None:
                    family.add_metric([nic.name], value)
            yield family
    for kind, table in _OF_CLASSES:
        for attribute, name, text in table:
            family = kind(name, text, labels=["nic", "class"])
            for nic in status.nics:
                for at, one in enumerate(nic.classes):
                    family.add_metric([nic.name, str(at)], getattr(one, attribute))
            yield family


def _use(status: StatusReply) -> Iterator[Metric]:
    """What links really carried. Bytes without a class never wait (both directions) or went without a permit (out)."""
    ratio = GaugeMetricFamily(
        "mfs_nic_utilization_ratio",
        "Moving average of the share of the rate that was really used.",
        labels=["nic", "direction"],
    )
    carried = CounterMetricFamily(
        "mfs_nic_carried_bytes",
        "Bytes that the link carried. class none: collectives and control, which count for both directions, and "
        "bytes that went without a permit.",
        labels=["nic", "direction", "class"],
    )
    for nic in status.nics:
        ratio.add_metric([nic.name, "out"], nic.utilization)
        ratio.add_metric([nic.name, "in"], nic.incoming_utilization)
        for at, one in enumerate(nic.classes):
            carried.add_metric([nic.name, "out", str(at)], one.sent_bytes)
            carried.add_metric([nic.name, "in", str(at)], one.received_bytes)
        carried.add_metric([nic.name, "out", "none"], nic.unscheduled_bytes + nic.passed_bytes)
        carried.add_metric([nic.name, "in", "none"], nic.unscheduled_bytes)
    yield ratio
    yield carried


def _ports(status: StatusReply) -> Iterator[Metric]:
    """The counters of ports, where they can be read."""
    bypass = CounterMetricFamily(
        "mfs_nic_bypass_bytes",
        "Bytes that the port carried and no program with the shim on this node posted: GPU-initiated RDMA, programs "
        "without the shim, and what peers read (out) or write (in) here.",
        labels=["nic", "direction", "priority"],
    )
    pauses = CounterMetricFamily(
        "mfs_nic_pause_frames",
        "Pause frames of all priorities; in: the network has paused this port.",
        labels=["nic", "direction"],
    )
    for nic in status.nics:
        if nic.port is None:
            continue
        for direction, by_priority, frames in (
            ("out", nic.port.bypass_bytes, nic.port.pauses),
            ("in", nic.port.incoming_bypass_bytes, nic.port.incoming_pauses),
        ):
            for priority, size in sorted({"unknown": 0, **by_priority}.items()):
                bypass.add_metric([nic.name, direction, priority], size)
            if frames is not None:
                pauses.add_metric([nic.name, direction], frames)
    yield bypass
    yield pauses


_PROGRAM_COUNTERS = (
    ("submits", "mfs_tasks_submitted", "Tasks that asked for a permit."),
    ("permits", "mfs_tasks_permitted", "Tasks that were given a permit."),
    ("on_credit", "mfs_tasks_on_credit", "Permitted tasks that did not have to ask, since nothing waited."),
    ("completes", "mfs_tasks_completed", "Tasks whose bytes have arrived."),
    ("cancels", "mfs_tasks_cancelled", "Tasks that ended without a permit."),
    ("hold_s", "mfs_hold_seconds", "Time that work requests were held, summed over them."),
    ("torn_slots", "mfs_torn_slots", "Messages that a program began and never finished."),
    ("bad_messages", "mfs_bad_messages", "Messages that were invalid."),
)
_BYPASSES = (("overflow", "bypassed_overflow"), ("hold_limit", "bypassed_hold"), ("daemon_gone", "bypassed_stale"))


def _programs(status: StatusReply) -> Iterator[Metric]:
    for attribute, name, text in _PROGRAM_COUNTERS:
        family = CounterMetricFamily(name, text, labels=["process"])
        for total in status.totals:
            family.add_metric([total.process], getattr(total, attribute))
        yield family
    failed_open = CounterMetricFamily(
        "mfs_failed_open", "Work requests posted without a permit, by reason.", labels=["process", "reason"]
    )
    for total in status.totals:
        for reason, attribute in _BYPASSES:
            failed_open.add_metric([total.process, reason], getattr(total, attribute))
    yield failed_open
    for attribute, name, text in (
        ("posted_bytes", "mfs_posted_bytes", "Bytes handed to the NIC."),
        ("completed_bytes", "mfs_completed_bytes", "Bytes whose completion was seen."),
    ):
        family = CounterMetricFamily(name, text, labels=["process", "stage"])
        for total in status.totals:
            for stage, n in sorted(getattr(total, attribute).items()):
                family.add_metric([total.process, stage], n)
        yield family


_OPENED = ("queue_full", "bypass", "given_up", "written_off")


def _failures(status: StatusReply) -> Iterator[Metric]:
    opened = CounterMetricFamily(
        "mfs_arbiter_failed_open",
        "Flows let go out of order. queue_full, bypass: tasks; given_up, written_off: programs.",
        labels=["reason"],
    )
    for reason in _OPENED:
        opened.add_metric([reason], _event(status, "failed_open", reason))
    yield opened
    yield CounterMetricFamily(
        "mfs_coordinator_order_lost",
        "Times that the coordinator's order was too old, and batches were ordered on this node alone.",
        value=_event(status, "link", "order_lost"),
    )
    spans = CounterMetricFamily(
        "mfs_spans",
        "OpenTelemetry spans. dropped: the queue was full; failed: the receiver took none.",
        labels=["outcome"],
    )
    for outcome in ("exported", "failed", "dropped"):
        spans.add_metric([outcome], _event(status, "spans", outcome))
    yield spans


def _requests(status: StatusReply) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "mfs_ended_requests",
        "Requests that ended, for each process and batch, by whether they met their deadline (none: they had none).",
        labels=["outcome"],
    )
    for outcome in ("met", "missed", "none"):
        ended.add_metric([outcome], _event(status, "ended", outcome))
    yield ended
    recent = status.deadlines.recent_met + status.deadlines.recent_missed
    if recent:
        yield GaugeMetricFamily(
            "mfs_requests_in_time_ratio",
            "Share of requests that met their deadline, of those that ended in the last five minutes.",
            value=status.deadlines.recent_met / recent,
        )
    yield CounterMetricFamily(
        "mfs_forgotten_requests",
        "Requests whose counts were dropped to make room for others.",
        value=_event(status, "ledger", "evicted"),
    )
    yield CounterMetricFamily(
        "mfs_unaccounted_tasks",
        "Tasks that were counted for no request: there was no room, or the tasks had ended before they were seen.",
        value=_event(status, "ledger", "unaccounted"),
    )


def _event(status: StatusReply, family: str, reason: str) -> int:
    return status.events.get(family, {}).get(reason, 0)


class StatusCollector(Collector):
    """Turns one status into metrics at every scrape."""

    def __init__(self, ask: Callable[[], StatusReply]) -> None:
        self._ask = ask

    def collect(self) -> Iterable[Metric]:
        return families(self._ask())


@contextlib.contextmanager
def serve(host: str, port: int, status: Callable[[], StatusReply]) -> Iterator[int]:
    """Serves `/metrics` and yields the port (for a port of 0). Calls `status` in the loop that runs now.

    Raises OSError when it cannot listen on the address.
    """
    loop = asyncio.get_running_loop()

    async def now() -> StatusReply:
        return status()

    def ask() -> StatusReply:
        return asyncio.run_coroutine_threadsafe(now(), loop).result(SCRAPE_S)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(ask))
    with listening(host, port, make_wsgi_app(registry)) as served:
        yield served

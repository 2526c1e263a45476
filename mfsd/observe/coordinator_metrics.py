"""A coordinator's state as Prometheus metrics. A pure function of its status; mfsd.observe.web serves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES = (
    ("term", "mfs_coordinator_term", "Term of the leader that this coordinator knows; it grows with each election."),
    ("batches_active", "mfs_coordinator_batches", "Batches in the order."),
    ("requests_active", "mfs_coordinator_requests", "Requests of these batches."),
    ("drop_budget", "mfs_coordinator_drop_budget", "Requests that may be pruned now."),
    ("ports", "mfs_coordinator_ports", "Ports that daemons have named."),
)


def families(status: dict[str, Any]) -> Iterator[Metric]:
    """`status`: the fields of a StatusReply of mfs.proto, as from :func:`mfsd.cli.message_json.plain`."""
    info = InfoMetricFamily("mfs_coordinator", "Version and address of this coordinator.")
    info.add_metric([], {"version": status["version"], "address": status["address"]})
    yield info
    yield GaugeMetricFamily(
        "mfs_coordinator_leads", "1 when this coordinator leads, 0 when it stands by.", value=status["leads"]
    )
    yield GaugeMetricFamily(
        "mfs_coordinator_uptime_seconds", "Time since the coordinator started.", value=status["uptime_ns"] / 1e9
    )
    for field, name, text in _GAUGES:
        yield GaugeMetricFamily(name, text, value=status[field])
    yield GaugeMetricFamily("mfs_coordinator_pruned", "Requests that are pruned now.", value=len(status["pruned"]))
    yield GaugeMetricFamily(
        "mfs_coordinator_infeasible",
        "Requests that cannot be in time whatever is pruned.",
        value=len(status["infeasible"]),
    )
    yield CounterMetricFamily("mfs_coordinator_events", "Events since this leader began.", value=status["events"])
    nodes = GaugeMetricFamily("mfs_coordinator_nodes", "Daemons by state.", labels=["state"])
    for state, wanted in (("connected", True), ("lost", False)):
        nodes.add_metric([state], sum(bool(node["connected"]) is wanted for node in status["nodes"]))
    yield nodes
    load = GaugeMetricFamily(
        "mfs_coordinator_port_load_ratio",
        "Share of a port's rate taken by traffic that goes first (rho).",
        labels=["port"],
    )
    bypass = GaugeMetricFamily(
        "mfs_coordinator_port_bypass_ratio",
        "Share of a port's rate taken by bytes that no program with the shim posted there (GPU-initiated RDMA and "
        "others).",
        labels=["port"],
    )
    for node in status["nodes"]:
        for port in node["ports"]:
            load.add_metric([port["name"]], port["rho"])
            bypass.add_metric([port["name"]], port["used"]["bypass_permille"] / 1000)
    yield load
    yield bypass
    yield from _tiers(status)
    ended = CounterMetricFamily(
        "mfs_coordinator_ended_requests",
        "Requests that ended since this leader began, by whether they met their deadline.",
        labels=["outcome"],
    )
    for outcome in ("met", "missed"):
        ended.add_metric([outcome], status["attainment"][outcome])
    yield ended


def _tiers(status: dict[str, Any]) -> Iterator[Metric]:
    """All are gauges, since an engine that ends takes its counts with it."""
    ended = GaugeMetricFamily(
        "mfs_coordinator_tier_ended_requests",
        "Requests of a tier that have ended at engines that serve now, since each of them started, by outcome.",
        labels=["tier", "outcome"],
    )
    now = GaugeMetricFamily(
        "mfs_coordinator_tier_requests",
        "Requests of a tier at engines now. paused, relegated and lost ones are also among those that wait or run.",
        labels=["tier", "state"],
    )
    engines = GaugeMetricFamily(
        "mfs_coordinator_tier_engines",
        "Engines that have had requests of a tier, by the policy that orders them.",
        labels=["tier", "policy"],
    )
    for row in status["tiers"]:
        tier = row["tier"]
        for outcome in ("met", "late", "no_deadline", "aborted"):
            ended.add_metric([tier["name"], outcome], tier[outcome])
        for state in ("waiting", "running", "paused", "relegated", "lost"):
            now.add_metric([tier["name"], state], tier[state])
        for policy, number in sorted(tier["policies"].items()):
            engines.add_metric([tier["name"], policy], number)
    yield ended
    yield now
    yield engines
    yield GaugeMetricFamily(
        "mfs_coordinator_unreadable_status_files",
        "Status files of engines that the daemons of their nodes cannot read.",
        value=sum(node["tiers"]["unreadable"] for node in status["nodes"]),
    )


class _Once(Collector):
    def __init__(self, status: dict[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterable[Metric]:
        return families(self._status)


def text(status: dict[str, Any]) -> bytes:
    """The whole exposition."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(status))
    return generate_latest(registry)

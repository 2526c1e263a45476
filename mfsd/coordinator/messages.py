"""Converts between the messages on the wire and the records of the state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mfsd.coordinator.cluster import Cluster
from mfsd.coordinator.history import INTERVAL_NS, INTERVALS, History, Interval, Missed
from mfsd.coordinator.ports import CLASSES_MAX, IDLE, PortTable, Use
from mfsd.coordinator.state import RELEGATED, BatchReport, Delta, RequestReport
from mfsd.coordinator.tiers import TierTable
from mfsd.coordinator.waiting import WaitingReport
from mfsd.policy.request_tiers import COUNT_MAX, NUMBERS, POLICIES_MAX, TIERS_MAX, NodeTiers, TierReport
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import NAME_LENGTH_MAX, is_name

if TYPE_CHECKING:
    Ports = Iterable[pb.Port]
else:
    Ports = Any


PERMILLE_MAX = 60_000
REQUESTS_SHOWN = 200
SIZE_MAX = 2**63
"""Sums are capped here, far above the size of any request, so that they fit on the wire."""


def demands(row: pb.Batch | pb.Request | pb.Routing | pb.Waiting, ports: Sequence[int]) -> dict[int, int]:
    """Returns port of the cluster -> bytes. Raises ValueError if the lists do not match or a port number was never
    defined."""
    numbers, sizes = row.port, row.size_bytes
    if len(numbers) != len(sizes):
        raise ValueError(f"it has {len(numbers)} ports and {len(sizes)} sizes: they must be as many")
    result: dict[int, int] = {}
    for number, size in zip(numbers, sizes, strict=True):
        if number >= len(ports):
            raise ValueError(f"it uses port number {number}, which the stream has not named")
        port = ports[number]
        result[port] = result.get(port, 0) + size
    return result


def batch_report(row: pb.Batch, ports: Sequence[int], waited_ns: int = 0) -> BatchReport:
    """waited_ns: time since the message arrived. Raises ValueError with what is wrong in it."""
    if not is_name(row.unit):
        raise ValueError(f"its unit's name has more than {NAME_LENGTH_MAX} characters, or some that cannot be printed")
    return BatchReport(
        row.batch_id,
        row.unit,
        max(0, row.compute_left_ns - waited_ns),
        [
            RequestReport(
                request.request_id,
                request.budget_left_ns - waited_ns if request.HasField("budget_left_ns") else None,
                demands(request, ports),
                request.relegated,
            )
            for request in row.requests
        ],
        demands(row, ports),
    )


def waiting_report(row: pb.Waiting, ports: Sequence[int], waited_ns: int = 0) -> WaitingReport:
    """waited_ns: time since the message arrived. Raises ValueError with what is wrong in it."""
    return WaitingReport(
        row.request_id,
        row.budget_left_ns - waited_ns if row.HasField("budget_left_ns") else None,
        row.rank,
        row.engine,
        row.relegated,
        demands(row, ports),
    )


def order(delta: Delta, term: int, ports: PortTable) -> bytes:
    """Returns the message that sends a daemon what is new."""
    message = pb.ToNode()
    row = message.order
    row.SetInParent()
    row.term, row.epoch, row.snapshot = term, delta.epoch, delta.snapshot
    for batch_id, key in delta.keys:
        row.batch_id.append(batch_id)
        row.key.append(key)
    for entry in delta.pruned:
        row.pruned.append(_pruned(entry.batch_id, entry.request_id, entry.for_batch, entry.port, ports))
    for batch_id, request_id in delta.infeasible:
        row.infeasible.add(batch_id=batch_id, request_id=request_id)
    for batch_id, request_id in delta.restored:
        row.restored_batch_id.append(batch_id)
        row.restored_request_id.append(request_id)
    for batch_id, reason in delta.refused:
        row.refused.add(batch_id=batch_id, reason=reason)
    return message.SerializeToString()


def attainment(cluster: Cluster) -> pb.Attainment:
    """Counts of the recent past come from the history if that has more, from a former leader."""
    counts, window_ns = cluster.attainment.counts(cluster.now_ns), cluster.attainment.window_ns
    past = cluster.past.recent(window_ns, cluster.now_ns)
    if past.met + past.missed > counts.recent_met + counts.recent_missed:
        counts = counts._replace(recent_met=past.met, recent_missed=past.missed)
    return pb.Attainment(**counts._asdict(), window_ns=window_ns)


def used(row: pb.Load) -> Use:
    """Reads a daemon's report of a port. Numbers that no port can have are capped."""
    own = row.used
    permille = tuple(min(value, PERMILLE_MAX) for value in own.permille[:CLASSES_MAX])
    others = (own.unscheduled_permille, own.passed_permille, own.bypass_permille)
    return Use(permille, *(min(value, PERMILLE_MAX) for value in others))


def node_tiers(row: pb.Tiers) -> NodeTiers:
    """Reads a daemon's report of its engines. Numbers beyond any count are capped. Raises ValueError with what is
    wrong."""
    if len(row.tiers) > TIERS_MAX:
        raise ValueError(f"it has {len(row.tiers)} tiers: a node has at most {TIERS_MAX}")
    found: dict[str, TierReport] = {}
    for tier in row.tiers:
        if len(tier.policies) > POLICIES_MAX or not all(map(is_name, (tier.name, *tier.policies))):
            raise ValueError("names of tiers and policies are some printable characters, and policies are few")
        policies = {name: min(engines, COUNT_MAX) for name, engines in tier.policies.items() if engines}
        numbers = (min(getattr(tier, field), COUNT_MAX) for field in NUMBERS)
        found[tier.name] = TierReport._make((*numbers, policies))
    return NodeTiers(found, min(row.engines, COUNT_MAX), min(row.unreadable, COUNT_MAX))


def _fill_tiers(reply: pb.StatusReply, tiers: TierTable) -> None:
    for name, total in sorted(tiers.sums.items()):
        shown = reply.tiers.add(nodes=tiers.nodes_with[name]).tier
        shown.name = name
        shown.policies.update(total.policies)
        for field in NUMBERS:
            setattr(shown, field, getattr(total, field))
    for row in reply.nodes:
        sent = tiers.shown.get(row.node)
        if sent is not None:
            row.tiers.MergeFromString(sent)


def fill_history(reply: pb.StatusReply, past: History, intervals_max: int, now_ns: int) -> None:
    if not intervals_max:
        return
    reply.history.interval_ns = INTERVAL_NS
    for age_ns, interval in past.latest(intervals_max, now_ns):
        reply.history.intervals.add(age_ns=age_ns, **msgspec.structs.asdict(interval))
    for missed in reversed(past.missed):
        if now_ns - missed.at_ns > INTERVALS * INTERVAL_NS:
            break
        reply.missed.add(request_id=missed.request_id, age_ns=max(0, now_ns - missed.at_ns), node=missed.node)


def follow_history(past: History, reply: pb.StatusReply, now_ns: int) -> None:
    """Copies the leader's history."""
    past.follow(
        (reply.address, reply.term),
        [(row.age_ns, _interval(row)) for row in reply.history.intervals],
        [Missed(now_ns - row.age_ns, row.request_id, row.node) for row in reply.missed],
        now_ns,
    )


def _interval(row: pb.Interval) -> Interval:
    found = Interval(bytes_per_s=list(row.bytes_per_s))
    for name in Interval.__struct_fields__:
        if name != "bytes_per_s":
            setattr(found, name, getattr(row, name))
    return found


def fill_requests(reply: pb.StatusReply, cluster: Cluster, batch_id: int) -> None:
    for request_id, deadline_ns, size, port, port_ns in cluster.requests_of(batch_id)[:REQUESTS_SHOWN]:
        row = reply.requests.add(request_id=request_id, size_bytes=min(size, SIZE_MAX), port_ns=port_ns)
        row.port = cluster.ports.ports[port].name if port >= 0 else ""
        if deadline_ns is not None:
            row.budget_left_ns = deadline_ns - cluster.now_ns


def fill_status(reply: pb.StatusReply, cluster: Cluster, batches_max: int) -> None:
    """Fills in everything that an operator sees of the cluster's state. batches_max 0: all batches."""
    reply.epoch = cluster.epoch
    reply.events = cluster.events
    reply.oddities.update(cluster.oddities)
    reply.batches_active = len(cluster.batches)
    reply.requests_active = cluster.requests_active()
    reply.drop_budget = cluster.planner.drop_budget()
    reply.core = cluster.planner.name
    reply.ports = len(cluster.ports)
    reply.attainment.CopyFrom(attainment(cluster))
    for active in cluster.order()[: batches_max or None]:
        reply.batches.add(
            batch_id=active.batch_id,
            unit=active.unit,
            requests=len(active.numbers),
            red_left_ns=cluster.red_left_ns(active),
            nodes=sorted(active.reported),
        )
    for entry in cluster.pruned():
        reply.pruned.append(_pruned(entry.batch_id, entry.request_id, entry.for_batch, entry.port, cluster.ports))
    for batch_id, request_id in cluster.infeasible():
        reply.infeasible.add(batch_id=batch_id, request_id=request_id)
    for node in sorted(cluster.nodes.values(), key=lambda n: n.name):
        row = reply.nodes.add(node=node.name, connected=node.connected, batches=len(node.batches))
        for number in node.ports:
            port = cluster.ports.ports[number]
            shown = row.ports.add(name=port.name, rate_bytes_per_s=port.rate_bytes_per_s, rho=port.rho)
            if port.use is not IDLE:
                shown.used.permille.extend(port.use.permille)
                shown.used.unscheduled_permille, shown.used.passed_permille = port.use.unscheduled, port.use.passed
                shown.used.bypass_permille = port.use.bypass
    _fill_tiers(reply, cluster.tiers)


def _pruned(batch_id: int, request_id: int, for_batch: int, port: int, ports: PortTable) -> pb.Pruned:
    if port == RELEGATED:
        return pb.Pruned(batch_id=batch_id, request_id=request_id, relegated=True)
    return pb.Pruned(batch_id=batch_id, request_id=request_id, for_batch=for_batch, port=ports.ports[port].name)

"""What the coordinator's page shows of a leader's status: a verdict first, then only what fits on a screen. Pure."""

from __future__ import annotations

import heapq
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mfsd.cli.tiers import policies_text, tier_line, unreadable
from mfsd.node.control import WhyReply
from mfsd.observe.format import duration

if TYPE_CHECKING:
    from mfsd.cli.ask_nodes import NodeAnswer
    from mfsd.proto import mfs_pb2 as pb

BATCHES = 50
GIVEN_UP = 50
MISSED = 20
POINTS = 8
RATIO_WELL = 0.99
RATIO_LEAST = 0.9
"""The limit of the alert MfsDeadlinesMissed."""
LATEST_NS = 20_000_000_000
"""Only intervals of the history that began within this time count, so few that a change of mode shows soon."""
FULL_PERMILLE = 950
SILENT_NS = 5_000_000_000
TIER_NODES = 50
PORTS_NAMED = 1
PORTS_BY_CLASS = 24
SEVERITIES = ("bad", "warn", "good")
Fields = dict[str, Any]


def view(reply: pb.StatusReply, seen_by: str, *, history: bool, ports_known: str) -> Fields:
    """ports_known: the key of the port names that the page already has."""
    used = [[_used(port) for port in node.ports] for node in reply.nodes]
    shown: Fields = {
        "address": reply.address,
        "seen_by": seen_by,
        "leads": reply.leads,
        "leader": reply.leader,
        "term": reply.term,
        "version": reply.version,
        "uptime_ns": reply.uptime_ns,
        "batches_active": reply.batches_active,
        "requests_active": reply.requests_active,
        "drop_budget": reply.drop_budget,
        "attainment": _attainment(reply),
        "verdict": verdict(reply, used),
        "batches": _batches(reply),
        "given_up": _given_up(reply),
        "given_up_total": len(reply.pruned) + len(reply.infeasible),
        "missed": [
            {"request_id": str(m.request_id), "age_ns": m.age_ns, "node": m.node} for m in reply.missed[:MISSED]
        ],
        "nodes": [
            _node(node, max(mine, default=0))
            for node, mine in sorted(zip(reply.nodes, used, strict=True), key=lambda pair: pair[0].connected)
        ],
        "ports": _ports(reply, used, ports_known),
        "tiers": [{**_tier(row.tier), "nodes": row.nodes} for row in reply.tiers],
        **_tiers_by_node(reply),
    }
    if history:
        shown["history"] = _history(reply)
    return shown


# ---- the verdict ---------------------------------------------------------------------------------


def verdict(reply: pb.StatusReply, used: Sequence[Sequence[int]]) -> Fields:
    """Returns whether requests are in time and, if not, where and why: one line, and points with what to check. used:
    use of each node's ports, in thousandths."""
    if not reply.leads:
        named = f"{reply.leader} is named as the leader but does not answer" if reply.leader else "no coordinator leads"
        text = f"{named}: check etcd and the other coordinators; until one leads, each node orders its own batches"
        return {"state": "bad", "title": "No coordinator leads", "points": [_point("bad", text)]}
    points = [*_of_nodes(reply), *_of_given_up(reply), *_of_missed(reply), *_of_ports(reply, used), *_of_reports(reply)]
    seen = reply.attainment
    recent, window = seen.recent_met + seen.recent_missed, f"{seen.window_ns / 60e9:.0f} minutes"
    late, lost = len(reply.infeasible), any(point["severity"] == "bad" for point in points)
    if recent and seen.recent_met / recent < RATIO_LEAST:
        state, title = "bad", "Requests are late"
    elif late or (recent and seen.recent_met / recent < RATIO_WELL):
        state, title = "warn", "Some requests are late" if recent and seen.recent_missed else "Some will be late"
    elif reply.pruned:
        state, title = "warn", "In time, except those that were pruned"
    elif recent:
        state, title = "good", "Requests are in time"
    elif reply.batches_active:
        state, title = "good", "All requests under way can be in time"
    elif reply.nodes:
        state, title = "idle", "Nothing is under way"
    else:
        state, title = "idle", "No daemon is connected"
        points.append(_point("warn", "add this coordinator to [cluster] coordinators of each daemon"))
    if lost and state in ("good", "idle"):
        state, title = "warn", f"{title}, but a node is lost"
    summary = (
        f"{seen.recent_missed} of {recent} missed their deadline in the last {window}" if seen.recent_missed else ""
    )
    if recent and not summary:
        summary = f"all {recent} that ended in the last {window} met their deadline"
    points.sort(key=lambda point: SEVERITIES.index(point["severity"]))
    return {"state": state, "title": title, "summary": summary, "points": points[:POINTS]}


def _point(severity: str, text: str, kind: str = "", name: str = "") -> Fields:
    """kind and name: what a click shows."""
    return {"severity": severity, "text": text, "kind": kind, "name": name}


def _of_nodes(reply: pb.StatusReply) -> list[Fields]:
    found = []
    for node in reply.nodes:
        silent = duration(node.silent_ns / 1e9)
        if not node.connected:
            found.append(
                _point("bad", f"{node.node} is lost; until it reconnects it orders its own batches", "node", node.node)
            )
        elif node.silent_ns > SILENT_NS:
            found.append(
                _point("warn", f"{node.node} is connected but has been silent for {silent}", "node", node.node)
            )
    return found


def _of_given_up(reply: pb.StatusReply) -> list[Fields]:
    found = []
    if reply.infeasible:
        batch, many = Counter(row.batch_id for row in reply.infeasible).most_common(1)[0]
        unit = next((row.unit for row in reply.batches if row.batch_id == batch), "")
        text = f"{_requests(len(reply.infeasible))} will be late whatever is done: too little time is left"
        where = f"batch {batch}{f' of {unit}' if unit else ''}"
        found.append(_point("warn", f"{text}; {_part(many, reply.infeasible)}in {where}", "batch", str(batch)))
    if reply.pruned:
        port, many = Counter(row.port for row in reply.pruned).most_common(1)[0]
        text = f"{_requests(len(reply.pruned))} served last, so that others are in time"
        found.append(_point("warn", f"{text}; {_part(many, reply.pruned)}for lack of room at {port}", "port", port))
    return found


def _of_missed(reply: pb.StatusReply) -> list[Fields]:
    late = [row for row in reply.missed if row.age_ns <= reply.attainment.window_ns]
    if not late:
        return []
    latest = late[0]
    text = f"the latest late request is {latest.request_id} at {latest.node}"
    node, many = Counter(row.node for row in late).most_common(1)[0]
    if many > 1:
        text += f"; {many} of the last {len(late)} were at {node}"
    return [_point("warn", text, "request", str(latest.request_id))]


def _part(many: int, of: Sequence[object]) -> str:
    return "" if many == len(of) else f"{many} of them "


def _of_ports(reply: pb.StatusReply, used: Sequence[Sequence[int]]) -> list[Fields]:
    busy = sorted(
        (
            (permille, node.ports[at])
            for node, mine in zip(reply.nodes, used, strict=True)
            for at, permille in enumerate(mine)
            if permille >= FULL_PERMILLE
        ),
        key=lambda pair: -pair[0],
    )
    found = [
        _point("warn", f"{port.name} is full: {permille / 10:.0f} % of it is used, {_most(port)}", "port", port.name)
        for permille, port in busy[:PORTS_NAMED]
    ]
    if len(busy) > PORTS_NAMED:
        more = len(busy) - PORTS_NAMED
        found.append(_point("warn", f"{more} more ports are full" if more > 1 else "one more port is full"))
    loaded = [port for node in reply.nodes for port in node.ports if port.rho > FULL_PERMILLE / 1000]
    found += [
        _point(
            "warn",
            f"{port.name}: {port.rho:.0%} of it is used by traffic that goes first; little is left for KV",
            "port",
            port.name,
        )
        for port in loaded[:PORTS_NAMED]
    ]
    return found


def _of_reports(reply: pb.StatusReply) -> list[Fields]:
    found = [_point("warn", f"reports: {why}, {n} times") for why, n in sorted(reply.oddities.items())]
    found += [
        _point("warn", f"{node}: {text}; see the log of its daemon", "node", node)
        for node, text in unreadable(reply.nodes)
    ]
    return found


def _most(port: pb.PortStatus) -> str:
    """Returns what uses the port most."""
    shares = dict(zip(class_names(len(port.used.permille)), _shares(port.used), strict=True))
    name = max(shares, key=lambda n: shares[n])
    return f"most of it {name}"


def _requests(n: int) -> str:
    return "1 request" if n == 1 else f"{n} requests"


# ---- rows ----------------------------------------------------------------------------------------


BYPASS = "past MFS, or posted by peers"
"""Traffic in the port's counters beyond what its node's programs posted. Not in the sum, because peers report
theirs."""


def class_names(classes: int) -> list[str]:
    return [*(f"class {c}" for c in range(classes)), "collectives and control", "without a permit"]


def _shares(used: pb.Used) -> list[int]:
    return [*used.permille, used.unscheduled_permille, used.passed_permille]


def _used(port: pb.PortStatus) -> int:
    used = port.used
    return sum(used.permille) + used.unscheduled_permille + used.passed_permille


def _attainment(reply: pb.StatusReply) -> Fields:
    seen = reply.attainment
    hour = [(row.met, row.missed) for row in reply.history.intervals]
    latest = [row for row in reply.history.intervals if row.age_ns <= LATEST_NS]
    return {
        "latest_met": sum(row.met for row in latest),
        "latest_missed": sum(row.missed for row in latest),
        "latest_ns": LATEST_NS,
        "recent_met": seen.recent_met,
        "recent_missed": seen.recent_missed,
        "window_ns": seen.window_ns,
        "hour_met": sum(met for met, _ in hour),
        "hour_missed": sum(missed for _, missed in hour),
    }


def _batches(reply: pb.StatusReply) -> list[Fields]:
    pruned = Counter(row.batch_id for row in reply.pruned)
    infeasible = Counter(row.batch_id for row in reply.infeasible)
    return [
        {
            "batch_id": str(row.batch_id),
            "unit": row.unit,
            "nodes": list(row.nodes[:4]),
            "more_nodes": max(0, len(row.nodes) - 4),
            "requests": row.requests,
            "red_left_ns": row.red_left_ns,
            "pruned": pruned[row.batch_id],
            "infeasible": infeasible[row.batch_id],
        }
        for row in reply.batches[:BATCHES]
    ]


def _given_up(reply: pb.StatusReply) -> list[Fields]:
    late = [
        {"request_id": str(row.request_id), "batch_id": str(row.batch_id), "for_batch": "", "port": ""}
        for row in reply.infeasible[:GIVEN_UP]
    ]
    pruned = [
        {
            "request_id": str(row.request_id),
            "batch_id": str(row.batch_id),
            "for_batch": str(row.for_batch),
            "port": row.port,
        }
        for row in reply.pruned[: GIVEN_UP - len(late)]
    ]
    return [*late, *pruned]


def _node(node: pb.Node, busiest: int) -> Fields:
    return {
        "node": node.node,
        "connected": node.connected,
        "version": node.version,
        "batches": node.batches,
        "lag_ns": node.lag_ns,
        "silent_ns": node.silent_ns,
        "epochs_behind": node.epochs_behind,
        "used": busiest,
    }


def _ports(reply: pb.StatusReply, used: Sequence[Sequence[int]], known: str) -> Fields:
    """By node, then in the daemon's order, so that a port keeps its place. Names are included only if they are new,
    shares by class only for the busiest ports."""
    rows = [(at, port) for at, node in enumerate(reply.nodes) for port in node.ports]
    names = [port.name for _, port in rows]
    key = f"{zlib.crc32(chr(0).join([*names, *(n.node for n in reply.nodes)]).encode()):08x}"
    found: Fields = {
        "key": key,
        "used": [permille for mine in used for permille in mine],
        "rho": [_permille(p.rho) for _, p in rows],
    }
    busiest = sorted(range(len(rows)), key=lambda at: -found["used"][at])[:PORTS_BY_CLASS]
    found["shares"] = {at: shares for at in busiest if any(shares := _eight_and_rest(rows[at][1].used))}
    if key != known:
        found |= {"names": names, "node": [at for at, _ in rows], "nodes": [node.node for node in reply.nodes]}
    return found


def _tier(row: pb.RequestTier) -> Fields:
    return {**msgspec.structs.asdict(tier_line(row)), "policies": policies_text(row.policies)}


def _tiers_by_node(reply: pb.StatusReply) -> Fields:
    """Only those with the most late requests."""
    rows = [(node.node, tier) for node in reply.nodes for tier in node.tiers.tiers]
    worst = heapq.nsmallest(TIER_NODES, rows, key=lambda row: (-row[1].late, -row[1].waiting, row[0], row[1].name))
    return {
        "tiers_by_node": [{"node": node, **_tier(tier)} for node, tier in worst],
        "tiers_by_node_total": len(rows),
    }


def _eight_and_rest(used: pb.Used) -> list[int]:
    return [*_eight(used.permille), used.unscheduled_permille, used.passed_permille]


def _permille(share: float) -> int:
    return round(1000 * share)


def port(reply: pb.StatusReply, name: str) -> Fields | None:
    """Returns one port by class, and the requests that were given up because of it."""
    for node in reply.nodes:
        for row in node.ports:
            if row.name == name:
                shares = _shares(row.used) if row.used.permille else []
                return {
                    "name": name,
                    "node": node.node,
                    "rate_bytes_per_s": row.rate_bytes_per_s,
                    "rho": _permille(row.rho),
                    "used": _used(row),
                    "shares": [
                        {"name": n, "permille": v}
                        for n, v in zip(class_names(len(row.used.permille)), shares, strict=False)
                        if v
                    ]
                    + [{"name": BYPASS, "permille": row.used.bypass_permille}] * bool(row.used.bypass_permille),
                    "pruned": [str(p.request_id) for p in reply.pruned if p.port == name][:GIVEN_UP],
                }
    return None


def batch(reply: pb.StatusReply, batch_id: int) -> Fields | None:
    """Returns the requests of a batch, from a status that was asked to include them."""
    if not reply.requests:
        return None
    pruned = {row.request_id for row in reply.pruned if row.batch_id == batch_id}
    infeasible = {row.request_id for row in reply.infeasible if row.batch_id == batch_id}
    return {
        "batch_id": str(batch_id),
        "requests": [
            {
                "request_id": str(row.request_id),
                "left_ns": row.budget_left_ns if row.HasField("budget_left_ns") else None,
                "size_bytes": row.size_bytes,
                "port": row.port,
                "port_ns": row.port_ns,
                "state": "will be late"
                if row.request_id in infeasible
                else "pruned"
                if row.request_id in pruned
                else "",
            }
            for row in reply.requests
        ],
    }


def life(request_id: int, asked: int, answers: Sequence[NodeAnswer], problem: str) -> Fields:
    """Returns what each node that knows the request reports of it. Times count from its first announcement on any
    node."""
    known = [(a.node, a.reply) for a in answers if isinstance(a.reply, WhyReply) and a.reply.request is not None]
    silent = asked - len(answers)
    problems = [f"{a.node}: {a.problem}" for a in answers if a.reply is None and a.problem]
    if silent > 0:
        problems.append(f"{silent} nodes have not answered")
    if not known and not problem:
        problem = f"none of {asked} nodes knows it: each remembers its last 4,096 requests"
    return {
        "request_id": str(request_id),
        "problem": problem,
        "problems": problems[:POINTS],
        "asked": asked,
        "nodes": [{"node": node, **_life(reply)} for node, reply in known],
    }


def _life(reply: WhyReply) -> Fields:
    own = reply.request
    assert own is not None
    return {
        "state": reply.state,
        "outcome": own.outcome,
        "unit": own.unit,
        "batch_id": None if own.batch_id is None else str(own.batch_id),
        "processes": own.processes,
        "pruned": own.pruned,
        "age_s": own.age_s,
        "deadline_left_s": own.deadline_left_s,
        "reasons": reply.reasons,
        "cluster": reply.cluster,
        "stages": [
            {
                "stage": row.stage,
                "layer": row.layer,
                "bytes": row.submitted_bytes,
                "first_ago_s": row.first_ago_s,
                "last_ago_s": row.last_ago_s,
                "done": row.completed_bytes + row.bypassed_bytes + row.dropped_bytes >= row.submitted_bytes,
            }
            for row in own.stages
        ],
        "waits": [
            {
                "stage": wait.stage,
                "ago_s": wait.ago_s,
                "waited_s": wait.waited_s,
                "first": wait.first,
                "rule": wait.rule,
                "ahead_tasks": wait.ahead_tasks,
                "ahead_bytes": wait.ahead_bytes,
            }
            for wait in reply.seen
        ],
    }


def _history(reply: pb.StatusReply) -> Fields:
    """Rows: seconds since the interval began, met, missed, pruned, infeasible, batches, requests, nodes, busiest port
    in thousandths, then bytes per second by class, without waiting, and without a permit."""
    return {
        "interval_s": reply.history.interval_ns // 1_000_000_000,
        "rows": [
            [
                round(row.age_ns / 1e9),
                *(row.met, row.missed, row.pruned, row.infeasible, row.batches, row.requests, row.nodes),
                row.busiest_permille,
                *_eight(row.bytes_per_s),
                row.unscheduled_bytes_per_s,
                row.passed_bytes_per_s,
            ]
            for row in reply.history.intervals
        ],
    }


def _eight(values: Sequence[int]) -> list[int]:
    return [*values[:8], *([0] * (8 - len(values)))]

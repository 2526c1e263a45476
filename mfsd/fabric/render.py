"""Renders a plan as the configuration of one network operating system, and says what that system cannot
express."""

from __future__ import annotations

import json
from collections.abc import Callable

from msgspec import Struct

from mfsd.fabric.plan import Plan, Port, Queue

LINUX_QUEUE_BYTES = 262_144
"""Shortest queue of a Linux port: two milliseconds at a gigabit, enough for one TCP or RoCE window."""
ASSUMED_PORT_MEMORY_BYTES = 16 << 20
"""Packet memory that Junos drop-profile percentages are taken of: the smallest of the QFX5000 family."""


class Nos(Struct, frozen=True):
    """A network operating system: its template, and which parts of a policy its command language has words
    for."""

    name: str
    title: str
    template: str
    port_example: str
    load: str
    port_pattern: str
    """What it calls a port, whole (a regular expression)."""
    floors: bool = True
    ceilings: bool = True
    watchdog_times: bool = True
    quirk: str = ""


SYSTEMS: dict[str, Nos] = {
    n.name: n
    for n in (
        Nos(
            "sonic",
            "SONiC (config_db)",
            "sonic.json.j2",
            "Ethernet[0-28:4]",
            "config load FILE",
            port_pattern=r"Ethernet(-\w+)?\d+",
        ),
        Nos(
            "cumulus",
            "Cumulus Linux (NVUE)",
            "cumulus.yaml.j2",
            "swp[1-8]",
            "nv config patch FILE && nv config diff && nv config apply",
            port_pattern=r"swp\d+(s\d+)?",
            quirk="switch buffers are re-partitioned when the traffic pools change: apply in a maintenance window",
        ),
        Nos(
            "onyx",
            "NVIDIA Onyx",
            "onyx.txt.j2",
            "1/[1-8]",
            "configure terminal, then paste FILE",
            port_pattern=r"\d+(/\d+){1,2}",
            floors=False,
            ceilings=False,
            watchdog_times=False,
            quirk="enabling PFC may toggle the interfaces",
        ),
        Nos(
            "eos",
            "Arista EOS",
            "eos.txt.j2",
            "Ethernet[1-8]/1",
            "configure session mfs, paste FILE, show session-config diffs, commit",
            port_pattern=r"(Ethernet|Et)\d+(/\d+){0,3}",
        ),
        Nos(
            "nxos",
            "Cisco NX-OS (Nexus 9000)",
            "nxos.txt.j2",
            "Ethernet1/[1-8]",
            "configure terminal, then paste FILE",
            port_pattern=r"(?i:ethernet|eth|e)\d+(/\d+){1,3}",
            floors=False,
            watchdog_times=False,
            quirk="qos-groups are renumbered 7, 6, ... because strict queues must be the highest, without a gap",
        ),
        Nos(
            "junos",
            "Juniper Junos (QFX)",
            "junos.set.j2",
            "et-0/0/[0-7]",
            "load set FILE, show | compare, commit confirmed 5",
            port_pattern=r"(et|xe|ge|mge)-\d+/\d+/\d+(:\d+)?",
            floors=False,
            quirk="several strict-high queues keep their order on QFX5200 and QFX10000 only; QFX5100 "
            "takes one; "
            "releases before DSCP-based PFC refuse drop profiles on no-loss classes",
        ),
        Nos(
            "linux",
            "Linux (tc)",
            "linux.tc.j2",
            "eth[1-4]",
            "tc -batch FILE, or mfsctl switch diff --apply",
            port_pattern=r"[^\s/]{1,15}",
        ),
    )
}


class Shortfall(Struct, frozen=True):
    """Something the policy asks for that a system's configuration cannot say."""

    what: str
    why: str
    remedy: str


class Rendered(Struct, frozen=True):
    nos: str
    text: str
    shortfalls: tuple[Shortfall, ...]


def render(nos: str, plan: Plan) -> Rendered:
    """The configuration text of `plan` for the system `nos` (a key of SYSTEMS)."""
    import jinja2

    system = SYSTEMS[nos]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mfsd.fabric", "switch_configs"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    text = environment.get_template(system.template).render(plan=plan, **_helpers(plan))
    if nos == "sonic":
        text = json.dumps(json.loads(text), indent=2) + "\n"
    return Rendered(nos, text, tuple(shortfalls(nos, plan)))


def _helpers(plan: Plan) -> dict[str, Callable[..., int] | dict[int, int] | int]:
    return {
        "rate": rate_bytes_per_s,
        "kbytes": lambda size: max(1, round(size / 1024)),
        "kbit": lambda port, percent: rate_bytes_per_s(port, percent) * 8 // 1000,
        "floor_kbit": htb_floor_kbit,
        "burst": htb_burst_bytes,
        "floor_burst": htb_floor_burst_bytes,
        "htb_prio": htb_prio,
        "quantum": htb_quantum,
        "fill": lambda size: min(98, max(1, round(100 * size / ASSUMED_PORT_MEMORY_BYTES))),
        "groups": nxos_groups(plan),
        "queue_bytes": linux_queue_bytes,
        "eos_poll_ms": eos_poll_ms,
    }


def eos_poll_ms(plan: Plan) -> int:
    """EOS takes no polling interval above half of the shorter of the watchdog's timeout and recovery time."""
    w = plan.watchdog
    return min(w.poll_ms, w.detection_ms // 2, w.restoration_ms // 2)


def rate_bytes_per_s(port: Port, percent: int) -> int:
    return int(port.speed_gbps * 1e9 / 8 * percent / 100)


def htb_floor_kbit(port: Port, queue: Queue) -> int:
    """An HTB class cannot have no rate: 64 kbit/s stands for "no floor"."""
    return max(64, rate_bytes_per_s(port, queue.floor_percent) * 8 // 1000)


def htb_burst_bytes(port: Port) -> int:
    """Two milliseconds at line rate, so that timer granularity does not cap the link; at least 64 KiB."""
    return max(65_536, rate_bytes_per_s(port, 100) // 500)


def htb_floor_burst_bytes(port: Port, queue: Queue) -> int:
    """As much as the floor yields in two milliseconds, one frame at least."""
    return max(9_216, htb_floor_kbit(port, queue) * 125 // 500)


def linux_queue_bytes(port: Port) -> int:
    """Twice where marking would be complete, so that a queue overflows later than a switch would mark."""
    return max(LINUX_QUEUE_BYTES, 2 * port.ecn.max_bytes if port.ecn else 0)


def htb_prio(queue: Queue) -> int:
    """Weighted classes share the last HTB prio; there their quantum is their weight."""
    return 7 - queue.priority if queue.strict else 7


def htb_quantum(queue: Queue) -> int:
    return 65_536 if queue.strict else max(9_216, queue.weight_percent * 3_072)


def nxos_groups(plan: Plan) -> dict[int, int]:
    """NX-OS qos-group of each priority: served first is 7, then down without a gap; best effort is 0."""
    groups = {}
    for i, q in enumerate(q for q in plan.queues if q.priority != plan.default_priority):
        groups[q.priority] = 7 - i
    groups[plan.default_priority] = 0
    return groups


def shortfalls(nos: str, plan: Plan) -> list[Shortfall]:
    """What `plan` asks for and `nos` is not told, with the reason and what to do about it."""
    system = SYSTEMS[nos]
    found: list[Shortfall] = []
    floored = [
        q.name for q in plan.queues if q.floor_percent and not (nos == "junos" and q.priority == plan.default_priority)
    ]
    capped = [q.name for q in plan.queues if q.ceiling_percent < 100]
    if floored and not system.floors:
        found.append(
            Shortfall(
                f"floor_percent of {', '.join(floored)}",
                f"{system.title} has no documented minimum rate for a queue below a strict one",
                "cap the classes above with ceiling_percent"
                if system.ceilings
                else "watch for starvation (`mfsctl fabric probe`), or make the lower classes dwrr",
            )
        )
    if nos == "eos" and any(not q.strict and q.floor_percent for q in plan.queues):
        found.append(
            Shortfall(
                "floor_percent of dwrr classes",
                "an EOS uc-tx-queue has either a bandwidth share or a guarantee",
                "raise weight_percent",
            )
        )
    if nos == "eos" and plan.lossless and plan.watchdog.action == "forward":
        found.append(
            Shortfall(
                "pfc_watchdog.action forward",
                "EOS drops, shuts the port, or only notifies; it is told to notify",
                "a pause storm then lasts until somebody acts: prefer drop",
            )
        )
    if nos == "eos" and plan.lossless and eos_poll_ms(plan) != plan.watchdog.poll_ms:
        found.append(
            Shortfall(
                f"pfc_watchdog.poll_ms {plan.watchdog.poll_ms}",
                "EOS polls at least twice within the shorter of detection_ms and restoration_ms",
                f"none needed: it polls every {eos_poll_ms(plan)} ms",
            )
        )
    if capped and not system.ceilings:
        found.append(
            Shortfall(
                f"ceiling_percent of {', '.join(capped)}",
                f"no documented per-queue shaper was confirmed for {system.title}",
                "use floors and dwrr instead, or shape on the hosts",
            )
        )
    if plan.lossless and not system.watchdog_times:
        found.append(
            Shortfall(
                "pfc_watchdog times and action",
                f"{system.title} is told to watch, its own times apply",
                "compare them with the policy: show pfc-wd / show queuing pfc-queue",
            )
        )
    if nos == "onyx" and any(q.ecn for q in plan.queues):
        found.append(
            Shortfall("ecn mark_percent", "Onyx takes thresholds only", "its marking curve is fixed; tune max_bytes")
        )
    if nos == "nxos" and plan.lossless:
        found.append(
            Shortfall(
                "buffers.lossless_percent",
                "NX-OS sizes no-drop buffers itself",
                "show queuing interface before and after",
            )
        )
    if nos == "linux":
        if plan.lossless:
            found.append(
                Shortfall(
                    f"PFC on {', '.join(map(str, plan.lossless))}",
                    "a software queue can neither send nor obey pause frames",
                    "queues are long instead; use a hardware port for lossless traffic",
                )
            )
        if any(q.ecn for q in plan.queues):
            found.append(
                Shortfall(
                    "ecn thresholds",
                    "the queues are plain FIFOs, which run on every kernel; marking needs sch_red",
                    "none needed for ordering; RoCE congestion control is not exercised",
                )
            )
    if system.quirk:
        found.append(Shortfall("note", system.quirk, "read before applying"))
    return found

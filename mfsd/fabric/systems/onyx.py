"""NVIDIA Onyx: commands. No schema of its command line is published: the manual's forms stand in for it."""

from __future__ import annotations

from pathlib import Path

from mfsd.fabric.diff import Change, Owned, Setting, command_paths, diff_lines
from mfsd.fabric.findings import Finding
from mfsd.fabric.grammar import DSCP, NAME, NUMBER, PERCENT, PRIORITY, check_grammar
from mfsd.fabric.plan import Plan
from mfsd.fabric.system import About, Shortfall, SwitchSystem

COMMENT = "##"
_PORT = r"interface ethernet (?:[0-9]+/){1,2}[0-9]+"
GRAMMAR: dict[str, tuple[str, ...]] = {
    "": (
        rf"traffic pool {NAME} type (?:lossless|lossy)",
        rf"traffic pool {NAME} memory percent [0-9]{{1,2}}\.[0-9]{{2}}",
        rf"traffic pool {NAME} map switch-priority {PRIORITY}",
        r"dcb priority-flow-control enable force",
        rf"dcb priority-flow-control priority {PRIORITY} enable",
        rf"{_PORT} qos trust (?:port|L2|L3|both)",
        rf"{_PORT} qos map dscp {DSCP} to switch-priority {PRIORITY}",
        rf"{_PORT} traffic-class {PRIORITY} bind switch-priority {PRIORITY}",
        rf"{_PORT} traffic-class {PRIORITY} dcb ets (?:strict|wrr {PERCENT})",
        rf"{_PORT} traffic-class {PRIORITY} congestion-control ecn minimum-absolute {NUMBER} "
        rf"maximum-absolute {NUMBER}",
        rf"{_PORT} dcb priority-flow-control mode on force",
        rf"{_PORT} pfc-wd",
    )
}


class Onyx(SwitchSystem):
    about = About(
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
    )

    def own_shortfalls(self, plan: Plan) -> list[Shortfall]:
        if not any(q.ecn for q in plan.queues):
            return []
        return [
            Shortfall("ecn mark_percent", "Onyx takes thresholds only", "its marking curve is fixed; tune max_bytes")
        ]

    def check(self, text: str, models: Path | None = None) -> list[Finding]:
        return [check_grammar(GRAMMAR, COMMENT, text)]

    def diff(self, rendered: str, running: str) -> list[Change]:
        want, have = command_paths(rendered, COMMENT), command_paths(running, COMMENT)
        return diff_lines(want, have, owned_by_mfs(want))


def owned_by_mfs(want: set[Setting]) -> Owned:
    ports = {" ".join(p[0].split()[:3]) for p in want if p[0].startswith("interface ")}
    words = ("qos", "traffic-class", "dcb", "pfc-wd")

    def owned(path: Setting) -> bool:
        parts = path[0].split()
        if parts[:1] == ["interface"]:
            return " ".join(parts[:3]) in ports and len(parts) > 3 and parts[3] in words
        return path[0].startswith(("traffic pool mfs ", "dcb priority-flow-control"))

    return owned


SYSTEM = Onyx()

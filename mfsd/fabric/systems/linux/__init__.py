"""Linux: the `tc` batch of a software port (HTB). The kernel is its schema; MFS reads and writes its ports itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mfsd.fabric.diff import Change, diff_commands
from mfsd.fabric.findings import Finding
from mfsd.fabric.plan import Plan
from mfsd.fabric.system import About, LiveSystem, Shortfall
from mfsd.fabric.systems.linux import htb


class Linux(LiveSystem):
    about = About(
        "linux",
        "Linux (tc)",
        "linux.tc.j2",
        "eth[1-4]",
        "tc -batch FILE, or mfsctl switch diff --apply",
        port_pattern=r"[^\s/]{1,15}",
        lossless_most=0,
    )

    def helpers(self, plan: Plan) -> Mapping[str, Any]:
        return {
            "kbit": htb.rate_kbit,
            "floor_kbit": htb.floor_kbit,
            "burst": htb.burst_bytes,
            "floor_burst": htb.floor_burst_bytes,
            "htb_prio": htb.prio,
            "quantum": htb.quantum,
            "queue_bytes": htb.queue_bytes,
        }

    def own_shortfalls(self, plan: Plan) -> list[Shortfall]:
        found = []
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
        return found

    def check(self, text: str, models: Path | None = None) -> list[Finding]:
        return [
            Finding(
                "schema",
                "not checked",
                "tc has no schema; the kernel checks it",
                "mfsctl switch diff --nos linux --apply",
            )
        ]

    def lossless_limit(self, plan: Plan) -> Finding:
        count, rule = len(plan.lossless), "lossless classes"
        if not count:
            return Finding(rule, "pass", "0 lossless classes")
        return Finding(
            rule,
            "warn",
            f"{count} lossless classes, but a Linux queue cannot pause",
            "use for ordering only, without PFC",
        )

    def diff(self, rendered: str, running: str) -> list[Change]:
        return diff_commands(rendered, running, "#")

    def diff_live(self, plan: Plan, netns: str | None = None) -> list[Change]:
        from mfsd.fabric.systems.linux.qdisc import diff_ports

        return diff_ports(plan, netns)

    def apply_live(self, plan: Plan, netns: str | None = None) -> None:
        from mfsd.fabric.systems.linux.qdisc import apply_queues

        apply_queues(plan, self.render(plan).text, netns)


SYSTEM = Linux()

"""Cisco NX-OS on Nexus 9000: commands. No schema of its command line is published: the manual's forms stand in for it,
and Cisco's YANG model of the objects that the commands make where it is given (`device_model.py`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mfsd.fabric import yang
from mfsd.fabric.diff import Change, diff_commands
from mfsd.fabric.findings import Finding, verdict
from mfsd.fabric.grammar import DSCP, NAME, NUMBER, PERCENT, PRIORITY, check_grammar
from mfsd.fabric.plan import Plan
from mfsd.fabric.system import About, Shortfall, SwitchSystem
from mfsd.fabric.systems.nxos.device_model import MODULE, NxosInstance

COMMENT = "!"
GRAMMAR: dict[str, tuple[str, ...]] = {
    "": (
        rf"class-map type qos match-any {NAME}",
        rf"policy-map type (?:qos|network-qos|queuing) {NAME}",
        r"system qos",
        r"interface Ethernet[0-9]+(?:/[0-9]+){1,3}",
        r"priority-flow-control watch-dog-interval on",
    ),
    "class-map type qos": (rf"match dscp {DSCP}(?:,{DSCP})*",),
    "policy-map type qos": (rf"class (?:{NAME}|class-default)", rf"set qos-group {PRIORITY}"),
    "policy-map type network-qos": (
        r"class type network-qos c-8q-nq(?:[1-7]|-default)",
        r"mtu (?:1500|[1-9][0-9]{3})",
        rf"pause pfc-cos {PRIORITY}",
    ),
    "policy-map type queuing": (
        r"class type queuing c-out-8q-q(?:[1-7]|-default)",
        r"priority level [1-7]",
        rf"bandwidth remaining percent {PERCENT}",
        rf"shape kbps min [0-9]+ max {NUMBER}",
        rf"random-detect minimum-threshold {NUMBER} kbytes maximum-threshold {NUMBER} kbytes "
        rf"drop-probability {PERCENT} weight (?:[0-9]|1[0-5]) ecn",
    ),
    "system qos": (rf"service-policy type network-qos {NAME}",),
    "interface Ethernet": (
        rf"service-policy type qos input {NAME}",
        rf"service-policy type queuing output {NAME}",
        r"priority-flow-control mode on",
        r"priority-flow-control watch-dog-interval on",
    ),
}


class Nxos(SwitchSystem):
    about = About(
        "nxos",
        "Cisco NX-OS (Nexus 9000)",
        "nxos.txt.j2",
        "Ethernet1/[1-8]",
        "configure terminal, then paste FILE",
        port_pattern=r"(?i:ethernet|eth|e)\d+(/\d+){1,3}",
        floors=False,
        watchdog_times=False,
        quirk="qos-groups are renumbered 7, 6, ... because strict queues must be the highest, without a gap",
    )

    def port_name(self, name: str) -> str:
        return re.sub(r"^[A-Za-z]+", "Ethernet", name)

    def helpers(self, plan: Plan) -> Mapping[str, Any]:
        return {"groups": qos_groups(plan)}

    def own_shortfalls(self, plan: Plan) -> list[Shortfall]:
        found = []
        capped = [q for q in plan.queues if q.ceiling_percent < 100]
        if weighted := [q.name for q in capped if not q.strict or q.priority == plan.default_priority]:
            found.append(
                Shortfall(
                    f"ceiling_percent of {', '.join(weighted)}",
                    "the manual has a queue share bandwidth or be shaped, not both",
                    "lower weight_percent, or make the class strict",
                )
            )
        if plan.lossless:
            found.append(
                Shortfall(
                    "buffers.lossless_percent",
                    "NX-OS sizes no-drop buffers itself",
                    "show queuing interface before and after",
                )
            )
        return found

    def check(self, text: str, models: Path | None = None) -> list[Finding]:
        return [check_grammar(GRAMMAR, COMMENT, text), _check_yang(text, models)]

    def diff(self, rendered: str, running: str) -> list[Change]:
        return diff_commands(rendered, running, COMMENT)


def qos_groups(plan: Plan) -> dict[int, int]:
    """The qos-group of each priority: served first is 7, then down without a gap; best effort is 0."""
    groups = {}
    for i, q in enumerate(q for q in plan.queues if q.priority != plan.default_priority):
        groups[q.priority] = 7 - i
    groups[plan.default_priority] = 0
    return groups


def _check_yang(text: str, models: Path | None) -> Finding:
    check = "NX-OS YANG (yanglint)"
    if models is None or not (models / f"{MODULE}.yang").is_file():
        return Finding(
            check,
            "not checked",
            f"no {MODULE}.yang in {models}" if models else "no folder of models was given",
            "--yang FOLDER with the model of the switch's release, as YangModels publishes it (vendor/cisco/nx)",
        )
    if not yang.installed():
        return Finding(check, "not checked", yang.MISSING, yang.INSTALL)
    instance = NxosInstance(text)
    problems = instance.problems or yang.lint(models, [MODULE], instance.data())
    return verdict(check, problems, "the objects that these commands make are valid in Cisco's device model")


SYSTEM = Nxos()

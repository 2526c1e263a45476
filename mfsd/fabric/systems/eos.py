"""Arista EOS: commands. Its schema is Arista's AVD with its own command generator (pyavd)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mfsd.fabric.diff import Change, command_paths, diff_commands
from mfsd.fabric.findings import INSTALL_SCHEMAS, Finding, verdict
from mfsd.fabric.plan import Plan
from mfsd.fabric.system import About, Shortfall, SwitchSystem


class Eos(SwitchSystem):
    about = About(
        "eos",
        "Arista EOS",
        "eos.txt.j2",
        "Ethernet[1-8]/1",
        "configure session mfs, paste FILE, show session-config diffs, commit",
        port_pattern=r"(Ethernet|Et)\d+(/\d+){0,3}",
    )

    def port_name(self, name: str) -> str:
        return re.sub(r"^Et(?=[0-9])", "Ethernet", name)

    def helpers(self, plan: Plan) -> Mapping[str, Any]:
        return {"poll_ms": watchdog_poll_ms(plan)}

    def own_shortfalls(self, plan: Plan) -> list[Shortfall]:
        found = []
        if any(not q.strict and q.floor_percent for q in plan.queues):
            found.append(
                Shortfall(
                    "floor_percent of dwrr classes",
                    "an EOS uc-tx-queue has either a bandwidth share or a guarantee",
                    "raise weight_percent",
                )
            )
        if plan.lossless and plan.watchdog.action == "forward":
            found.append(
                Shortfall(
                    "pfc_watchdog.action forward",
                    "EOS drops, shuts the port, or only notifies; it is configured to notify",
                    "a pause storm then lasts until an operator acts: prefer drop",
                )
            )
        if plan.lossless and watchdog_poll_ms(plan) != plan.watchdog.poll_ms:
            found.append(
                Shortfall(
                    f"pfc_watchdog.poll_ms {plan.watchdog.poll_ms}",
                    "EOS polls at least twice within the shorter of detection_ms and restoration_ms",
                    f"none needed: it polls every {watchdog_poll_ms(plan)} ms",
                )
            )
        return found

    def check(self, text: str, models: Path | None = None) -> list[Finding]:
        return [_check_avd(text)]

    def diff(self, rendered: str, running: str) -> list[Change]:
        return diff_commands(rendered, running, "!")


def watchdog_poll_ms(plan: Plan) -> int:
    """EOS takes no polling interval above half of the shorter of the watchdog's timeout and recovery time."""
    w = plan.watchdog
    return min(w.poll_ms, w.detection_ms // 2, w.restoration_ms // 2)


def _check_avd(text: str) -> Finding:
    check = "EOS schema (pyavd)"
    try:
        pyavd = importlib.import_module("pyavd")
    except ImportError:
        return Finding(check, "not checked", "package pyavd is not installed", INSTALL_SCHEMAS)
    try:
        data = eos_structured(text)
    except ValueError as error:
        return Finding(check, "fail", str(error), "fix the line")
    result = pyavd.validate_structured_config(data)
    errors = [f"{v.path}: {v.message}" if hasattr(v, "path") else str(v) for v in _avd_errors(result)]
    if errors:
        return verdict(check, errors, "")
    ours = command_paths(text, "!")
    theirs = command_paths(pyavd.get_device_config(data), "!")
    missing = sorted(ours - theirs)
    return verdict(
        check,
        [f"{' / '.join(path)}: not a command EOS knows in this place" for path in missing],
        f"Arista's generator writes the same {len(ours)} commands from its own data model",
    )


def _avd_errors(result: Any) -> list[Any]:
    inner = getattr(result, "validation_result", result)
    return list(getattr(inner, "violations", None) or getattr(inner, "validation_errors", None) or [])


_WATCHDOG: tuple[tuple[str, str], ...] = (
    (r"priority-flow-control pause watchdog default timeout (\S+)", "timeout"),
    (r"priority-flow-control pause watchdog default recovery-time (\S+)", "recovery_time"),
    (r"priority-flow-control pause watchdog default polling-interval (\S+)", "polling_interval"),
    (r"priority-flow-control pause watchdog action (\S+)", "action"),
)


def eos_structured(text: str) -> dict[str, Any]:
    """AVD's structured configuration for the commands MFS writes. Raises ValueError for any other line."""
    dscp: list[str] = []
    classes: list[str] = []
    watchdog: dict[str, str] = {}
    profiles: list[dict[str, Any]] = []
    interfaces: list[dict[str, Any]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("!"):
            continue
        if m := re.fullmatch(r"qos map dscp (.+)", line):
            dscp.append(m[1])
        elif m := re.fullmatch(r"qos map traffic-class (.+)", line):
            classes.append(m[1])
        elif m := re.fullmatch(r"qos profile (\S+)", line):
            profiles.append({"name": m[1], "uc_tx_queues": []})
        elif m := re.fullmatch(r"interface (\S+)", line):
            interfaces.append({"name": m[1]})
        elif interfaces and (m := re.fullmatch(r"service-profile (\S+)", line)):
            interfaces[-1]["service_profile"] = m[1]
        elif any(m := re.fullmatch(pattern, line) for pattern, _ in _WATCHDOG):
            name = next(field for pattern, field in _WATCHDOG if re.fullmatch(pattern, line))
            watchdog[name] = line.split()[-1]
        elif not (profiles and _profile_line(profiles[-1], line)):
            raise ValueError(f"line {number}: {line!r} is not a command MFS writes for EOS")
    data: dict[str, Any] = {
        "qos": {"map": {"dscp": dscp, "traffic_class": classes}},
        "qos_profiles": profiles,
    }
    data["ethernet_interfaces"] = interfaces
    if watchdog:
        data["priority_flow_control"] = {"watchdog": watchdog}
    return data


def _profile_line(profile: dict[str, Any], line: str) -> bool:
    pfc = profile.setdefault("priority_flow_control", {})
    queues: list[dict[str, Any]] = profile["uc_tx_queues"]
    if line == "qos trust dscp":
        profile["trust"] = "dscp"
    elif line == "priority-flow-control on":
        pfc["enabled"] = True
    elif line == "priority-flow-control pause watchdog":
        pfc["watchdog"] = {"enabled": True}
    elif m := re.fullmatch(r"priority-flow-control priority (\d) no-drop", line):
        pfc.setdefault("priorities", []).append({"priority": int(m[1]), "no_drop": True})
    elif m := re.fullmatch(r"uc-tx-queue ([0-7])", line):
        queues.append({"id": int(m[1])})
    elif not queues:
        return False
    elif line in ("priority strict", "no priority"):
        queues[-1]["priority"] = line
    elif m := re.fullmatch(r"bandwidth percent (\d+)", line):
        queues[-1]["bandwidth_percent"] = int(m[1])
    elif m := re.fullmatch(r"bandwidth guaranteed percent (\d+)", line):
        queues[-1]["bandwidth_guaranteed_percent"] = int(m[1])
    elif m := re.fullmatch(r"shape rate (.+)", line):
        queues[-1]["shape"] = {"rate": m[1]}
    elif m := re.fullmatch(
        r"random-detect ecn minimum-threshold (\d+) (\w+) maximum-threshold (\d+) \w+ "
        r"max-mark-probability (\d+)",
        line,
    ):
        queues[-1]["random_detect"] = {
            "ecn": {"threshold": {"units": m[2], "min": int(m[1]), "max": int(m[3]), "max_probability": int(m[4])}}
        }
    else:
        return False
    return True


SYSTEM = Eos()

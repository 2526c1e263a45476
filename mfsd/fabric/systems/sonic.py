"""SONiC: tables of config_db, as JSON. Its schema is SONiC's YANG models (`yanglint`), which are on every switch in
/usr/local/yang-models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mfsd.fabric import yang
from mfsd.fabric.diff import Change, Owned, Setting, diff_trees, json_tree
from mfsd.fabric.findings import Finding, verdict
from mfsd.fabric.system import About, SwitchSystem

YANG_ON_SWITCH = Path("/usr/local/yang-models")

_MAPS = {
    "DSCP_TO_TC_MAP": ("sonic-dscp-tc-map", "dscp", "tc"),
    "TC_TO_QUEUE_MAP": ("sonic-tc-queue-map", "tc", "qindex"),
    "TC_TO_PRIORITY_GROUP_MAP": ("sonic-tc-priority-group-map", "tc", "pg"),
    "MAP_PFC_PRIORITY_TO_QUEUE": ("sonic-pfc-priority-queue-map", "pfc_priority", "qindex"),
}
_ROWS = {
    "SCHEDULER": ("sonic-scheduler", ("name",)),
    "WRED_PROFILE": ("sonic-wred-profile", ("name",)),
    "QUEUE": ("sonic-queue", ("ifname", "qindex")),
    "PORT_QOS_MAP": ("sonic-port-qos-map", ("ifname",)),
    "PFC_WD": ("sonic-pfcwd", ("ifname",)),
}
_NUMBERS = {"tc", "weight", "priority", "detection_time", "restoration_time", "POLL_INTERVAL"}


def sonic_instance(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The YANG instance (RFC 7951 JSON) of config_db tables, and the modules it needs. Raises KeyError for
    a table that MFS does not write."""
    data: dict[str, Any] = {}
    ports: list[str] = []
    for table, rows in config.items():
        if table in _MAPS:
            module, key, value = _MAPS[table]
            entries: list[dict[str, Any]] = [
                {"name": name, table: [{key: _leaf(key, k), value: _leaf(value, v)} for k, v in row.items()]}
                for name, row in rows.items()
            ]
        elif table in _ROWS:
            module, keys = _ROWS[table]
            entries = [
                dict(zip(keys, name.split("|"), strict=True)) | {k: _leaf(k, v) for k, v in row.items()}
                for name, row in rows.items()
            ]
        elif table == "CABLE_LENGTH":
            module = "sonic-cable-length"
            entries = [
                {"name": name, table: [{"port": p, "length": v} for p, v in row.items()]} for name, row in rows.items()
            ]
        else:
            raise KeyError(table)
        data[f"{module}:{module}"] = {table: {f"{table}_LIST": entries}}
        if table == "PORT_QOS_MAP":
            ports = [p for p in rows if p != "global"]
    data["sonic-port:sonic-port"] = {
        "PORT": {"PORT_LIST": [{"name": p, "lanes": str(i), "speed": 100000} for i, p in enumerate(ports)]}
    }
    return data, [name.split(":")[0] for name in data]


def _leaf(name: str, value: str) -> str | int | bool:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if name in _NUMBERS and value.isdigit() else value


class Sonic(SwitchSystem):
    about = About(
        "sonic",
        "SONiC (config_db)",
        "sonic.json.j2",
        "Ethernet[0-28:4]",
        "config load FILE",
        port_pattern=r"Ethernet(-\w+)?\d+",
        lossless_default=2,
    )

    def finished(self, text: str) -> str:
        return json.dumps(json.loads(text), indent=2) + "\n"

    def check(self, text: str, models: Path | None = None) -> list[Finding]:
        return [_check_yang(text, models or YANG_ON_SWITCH)]

    def diff(self, rendered: str, running: str) -> list[Change]:
        return diff_trees(json_tree(rendered, "rendered"), json_tree(running, "running"), owned_by_mfs)


def _check_yang(text: str, models: Path) -> Finding:
    check = "SONiC YANG (yanglint)"
    if not (models / "sonic-scheduler.yang").is_file():
        return Finding(
            check,
            "not checked",
            f"no SONiC YANG models in {models}",
            "run this on the switch, or copy its /usr/local/yang-models here and give --yang FOLDER",
        )
    if not yang.installed():
        return Finding(check, "not checked", yang.MISSING, yang.INSTALL)
    try:
        instance, modules = sonic_instance(json.loads(text))
    except (json.JSONDecodeError, KeyError, ValueError, AttributeError) as error:
        return Finding(check, "fail", f"not the tables MFS writes: {error!r}", "render it again")
    errors = yang.lint(models, modules, instance)
    return verdict(check, errors, f"valid against {len(modules)} SONiC modules")


def owned_by_mfs(want: dict[Setting, str]) -> Owned:
    """The rows MFS writes: its own maps and profiles, and the ports and queues it configures."""
    rows = {p[:2] for p in want}
    ports = {p[1] for p in want if p[0] == "PORT_QOS_MAP"}
    mine = {"SCHEDULER", "WRED_PROFILE", "DSCP_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP"}

    def owned(path: Setting) -> bool:
        if path[0] == "CABLE_LENGTH":
            return False
        if path[:2] in rows or (path[0] in mine and len(path) > 1 and path[1].startswith("MFS")):
            return True
        return path[0] in ("QUEUE", "PFC_WD") and len(path) > 1 and path[1].split("|")[0] in ports

    return owned


SYSTEM = Sonic()

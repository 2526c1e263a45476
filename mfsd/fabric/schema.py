"""Checks a rendered configuration against the vendor's own schema, where one can be had.

- sonic: SONiC's YANG models by `yanglint`; they are on a switch in /usr/local/yang-models, or give --yang
- cumulus: NVUE's OpenAPI description as Pydantic models, package nvueschema
- eos: Arista's AVD schema and its own command generator, package pyavd
- junos: the statement tree of Junos 24.4, package junoscfg
- nxos: Cisco's YANG model of the objects that commands make, through `yanglint` (`nxos_yang.py`)
- nxos, onyx: none is published for the command line; `grammar.py` holds the manuals' forms instead
- linux: the kernel, by `mfsctl switch diff --apply` on a port

A schema that is not installed is "not checked", never "pass".
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from mfsd.fabric import yang
from mfsd.fabric.diff import nvue_tree
from mfsd.fabric.findings import Finding
from mfsd.fabric.grammar import check_grammar
from mfsd.fabric.nxos_yang import MODULE, NxosInstance

YANG_ON_SWITCH = Path("/usr/local/yang-models")
NVUE_VERSION = "v5_16"
INSTALL = "pip install 'mfsd[switch-check]'"


def check_schema(nos: str, text: str, models: Path | None = None) -> list[Finding]:
    """Findings of the schema check of configuration `text`; `models` is a folder of the vendor's YANG models."""
    if nos == "sonic":
        return [check_sonic(text, models or YANG_ON_SWITCH)]
    if nos == "nxos":
        return [_check_documented("nxos", text), check_nxos(text, models)]
    checks: dict[str, Callable[[str], Finding]] = {
        "cumulus": check_cumulus,
        "eos": check_eos,
        "junos": check_junos,
        "onyx": lambda t: _check_documented("onyx", t),
        "linux": lambda t: Finding(
            "schema",
            "not checked",
            "tc has no schema; the kernel is the judge",
            "mfsctl switch diff --nos linux --apply",
        ),
    }
    return [checks[nos](text)]


def _verdict(check: str, problems: list[str], good: str) -> Finding:
    if not problems:
        return Finding(check, "pass", good)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Finding(check, "fail", problems[0] + more, "fix the line, or the template that wrote it")


def _check_documented(nos: str, text: str) -> Finding:
    problems = check_grammar(nos, text)
    if problems:
        return _verdict("documented commands", problems, "")
    return Finding(
        "documented commands",
        "pass",
        "every line is a command the manual documents; no schema of this command line is published",
        "read the diff on the switch before committing",
    )


# SONiC: config_db rows become instances of the YANG lists.

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


def check_sonic(text: str, models: Path) -> Finding:
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
    return _verdict(check, errors, f"valid against {len(modules)} SONiC modules")


# NX-OS: the documented forms of commands, and Cisco's model of the objects that they make.


def check_nxos(text: str, models: Path | None) -> Finding:
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
    return _verdict(check, problems, "the objects that these commands make are valid in Cisco's device model")


# Cumulus: NVUE's published OpenAPI description.


def check_cumulus(text: str) -> Finding:
    check = "NVUE OpenAPI (nvueschema)"
    try:
        models = importlib.import_module(f"nvueschema.models.{NVUE_VERSION}")
    except ImportError:
        return Finding(check, "not checked", "package nvueschema is not installed", INSTALL)
    try:
        tree = nvue_tree(text)
    except ValueError as error:
        return Finding(check, "fail", str(error), "render it again")
    problems: list[str] = []
    try:
        model = models.NvueConfig.model_validate(tree, strict=False)
    except ValueError as error:  # pydantic's ValidationError is one
        problems.append(" ".join(str(error).split())[:300])
    else:
        lost = sorted(_keys(tree) - _keys(model.model_dump(by_alias=True, exclude_unset=True)))
        problems += [f"{'/'.join(path)}: no such NVUE object" for path in lost]
    return _verdict(check, problems, f"valid NVUE {NVUE_VERSION[1:].replace('_', '.')} objects and values")


def _keys(tree: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    if not isinstance(tree, dict):
        return set()
    return {p for k, v in tree.items() for p in ({(*path, str(k))} | _keys(v, (*path, str(k))))}


# EOS: Arista's own generator must write the same commands from its own data model.


def check_eos(text: str) -> Finding:
    check = "EOS schema (pyavd)"
    try:
        pyavd = importlib.import_module("pyavd")
    except ImportError:
        return Finding(check, "not checked", "package pyavd is not installed", INSTALL)
    try:
        data = eos_structured(text)
    except ValueError as error:
        return Finding(check, "fail", str(error), "fix the line")
    result = pyavd.validate_structured_config(data)
    errors = [f"{v.path}: {v.message}" if hasattr(v, "path") else str(v) for v in _avd_errors(result)]
    if errors:
        return _verdict(check, errors, "")
    ours = _eos_lines(text)
    theirs = _eos_lines(pyavd.get_device_config(data))
    missing = sorted(ours - theirs)
    return _verdict(
        check,
        [f"{' / '.join(path)}: not a command EOS knows in this place" for path in missing],
        f"Arista's generator writes the same {len(ours)} commands from its own data model",
    )


def _avd_errors(result: Any) -> list[Any]:
    inner = getattr(result, "validation_result", result)
    return list(getattr(inner, "violations", None) or getattr(inner, "validation_errors", None) or [])


def _eos_lines(text: str) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    stack: list[tuple[int, str]] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("!"):
            continue
        indent = len(raw) - len(raw.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, line))
        found.add(tuple(s for _, s in stack))
    return found


_EOS_GLOBAL: tuple[tuple[str, str], ...] = (
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
        elif m := re.fullmatch(r"service-profile (\S+)", line):
            interfaces[-1]["service_profile"] = m[1]
        elif any(m := re.fullmatch(pattern, line) for pattern, _ in _EOS_GLOBAL):
            name = next(field for pattern, field in _EOS_GLOBAL if re.fullmatch(pattern, line))
            watchdog[name] = line.split()[-1]
        elif not (profiles and _eos_profile_line(profiles[-1], line)):
            raise ValueError(f"line {number}: {line!r} is not a command MFS writes for EOS")
    data: dict[str, Any] = {
        "qos": {"map": {"dscp": dscp, "traffic_class": classes}},
        "qos_profiles": profiles,
    }
    data["ethernet_interfaces"] = interfaces
    if watchdog:
        data["priority_flow_control"] = {"watchdog": watchdog}
    return data


def _eos_profile_line(profile: dict[str, Any], line: str) -> bool:
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


# Junos: every statement must exist in the vendor's tree.

_KEY_WORDS = {"class": 1, "code-point": 1, "drop-profile-map": 4}
"""Lists whose key leaves the package's tree lost, and how many words the key takes."""


@functools.cache
def _junos_tree() -> dict[str, Any]:
    """The package's 14 MB of statements, parsed once. Raises ModuleNotFoundError."""
    file = resources.files("junoscfg") / "validate/data/junos-structure-tree.json"
    tree: dict[str, Any] = json.loads(file.read_text())
    return tree


def check_junos(text: str) -> Finding:
    check = "Junos statement tree (junoscfg)"
    try:
        tree = _junos_tree()
    except ModuleNotFoundError:
        return Finding(check, "not checked", "package junoscfg is not installed", INSTALL)
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            problem = junos_problem(tree, line.split())
            problems += [f"line {number}: {problem}"] if problem else []
    return _verdict(check, problems, "every statement exists in the Junos 24.4 tree (values are not in it)")


def junos_problem(tree: dict[str, Any], words: list[str]) -> str | None:
    """Why `set ...` (split into words) is no statement of `tree`; None when it is one."""
    if words[:1] != ["set"]:
        return f"{words[0]!r}: expected a set statement"
    node, name, named = tree, "", False
    i = 1
    while i < len(words):
        word, children = words[i], node.get("c", {})
        if name == "interfaces" and "interface" in children:  # the tree's list element, not written in set form
            node, name, children = children["interface"], "interface", children["interface"].get("c", {})
        if word in children:
            node, name, named = children[word], word, False
            if node.get("l") and not node.get("L"):
                i += 1
                if i >= len(words):
                    return f"{name!r} needs a value"
                node = {"c": children}
        elif (node.get("L") or name in _KEY_WORDS) and not named:
            named = True
            i += _KEY_WORDS.get(name, 1) - 1
        elif node.get("l") and i == len(words) - 1:
            pass
        else:
            return f"{word!r} is no statement under {' '.join(words[1:i])!r}"
        i += 1
    return None

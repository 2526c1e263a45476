"""The NX-OS commands that MFS writes, as an instance of Cisco's own model Cisco-NX-OS-device (YANG).

Cisco publishes no schema of its command line; the model describes the objects that the commands make, with their
ranges. The global PFC watchdog is in no release's model, so that line is checked by its documented form alone.
"""

from __future__ import annotations

import re
from typing import Any

MODULE = "Cisco-NX-OS-device"
_POLICY_ROOM = {"qos": "dflt-items", "network-qos": "nw-items", "queuing": "queuing-items"}
_DIRECTION = {"input": "in-items", "output": "out-items"}
_ON = 1

Tree = dict[str, Any]


class _NoSection(Exception):
    """Of a command that belongs under another one, which is not there."""


class NxosInstance:
    """Collects objects line by line. ``problems``: lines that are none, and classes without a class-map."""

    def __init__(self, text: str) -> None:
        self._rooms: dict[str, Tree] = {}
        self._ports: dict[str, Tree] = {}
        self._class_maps: set[str] = set()
        self.problems: list[str] = []
        self._where: Tree = {}
        self._policy: Tree | None = None
        self._port = self._kind = ""
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if line and not line.startswith("!") and not self._line(line):
                self.problems.append(f"line {number}: {line!r} makes no object of the model")

    def data(self) -> Tree:
        """The instance, RFC 7951 JSON."""
        system: Tree = {"ipqos-items": self._rooms}
        if self._ports:
            system["intf-items"] = {"phys-items": {"PhysIf-list": list(self._ports.values())}}
        return {f"{MODULE}:System": system}

    def _line(self, line: str) -> bool:
        if line == "priority-flow-control watch-dog-interval on" and not self._port:
            return True
        for pattern, make in _FORMS:
            if found := re.fullmatch(pattern, line):
                try:
                    make(self, *found.groups())
                except _NoSection:
                    return False
                return True
        return False

    def _room(self, kind: str, *path: str) -> Tree:
        tree = self._rooms.setdefault(_POLICY_ROOM[kind], {})
        for step in path:
            tree = tree.setdefault(step, {})
        return tree

    def class_map(self, name: str) -> None:
        self._class_maps.add(name)
        self._where = {"name": name, "matchType": "match-any"}
        self._room("qos", "c-items", "name-items").setdefault("CMapInst-list", []).append(self._where)

    def match_dscp(self, values: str) -> None:
        if not self._where:
            raise _NoSection
        self._where["dscp-items"] = {"Dscp-list": [{"val": int(v)} for v in values.split(",")]}

    def policy_map(self, kind: str, name: str) -> None:
        self._kind = kind
        self._where = {"name": name}
        self._room(kind, "p-items", "name-items").setdefault("PMapInst-list", []).append(self._where)
        self._policy = self._where

    def policy_class(self, name: str) -> None:
        if self._policy is None:
            raise _NoSection
        if self._kind == "qos" and name not in self._class_maps | {"class-default"}:
            self.problems.append(f"class {name}: no class-map of that name")
        self._where = {"name": name}
        self._policy.setdefault("cmap-items", {}).setdefault("MatchCMap-list", []).append(self._where)

    def put(self, item: str, **leaves: Any) -> None:
        if not self._where:
            raise _NoSection
        self._where.setdefault(item, {}).update(leaves)

    def interface(self, slot: str) -> None:
        self._port = f"eth{slot}"
        self._ports[self._port] = self._where = {"id": self._port}

    def service_policy(self, kind: str, direction: str, name: str) -> None:
        if not self._port:
            raise _NoSection
        policies = self._room(kind, "policy-items", _DIRECTION[direction], "intf-items")
        policies.setdefault("If-list", []).append({"name": self._port, "pmap-items": {"name": name}})

    def system_policy(self, name: str) -> None:
        self._room("network-qos", "policy-items", "in-items", "sys-items")["pmap-items"] = {"name": name}


def _random_detect(n: NxosInstance, low: str, low_unit: str, high: str, high_unit: str, drop: str, weight: str) -> None:
    thresholds = {"minThreshold": int(low), "minThresholdUnit": low_unit}
    thresholds |= {"maxThreshold": int(high), "maxThresholdUnit": high_unit}
    n.put("RandDet-items", **thresholds, dropAvail=int(drop), weight=int(weight), ecn=True)


_FORMS: tuple[tuple[str, Any], ...] = (
    (r"class-map type qos match-any (\S+)", NxosInstance.class_map),
    (r"match dscp ([0-9]+(?:,[0-9]+)*)", NxosInstance.match_dscp),
    (r"policy-map type (qos|network-qos|queuing) (\S+)", NxosInstance.policy_map),
    (r"class (?:type (?:network-qos|queuing) )?(\S+)", NxosInstance.policy_class),
    (r"set qos-group (\d+)", lambda n, group: n.put("setGrp-items", id=int(group))),
    (r"mtu (\d+)", lambda n, size: n.put("mtu-items", value=int(size))),
    (r"pause pfc-cos (\d+)", lambda n, cos: n.put("pause-items", **{f"pfcCos{cos}": True})),
    (r"priority level (\d+)", lambda n, level: n.put("prio-items", level=int(level))),
    (r"bandwidth remaining percent (\d+)", lambda n, share: n.put("setRemBW-items", val=int(share))),
    (
        r"shape kbps min (\d+) max (\d+)",
        lambda n, low, high: n.put("shape-items", min=low, minRateUnit="kbps", max=high, maxRateUnit="kbps"),
    ),
    (
        r"random-detect minimum-threshold (\d+) (\w+) maximum-threshold (\d+) (\w+) drop-probability (\d+) "
        r"weight (\d+) ecn",
        _random_detect,
    ),
    (r"system qos", lambda n: None),
    (r"service-policy type network-qos (\S+)", NxosInstance.system_policy),
    (r"interface Ethernet(\S+)", NxosInstance.interface),
    (r"service-policy type (qos|queuing) (input|output) (\S+)", NxosInstance.service_policy),
    (r"priority-flow-control mode on", lambda n: n.put("priorflowctrl-items", mode=_ON)),
    (r"priority-flow-control watch-dog-interval on", lambda n: n.put("priorflowctrlwd-items", watchDogInterval=_ON)),
)

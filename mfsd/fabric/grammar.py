"""The command language MFS emits for systems that publish no schema, as far as their manuals document it.

`check_grammar` refuses any line that is not one of these documented forms, with its ranges. It knows only
the commands that the templates use: it guards templates and hand-edited copies of their output, it is no
model of the system. Sources are named in the headers of the templates `onyx.txt.j2` and `nxos.txt.j2`.
"""

from __future__ import annotations

import re

_N07 = r"[0-7]"
_DSCP = r"(?:[0-9]|[1-5][0-9]|6[0-3])"
_PCT = r"(?:100|[1-9]?[0-9])"
_INT = r"[1-9][0-9]*"
_NAME = r"[A-Za-z0-9_-]{1,40}"
_ETH = r"interface ethernet (?:[0-9]+/){1,2}[0-9]+"

GRAMMAR: dict[str, dict[str, tuple[str, ...]]] = {
    "onyx": {
        "": (
            rf"traffic pool {_NAME} type (?:lossless|lossy)",
            rf"traffic pool {_NAME} memory percent [0-9]{{1,2}}\.[0-9]{{2}}",
            rf"traffic pool {_NAME} map switch-priority {_N07}",
            r"dcb priority-flow-control enable force",
            rf"dcb priority-flow-control priority {_N07} enable",
            rf"{_ETH} qos trust (?:port|L2|L3|both)",
            rf"{_ETH} qos map dscp {_DSCP} to switch-priority {_N07}",
            rf"{_ETH} traffic-class {_N07} bind switch-priority {_N07}",
            rf"{_ETH} traffic-class {_N07} dcb ets (?:strict|wrr {_PCT})",
            rf"{_ETH} traffic-class {_N07} congestion-control ecn minimum-absolute {_INT} "
            rf"maximum-absolute {_INT}",
            rf"{_ETH} dcb priority-flow-control mode on force",
            rf"{_ETH} pfc-wd",
        )
    },
    "nxos": {
        "": (
            rf"class-map type qos match-any {_NAME}",
            rf"policy-map type (?:qos|network-qos|queuing) {_NAME}",
            r"system qos",
            r"interface Ethernet[0-9]+(?:/[0-9]+){1,2}",
            r"priority-flow-control watch-dog-interval on",
        ),
        "class-map type qos": (rf"match dscp {_DSCP}(?:,{_DSCP})*",),
        "policy-map type qos": (rf"class (?:{_NAME}|class-default)", rf"set qos-group {_N07}"),
        "policy-map type network-qos": (
            r"class type network-qos c-8q-nq(?:[1-7]|-default)",
            r"mtu (?:1500|[1-9][0-9]{3})",
            rf"pause pfc-cos {_N07}",
        ),
        "policy-map type queuing": (
            r"class type queuing c-out-8q-q(?:[1-7]|-default)",
            r"priority level [1-7]",
            rf"bandwidth remaining percent {_PCT}",
            rf"shape kbps min [0-9]+ max {_INT}",
            rf"random-detect minimum-threshold {_INT} kbytes maximum-threshold {_INT} kbytes "
            rf"drop-probability {_PCT} weight (?:[0-9]|1[0-5]) ecn",
        ),
        "system qos": (rf"service-policy type network-qos {_NAME}",),
        "interface Ethernet": (
            rf"service-policy type qos input {_NAME}",
            rf"service-policy type queuing output {_NAME}",
            r"priority-flow-control mode on",
            r"priority-flow-control watch-dog-interval on",
        ),
    },
}
COMMENT = {"onyx": "##", "nxos": "!"}


def check_grammar(nos: str, text: str) -> list[str]:
    """Every line of `text` that is no documented command of `nos`, as `line N: ...` messages."""
    sections = GRAMMAR[nos]
    problems: list[str] = []
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith(COMMENT[nos]):
            continue
        if not raw.startswith(" "):
            section = ""
        allowed = sections[section]
        if not any(re.fullmatch(pattern, line) for pattern in allowed):
            where = f" under {section!r}" if section else ""
            problems.append(f"line {number}: {line!r} is no documented form{where}")
        if not raw.startswith(" "):
            section = next((s for s in sections if s and line.startswith(s)), "")
    return problems

"""Rendered configurations are golden files, reviewed against the documentation their templates name.

After a deliberate change: MFS_UPDATE_GOLDEN=1 python -m pytest tests/unit/fabric/test_render.py, then read
the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from mfsd.fabric import systems
from mfsd.fabric.findings import failed
from mfsd.fabric.plan import Plan, expand_ports, headroom_bytes, make_plan, parse_ports
from mfsd.fabric.policy import PfcWatchdog, load_profile, load_profiles
from mfsd.fabric.systems import SYSTEMS
from mfsd.fabric.systems.junos import junos_problem
from mfsd.fabric.systems.nxos.device_model import NxosInstance
from mfsd.fabric.systems.sonic import sonic_instance

GOLDEN = Path(__file__).with_name("golden")
PORTS = {
    "sonic": ("Ethernet[0-4:4]", "Ethernet64"),
    "cumulus": ("swp[1-2]", "swp31"),
    "onyx": ("1/[1-2]", "1/31"),
    "eos": ("Ethernet[1-2]/1", "Ethernet31/1"),
    "nxos": ("Ethernet1/[1-2]", "Ethernet1/31"),
    "junos": ("et-0/0/[1-2]", "et-0/0/31"),
    "linux": ("eth[1-2]", "eth9"),
}
CASES = [(nos, name) for nos in SYSTEMS for name in load_profiles()]


def plan_for(nos: str, name: str) -> Plan:
    profile = load_profile(name)
    first, second = profile.port_groups
    ports = (f"{first}={PORTS[nos][0]}", f"{second}={PORTS[nos][1]}")
    return make_plan(name, profile, parse_ports(profile, ports))


@pytest.mark.parametrize(("nos", "name"), CASES)
def test_rendering_is_the_reviewed_one(nos: str, name: str) -> None:
    text = SYSTEMS[nos].render(plan_for(nos, name)).text
    file = GOLDEN / f"{name}.{SYSTEMS[nos].about.template.removesuffix('.j2')}"
    if os.environ.get("MFS_UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize(("nos", "name"), CASES)
def test_shipped_profiles_pass_every_check_there_is(nos: str, name: str) -> None:
    plan = plan_for(nos, name)
    findings = SYSTEMS[nos].check(SYSTEMS[nos].render(plan).text) + SYSTEMS[nos].limits(plan, "spectrum")
    assert not failed(findings), findings


@pytest.mark.parametrize("nos", ["cumulus", "eos", "junos", "nxos", "onyx"])
def test_an_installed_schema_is_really_used(nos: str) -> None:
    finding = SYSTEMS[nos].check(SYSTEMS[nos].render(plan_for(nos, "rocev2-2-lossless")).text)[0]
    assert finding.status == "pass", finding


BAD = [
    ("cumulus", "switch-priority: 3", "switch-priority: 9"),
    ("cumulus", "mode: strict", "mode: stricter"),
    ("cumulus", "ecn: enable", "ecnx: enable"),
    ("cumulus", "min-threshold: 153600", "min-threshold: lots"),
    ("eos", "uc-tx-queue 4", "uc-tx-queue 9"),
    ("eos", "trust dscp", "trust dscpx"),
    ("eos", "max-mark-probability 10", "max-mark-probability 1000"),
    ("eos", "no-drop", "nodrop"),
    ("eos", "action drop", "action explode"),
    ("junos", "no-loss", "noloss"),
    ("junos", "scheduler-map ", "scheduler-mapp "),
    ("junos", "flow-control-queue", "flow-queue"),
    ("nxos", "pfc-cos 3", "pfc-cos 9"),
    ("nxos", "priority level 1", "priority level 9"),
    ("nxos", "match dscp 48", "match dscp 64"),
    ("nxos", "    priority level", "  priority level 1 percent"),
    ("onyx", "switch-priority 3", "switch-priority 8"),
    ("onyx", "qos trust L3", "qos trust dscp"),
    ("onyx", "pfc-wd", "pfcwd"),
]


@pytest.mark.parametrize(("nos", "good", "bad"), BAD)
def test_a_wrong_line_fails_the_check(nos: str, good: str, bad: str) -> None:
    text = SYSTEMS[nos].render(plan_for(nos, "rocev2-2-lossless")).text
    assert good in text
    assert SYSTEMS[nos].check(text.replace(good, bad, 1))[0].status == "fail"


SONIC_YANG = os.environ.get("MFS_SONIC_YANG", "/usr/local/yang-models")
SONIC_BAD = [
    ("", ""),
    ('"26": "3"', '"64": "3"'),
    ('"wred_profile": "MFS-hosts"', '"wred_profile": "NOPE"'),
    ('"type": "STRICT"', '"type": "STRICTER"'),
    ('"detection_time": "200"', '"detection_time": "20"'),
    ('"pfc_enable": "3,4"', '"pfc_enable": "3-4"'),
]


@pytest.mark.skipif(
    not Path(SONIC_YANG, "sonic-scheduler.yang").is_file(),
    reason="SONiC's YANG models are in no package: set MFS_SONIC_YANG to a folder with them",
)
@pytest.mark.parametrize(("good", "bad"), SONIC_BAD)
def test_sonic_yang(good: str, bad: str) -> None:
    text = SYSTEMS["sonic"].render(plan_for("sonic", "rocev2-2-lossless")).text
    assert good in text
    (finding,) = SYSTEMS["sonic"].check(text.replace(good, bad, 1), Path(SONIC_YANG))
    assert finding.status == ("fail" if bad else "pass"), finding


NXOS_YANG = os.environ.get("MFS_NXOS_YANG", "")
NXOS_BAD = [
    ("", ""),
    ("match dscp 48", "match dscp 64"),
    ("set qos-group 7", "set qos-group 8"),
    ("mtu 9216", "mtu 9300"),
    ("priority level 1", "priority level 9"),
    ("drop-probability 10", "drop-probability 101"),
    ("weight 0", "weight 16"),
    ("kbytes maximum", "pounds maximum"),
    ("class MFS-bulk", "class MFS-nowhere"),
    ("pause pfc-cos 3", "pause pfc-cos 8"),
]


@pytest.mark.skipif(
    not Path(NXOS_YANG, "Cisco-NX-OS-device.yang").is_file(),
    reason="Cisco's YANG models are in no package: set MFS_NXOS_YANG to a folder with Cisco-NX-OS-device.yang",
)
@pytest.mark.parametrize(("good", "bad"), NXOS_BAD)
def test_nxos_yang(good: str, bad: str) -> None:
    text = SYSTEMS["nxos"].render(plan_for("nxos", "rocev2-2-lossless")).text
    assert good in text
    _, finding = SYSTEMS["nxos"].check(text.replace(good, bad, 1), Path(NXOS_YANG))
    assert finding.status == ("fail" if bad else "pass"), finding


@pytest.mark.parametrize("name", list(load_profiles()))
def test_nxos_commands_make_objects(name: str) -> None:
    """Without the model: every line but comments is some object, and every class of a policy is defined."""
    text = SYSTEMS["nxos"].render(plan_for("nxos", name)).text
    instance = NxosInstance(text)
    assert not instance.problems
    system = instance.data()["Cisco-NX-OS-device:System"]
    queues = system["ipqos-items"]["queuing-items"]["p-items"]["name-items"]["PMapInst-list"]
    assert all(len(q["cmap-items"]["MatchCMap-list"]) == 8 for q in queues), "all eight queues are spoken of"
    assert NxosInstance(text.replace("set qos-group", "set qos-grope", 1)).problems


def test_missing_nxos_models_are_not_a_pass(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        _, finding = SYSTEMS["nxos"].check("", folder)
        assert finding.status == "not checked"
        assert "vendor/cisco/nx" in finding.remedy


def test_missing_sonic_models_are_not_a_pass(tmp_path: Path) -> None:
    (finding,) = SYSTEMS["sonic"].check("{}", tmp_path)
    assert finding.status == "not checked"
    assert "yang-models" in finding.remedy


def test_sonic_rows_become_yang_instances() -> None:
    data, modules = sonic_instance(
        {"QUEUE": {"Ethernet0|3": {"scheduler": "s"}}, "DSCP_TO_TC_MAP": {"MFS": {"26": "3"}}}
    )
    assert data["sonic-queue:sonic-queue"]["QUEUE"]["QUEUE_LIST"] == [
        {"ifname": "Ethernet0", "qindex": "3", "scheduler": "s"}
    ]
    rows = data["sonic-dscp-tc-map:sonic-dscp-tc-map"]["DSCP_TO_TC_MAP"]["DSCP_TO_TC_MAP_LIST"]
    assert rows == [{"name": "MFS", "DSCP_TO_TC_MAP": [{"dscp": "26", "tc": 3}]}]
    assert set(modules) == {"sonic-queue", "sonic-dscp-tc-map", "sonic-port"}


def test_junos_tree_walk_needs_values_and_known_words() -> None:
    tree = {"c": {"a": {"c": {"v": {"l": True}, "list": {"L": True, "c": {"x": {"p": True}}}}}}}
    assert junos_problem(tree, ["set", "a", "v", "1"]) is None
    assert junos_problem(tree, ["set", "a", "list", "n", "x"]) is None
    assert "needs a value" in str(junos_problem(tree, ["set", "a", "v"]))
    assert "'y'" in str(junos_problem(tree, ["set", "a", "list", "n", "y"]))
    assert "expected a set" in str(junos_problem(tree, ["delete", "a"]))


def test_what_a_system_cannot_express_is_reported() -> None:
    def missing(nos: str, name: str) -> list[str]:
        return [s.what for s in SYSTEMS[nos].render(plan_for(nos, name)).shortfalls]

    assert any("floor_percent" in what for what in missing("onyx", "rocev2-2-lossless"))
    assert any("PFC" in what for what in missing("linux", "rocev2-2-lossless"))
    assert missing("sonic", "rocev2-lossy-ecn") == []


def test_every_module_of_the_folder_is_a_system_under_its_own_name() -> None:
    folder = Path(systems.__file__).parent
    modules = {p.stem for p in folder.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()} - {"__init__"}
    assert set(SYSTEMS) == modules


def test_every_dscp_has_one_priority_everywhere() -> None:
    plan = plan_for("sonic", "rocev2-2-lossless")
    assert len(plan.dscp_to_priority) == 64
    assert [plan.dscp_to_priority[d] for d in (34, 26, 24, 8, 48, 0, 46)] == [4, 3, 3, 1, 6, 0, 0]
    assert sorted(d for q in plan.queues for d in q.dscps) == list(range(64))
    assert [q.priority for q in plan.queues] == [6, 4, 3, 1, 0]
    assert plan.rdma_default_dscp == 26


def test_headroom_grows_with_cable_speed_and_frame() -> None:
    assert headroom_bytes(100, 5, 9216) == 2 * 5 * 5 * 100 // 8 + 118 * 64 + 2 * 9216 + 64
    assert headroom_bytes(10, 5, 1500) == int(2 * 5 * 5 * 10 / 8) + 60 * 64 + 2 * 1500 + 64


def test_limits_refuse_what_silicon_cannot_hold() -> None:
    profile = load_profile("rocev2-2-lossless")
    many = make_plan(
        "x", profile, {"fabric": [f"Ethernet{i}" for i in range(64)], "hosts": [f"E{i}" for i in range(64)]}
    )
    assert not failed(SYSTEMS["sonic"].limits(many, "spectrum4"))
    (headroom,) = [f for f in SYSTEMS["sonic"].limits(many, "tomahawk") if f.check == "headroom"]
    assert headroom.status == "fail"
    (headroom,) = [f for f in SYSTEMS["sonic"].limits(many) if f.check == "headroom"]
    assert headroom.status == "not checked"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("swp1,swp2", ["swp1", "swp2"]),
        ("Ethernet[0-8:4]", ["Ethernet0", "Ethernet4", "Ethernet8"]),
        ("et-0/0/[1-2],et-0/0/9", ["et-0/0/1", "et-0/0/2", "et-0/0/9"]),
    ],
)
def test_port_ranges(text: str, names: list[str]) -> None:
    assert expand_ports(text) == names


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("swp[4-1]", "empty range"),
        ("swp1,swp1", "listed twice"),
        ("nope=swp1", "no port group"),
        ("hosts=", "no port named"),
        ("hosts=swp1;reboot", "no port name"),
        ("hosts=\u0661/\u0661", "no port name"),
        ("Ethernet[1-2]/[1-4]", r"'Ethernet\[1-2\]/\[1-4\]' has two ranges; write one range a part"),
        ("Ethernet[0-99999999]", r"'Ethernet\[0-99999999\]' is more than 4096 ports"),
        ("swp[1-4000],eth[1-4000]", "more than 4096 ports"),
    ],
)
def test_bad_ports_are_refused(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_ports(load_profile("rocev2-2-lossless"), (value,))


def test_eos_polls_often_enough_for_its_own_rule() -> None:
    """Arista: the polling interval is at most half of the shorter of timeout and recovery time."""
    profile = load_profile("rocev2-2-lossless")
    hasty = PfcWatchdog(poll_ms=200, detection_ms=200, restoration_ms=300, action="forward")
    profile = msgspec.structs.replace(profile, pfc_watchdog=hasty)
    rendered = SYSTEMS["eos"].render(make_plan("hasty", profile, {"hosts": ["Ethernet1/1"]}))
    assert "polling-interval 0.100" in rendered.text
    assert "action notify-only" in rendered.text
    missing = " ".join(s.what for s in rendered.shortfalls)
    assert "poll_ms 200" in missing and "forward" in missing
    assert SYSTEMS["eos"].check(rendered.text)[0].status == "pass"


def test_nxos_says_that_weighted_queues_have_no_ceiling() -> None:
    profile = load_profile("rocev2-lossy-ecn")
    capped = tuple(msgspec.structs.replace(c, ceiling_percent=50) for c in profile.classes)
    plan = make_plan("x", msgspec.structs.replace(profile, classes=capped), {"hosts": ["Ethernet1/1"]})
    rendered = SYSTEMS["nxos"].render(plan)
    assert rendered.text.count("shape kbps") == 2
    assert "ceiling_percent of low, scavenger" in [s.what for s in rendered.shortfalls]


@pytest.mark.parametrize(
    ("nos", "text"),
    [
        ("eos", "service-profile MFS-hosts\n"),
        ("eos", "qos profile MFS-hosts\n   bandwidth percent 5\n"),
        ("eos", "qos profile MFS-hosts\n   priority strict\n"),
        ("eos", "qos profile MFS-hosts\n   shape rate 5 percent\n"),
    ],
)
def test_commands_outside_of_their_section_fail_the_check(nos: str, text: str) -> None:
    (finding,) = SYSTEMS[nos].check(text)
    assert finding.status == "fail" and "is not a command MFS writes" in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "class type queuing c-out-8q-q7\n",
        "match dscp 8\n",
        "set qos-group 7\n",
        "class-map type qos match-any a\n  match dscp ,\n",
    ],
)
def test_nxos_commands_outside_of_their_section_make_no_object(text: str) -> None:
    assert NxosInstance(text).problems

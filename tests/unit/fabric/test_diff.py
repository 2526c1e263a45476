"""Differences are about what MFS owns: what of ours is missing, wrong or left over, and nothing else."""

from __future__ import annotations

import json

import pytest
import yaml

from mfsd.fabric.plan import make_plan
from mfsd.fabric.policy import load_profile
from mfsd.fabric.systems import SYSTEMS

PORT = {
    "sonic": "Ethernet0",
    "cumulus": "swp1",
    "onyx": "1/1",
    "eos": "Ethernet1/1",
    "nxos": "Ethernet1/1",
    "junos": "et-0/0/1",
    "linux": "eth1",
}


def rendered(nos: str, name: str = "rocev2-2-lossless") -> str:
    return SYSTEMS[nos].render(make_plan(name, load_profile(name), {"hosts": [PORT[nos]]})).text


def changes(nos: str, running: str) -> list[str]:
    return [str(c) for c in SYSTEMS[nos].diff(rendered(nos), running)]


@pytest.mark.parametrize("nos", SYSTEMS)
def test_the_same_configuration_has_no_difference(nos: str) -> None:
    assert changes(nos, rendered(nos)) == []


@pytest.mark.parametrize("nos", SYSTEMS)
def test_another_profile_differs_and_an_empty_switch_lacks_everything(nos: str) -> None:
    assert changes(nos, rendered(nos, "rocev2-lossy-ecn"))
    empty = "{}" if nos == "sonic" else ""
    found = changes(nos, empty)
    assert found
    assert all(c.startswith("+ ") for c in found)


def test_sonic_leaves_other_tables_and_ports_alone() -> None:
    running = json.loads(rendered("sonic"))
    running["BGP_NEIGHBOR"] = {"10.0.0.1": {"asn": "1"}}
    running["QUEUE"]["Ethernet8|3"] = {"scheduler": "theirs"}
    running["SCHEDULER"]["theirs"] = {"type": "DWRR"}
    assert changes("sonic", json.dumps(running)) == []
    running["QUEUE"]["Ethernet0|7"] = {"scheduler": "theirs"}
    running["SCHEDULER"]["MFS-old"] = {"type": "DWRR"}
    running["SCHEDULER"]["MFS-hosts-q3"]["type"] = "DWRR"
    del running["DSCP_TO_TC_MAP"]["MFS"]["26"]
    assert changes("sonic", json.dumps(running)) == [
        "+ DSCP_TO_TC_MAP MFS 26 = 3",
        "- QUEUE Ethernet0|7 scheduler = theirs",
        "~ SCHEDULER MFS-hosts-q3 type: DWRR -> STRICT",
        "- SCHEDULER MFS-old type = DWRR",
    ]


def test_nvue_leaves_other_objects_alone() -> None:
    running = yaml.safe_load(rendered("cumulus"))
    tree = running[0]["set"]
    tree["router"] = {"bgp": {"enable": "on"}}
    tree["interface"]["swp1"]["ip"] = {"address": {"10.0.0.1/31": {}}}
    assert changes("cumulus", yaml.safe_dump([{"header": {"version": "5.16"}}, *running])) == []
    tree["interface"]["swp1"]["qos"]["remark"] = {"profile": "x"}
    tree["qos"]["pfc"]["mfs-hosts"]["tx"] = "disable"
    assert changes("cumulus", yaml.safe_dump(running)) == [
        "- interface swp1 qos remark profile = x",
        "~ qos pfc mfs-hosts tx: disable -> enable",
    ]


def test_commands_under_another_section_are_other_commands() -> None:
    running = rendered("eos").replace("uc-tx-queue 4\n      priority strict", "uc-tx-queue 4\n      no priority")
    running += "!\ninterface Ethernet2/1\n   service-profile THEIRS\nrouter bgp 1\n"
    running = running.replace("interface Ethernet1/1\n", "interface Ethernet1/1\n   description host\n   mtu 9214\n")
    assert changes("eos", running) == [
        "- qos profile MFS-hosts / uc-tx-queue 4 / no priority",
        "+ qos profile MFS-hosts / uc-tx-queue 4 / priority strict",
    ]


def test_onyx_and_junos_keep_to_their_ports_and_names() -> None:
    theirs = "interface ethernet 1/2 qos trust L2\ninterface ethernet 1/1 mtu 9216 force\nvlan 7\n"
    assert changes("onyx", rendered("onyx") + theirs) == []
    assert changes("onyx", rendered("onyx") + "interface ethernet 1/1 traffic-class 2 dcb ets wrr 5\n") == [
        "- interface ethernet 1/1 traffic-class 2 dcb ets wrr 5"
    ]
    theirs = "set protocols bgp group x\nset class-of-service schedulers theirs priority low\n"
    assert changes("junos", rendered("junos") + theirs) == []
    assert changes("junos", rendered("junos") + "set class-of-service schedulers MFS-old priority low\n") == [
        "- set class-of-service schedulers MFS-old priority low"
    ]


@pytest.mark.parametrize(("nos", "text"), [("sonic", "{"), ("cumulus", "a: [")])
def test_unreadable_running_configuration(nos: str, text: str) -> None:
    with pytest.raises(ValueError, match="configuration: not"):
        changes(nos, text)

"""NIXL's backend plugin MFS over a backend that notes what it is asked, with a daemon that does as scripted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mfsd.client.checking import destination
from tests.support.native import foreign_shim
from tests.unit.nixl.conftest import NATIVE, Plugin

ALL = re.findall(r'\{"(\w+)", \w+\}', (NATIVE / "nixl_plugin.c").read_text())
NAMES_PEER = "a_transfer_names_its_peer"
REFUSED = "a_daemon_that_refuses_the_card_is_left_alone"
FOREIGN = "beside_a_shim_of_another_version"
SPECIAL = {"untouched", "of_another_interface", NAMES_PEER, REFUSED, FOREIGN}
SCHEDULED = [test for test in ALL if test not in SPECIAL]
FORKS = "a_child_asks_nothing"
PEERS = ["decode-7", "decode-8", "käse", "10.0.0.1", "::ffff:10.0.0.1", "fe80::7", "10.0.0.256", "010.0.0.1"]
PEERS += [
    "c5a0b6f2-0a5e-4d0e-9b1c-7a6f3e1d2b4c",
    *("n" * length for length in (15, 16, 45, 46, 127, 128, 129, 256, 300)),
]


@pytest.mark.parametrize("test", SCHEDULED)
def test_transfers(plugin: Plugin, test: str) -> None:
    assert plugin.run(test) == []


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_has_the_number_that_the_adapters_give_it(plugin: Plugin, name: str) -> None:
    assert plugin.run(NAMES_PEER, PEER_NAME=name, PEER_NUMBER=str(destination(name))) == []


@pytest.mark.parametrize("name", ["10.0.0.1", "n" * 300])
def test_a_peers_number_under_the_address_sanitizer(with_asan: Plugin, name: str) -> None:
    with_asan.run(NAMES_PEER, PEER_NAME=name, PEER_NUMBER=str(destination(name)))


def test_a_backend_that_is_not_as_it_was_is_left_alone_with_one_line(plugin: Plugin) -> None:
    (line,) = plugin.run("untouched", BACKEND_CHANGED="1")
    assert "differ from the tested ones (function 12 is not 8postXfer" in line and "unscheduled" in line
    assert plugin.run("untouched", BACKEND_CHANGED="1", MFS_LOG="quiet") == []


def test_another_interface_version_is_one_line(plugin: Plugin) -> None:
    (line,) = plugin.run("of_another_interface", BACKEND_VERSION="2")
    assert "interface version 2, MFS needs 1" in line


def test_a_daemon_that_refuses_the_card_is_left_alone_with_one_line(plugin: Plugin, with_asan: Plugin) -> None:
    for built in (plugin, with_asan):
        (line,) = built.run(REFUSED)
        assert line == "mfs: NIXL's transfers run unscheduled: mfsd has no room for another network card (see its log)"


@pytest.mark.parametrize("variant", [(), ("-DEARLIER",)])
def test_a_shim_of_another_version_schedules_alone(plugin: Plugin, tmp_path: Path, variant: tuple[str, ...]) -> None:
    (line,) = plugin.run(FOREIGN, LD_PRELOAD=str(foreign_shim(tmp_path, *variant)))
    assert "its version differs" in line and "libmfs_shim alone" in line


@pytest.mark.parametrize("mode", ["off", "mark", "observe"])
def test_other_modes_leave_engines_alone(plugin: Plugin, mode: str) -> None:
    assert plugin.run("untouched", MFS_MODE=mode) == []


def test_a_wrong_mode_is_named_and_taken_as_off(plugin: Plugin) -> None:
    (line,) = plugin.run("untouched", MFS_MODE="enforced")
    assert line == "mfs: MFS_MODE=enforced is not one of off, mark, observe, enforce: taken as off"


def test_engines_that_the_adapter_asks_for_are_left_alone(plugin: Plugin) -> None:
    assert plugin.run("untouched", MFS_NIXL_ASKED="adapter") == []


@pytest.mark.parametrize("test", SCHEDULED)
def test_address_sanitizer(with_asan: Plugin, test: str) -> None:
    with_asan.run(test)


@pytest.mark.parametrize("test", [test for test in SCHEDULED if test != FORKS])
def test_thread_sanitizer(with_tsan: Plugin, test: str) -> None:
    with_tsan.run(test)


def test_the_header_says_where_its_facts_are_from() -> None:
    text = (Path(__file__).parents[3] / "csrc/nixl/abi.h").read_text()
    assert "ai-dynamo/nixl" in text and "1.4.1 and 1.5.1" in text

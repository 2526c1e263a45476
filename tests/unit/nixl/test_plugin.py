"""NIXL's backend plugin MFS over a backend that notes what it is asked, with a daemon that does as scripted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.nixl.conftest import NATIVE, Plugin

ALL = re.findall(r'\{"(\w+)", \w+\}', (NATIVE / "nixl_plugin.c").read_text())
SPECIAL = {"untouched", "of_another_interface"}
SCHEDULED = [test for test in ALL if test not in SPECIAL]
FORKS = "a_child_asks_nothing"


@pytest.mark.parametrize("test", SCHEDULED)
def test_transfers(plugin: Plugin, test: str) -> None:
    assert plugin.run(test) == []


def test_a_backend_that_is_not_as_it_was_is_left_alone_with_one_line(plugin: Plugin) -> None:
    (line,) = plugin.run("untouched", BACKEND_CHANGED="1")
    assert "not as those that were tested (function 12 is not 8postXfer" in line and "unscheduled" in line
    assert plugin.run("untouched", BACKEND_CHANGED="1", MFS_LOG="quiet") == []


def test_another_interface_version_is_one_line(plugin: Plugin) -> None:
    (line,) = plugin.run("of_another_interface", BACKEND_VERSION="2")
    assert "interface version 2, not 1" in line


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

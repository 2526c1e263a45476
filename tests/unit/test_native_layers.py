"""C files are in layers: a room's header names them from above to below, and none includes or calls one above it."""

from __future__ import annotations

import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "arbiter": ("csrc/arbiter", "state.h"),
    "base": ("csrc/base", None),
    "client": ("csrc/client", "state.h"),
    "fluid": ("csrc/fluid", "internal.h"),
    "nixl": ("csrc/nixl", "nixl.h"),
    "plan": ("csrc/plan", "state.h"),
    "queue": ("csrc/queue", "state.h"),
    "shim": ("nccl_shim/src", "records.h"),
    "soft_roce": ("csrc/soft_roce", "objects.h"),
    "worker": ("bench/testbed/worker", "worker.h"),
}
"""A room's folder, and the header whose first comment names its layers; without it, only a circle is an error."""
FOLDERS = ["nccl_shim/src", "csrc/nixl_stand_in", "csrc/nixl", "csrc/soft_roce", "csrc/arbiter", "csrc/fluid"]
FOLDERS += ["csrc/plan", "csrc/queue", "csrc/client", "csrc/base", "csrc/include/mfs"]
"""From above to below."""

Uses = dict[str, dict[str, set[str]]]
"""File -> file -> what it uses of that."""


def symbols(folder: Path, *options: str) -> dict[str, set[str]]:
    """By file: what `nm` names."""
    objects = sorted(folder.glob("*.o"))
    done = subprocess.run(["nm", "-A", "-g", *options, *objects], capture_output=True, text=True, check=True)
    found: dict[str, set[str]] = {path.stem: set() for path in objects}
    for line in done.stdout.splitlines():
        path, rest = line.split(":", 1)
        found[Path(path).stem].add(rest.split()[-1])
    return found


def calls(room: Path, folder: Path) -> Uses:
    """Functions and variables of each other's that the files of a room use."""
    sources = sorted(room.glob("*.c"))
    if not sources:
        return {}
    include = f"-I{ROOT}/csrc/include"
    subprocess.run(["cc", "-std=gnu11", "-O0", "-w", "-c", include, *sources], cwd=folder, check=True)
    home = {symbol: name for name, those in symbols(folder, "--defined-only").items() for symbol in those}
    used: Uses = {}
    for name, those in symbols(folder, "--undefined-only").items():
        used[name] = {}
        for symbol in those & home.keys():
            used[name].setdefault(home[symbol], set()).add(symbol)
    return used


def included(path: Path) -> list[Path]:
    """The project's own headers that a file includes."""
    found = []
    for quote, name in re.findall(r'^#include ([<"])([^">]+)[">]', path.read_text(), re.MULTILINE):
        header = (path.parent if quote == '"' else ROOT / "csrc/include") / name
        if quote == '"' and not header.is_file():
            header = ROOT / "csrc/include" / name
        if header.is_file():
            found.append(header.resolve())
    return found


def includes(room: Path) -> Uses:
    """The headers of each other's that the layers of a room include. A layer is a file and its header."""
    used: Uses = {}
    for path in sorted(room.glob("*.[ch]")):
        for header in included(path):
            if header.parent == room and header.stem != path.stem:
                used.setdefault(path.stem, {}).setdefault(header.stem, set()).add(header.name)
    return used


def layers(room: Path, header: str) -> list[str]:
    """The names in the header's first comment, from above to below."""
    comment = (room / header).read_text().split("*/")[0]
    return re.findall(r"^ \*   (\w+)\.[ch]\b", comment, re.MULTILINE)


def check_order(used: Uses, order: list[str], kind: str) -> None:
    for name, those in used.items():
        for below, what in those.items():
            if name in order and below in order:
                text = f"{name} {kind} {', '.join(sorted(what))} of {below}, which is above it"
                assert order.index(name) < order.index(below), text


@pytest.mark.parametrize("name", ROOMS)
def test_calls_point_down(name: str, tmp_path: Path) -> None:
    folder, header = ROOMS[name]
    used = calls(ROOT / folder, tmp_path)
    TopologicalSorter(used).prepare()  # CycleError names the files of a circle
    if header is not None:
        order = layers(ROOT / folder, header)
        assert set(used) <= set(order), f"{folder}/{header} does not name {set(used) - set(order)}"
        assert any(used.values())
        check_order(used, order, "uses")


@pytest.mark.parametrize("name", ROOMS)
def test_includes_point_down(name: str) -> None:
    folder, header = ROOMS[name]
    room = ROOT / folder
    used = includes(room)
    TopologicalSorter(used).prepare()
    if header is not None:
        order = layers(room, header)
        missing = {path.stem for path in room.glob("*.h")} - set(order) - {Path(header).stem}
        assert not missing, f"{folder}/{header} does not name {missing}"
        check_order(used, order, "includes")


def test_rooms_include_rooms_below() -> None:
    for room in FOLDERS:
        for path in sorted((ROOT / room).glob("*.[ch]")):
            for header in included(path):
                other = str(header.parent.relative_to(ROOT))
                assert FOLDERS.index(room) <= FOLDERS.index(other), f"{path.relative_to(ROOT)} includes {header}"

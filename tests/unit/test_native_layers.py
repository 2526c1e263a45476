"""Calls between C files point down: of two files of a group at most one needs the other, directly or through others.

The shim, the RDMA provider and the client call each other as their events demand, and are no groups here.
"""

from __future__ import annotations

import re
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {
    "arbiter": ("csrc/arbiter/*.c", "csrc/arbiter/state.h"),
    "fluid": ("csrc/fluid/*.c", None),
    "plan": ("csrc/plan/*.c", None),
    "queue": ("csrc/queue/*.c", None),
    "worker": ("bench/testbed/worker/*.c", "bench/testbed/worker/worker.h"),
}
"""Files of a group, and the header whose first comment names them from above to below."""


def symbols(folder: Path, *options: str) -> dict[str, set[str]]:
    """By file: what `nm` names."""
    objects = sorted(folder.glob("*.o"))
    done = subprocess.run(["nm", "-A", "-g", *options, *objects], capture_output=True, text=True, check=True)
    found: dict[str, set[str]] = {path.stem: set() for path in objects}
    for line in done.stdout.splitlines():
        path, rest = line.split(":", 1)
        found[Path(path).stem].add(rest.split()[-1])
    return found


def uses(pattern: str, folder: Path) -> dict[str, dict[str, set[str]]]:
    """File -> file below it -> what it uses of that."""
    sources = sorted(ROOT.glob(pattern))
    include = f"-I{ROOT}/csrc/include"
    subprocess.run(["cc", "-std=gnu11", "-O0", "-w", "-c", include, *sources], cwd=folder, check=True)
    home = {symbol: name for name, those in symbols(folder, "--defined-only").items() for symbol in those}
    used: dict[str, dict[str, set[str]]] = {}
    for name, those in symbols(folder, "--undefined-only").items():
        used[name] = {}
        for symbol in those & home.keys():
            used[name].setdefault(home[symbol], set()).add(symbol)
    return used


@pytest.mark.parametrize("group", GROUPS)
def test_calls_point_down(group: str, tmp_path: Path) -> None:
    pattern, header = GROUPS[group]
    used = uses(pattern, tmp_path)
    assert len(used) > 1 and any(used.values())
    TopologicalSorter(used).prepare()  # CycleError names the files of a circle
    if header is None:
        return
    comment = (ROOT / header).read_text().split("*/")[0]
    order = re.findall(r"^ \*   (\w+)\.[ch] ", comment, re.MULTILINE)
    for name in order:
        for below in used[name].keys() & set(order):
            what = ", ".join(used[name][below])
            assert order.index(name) < order.index(below), f"{name}.c uses {what} of {below}.c, which is above it"

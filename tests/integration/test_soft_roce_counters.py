"""Counters of the soft RoCE device: files as a kernel driver has them, read as those of any port."""

from __future__ import annotations

import json
import sys

import pytest

from mfsd.fabric.port_counters import PortCounters
from tests.conftest import SoftRoce

SIZE, COUNT = 65536, 2000
BYTES = SIZE * COUNT
READ = """
import json, sys
from mfsd.fabric.port_counters import PortReader
found = PortReader("mfs0").read()
print(json.dumps([found.bytes, found.priority_bytes]))
"""


def counters(soft_roce: SoftRoce) -> PortCounters:
    whole, by_priority = json.loads(soft_roce.run(sys.executable, "-c", READ).stdout)
    return PortCounters(0, tuple(whole), (tuple(by_priority[0]), tuple(by_priority[1])))


@pytest.mark.parametrize(("command", "priority"), [("ib_write_bw --tclass 136", 4), ("ib_read_bw", 0)])
def test_what_programs_move_is_counted_in_both_directions(soft_roce: SoftRoce, command: str, priority: int) -> None:
    holder = soft_roce.start("sh", "-c", "echo ready; exec sleep 100")  # the device stays as it is
    assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
    assert counters(soft_roce).bytes == (0, 0)
    options = ("-s", str(SIZE), "-n", str(COUNT), "-F", "-d", "mfs0")
    soft_roce.pair(*command.split(), *options)
    found = counters(soft_roce)
    for direction in (0, 1):  # both ends are this device
        assert BYTES <= (found.bytes[direction] or 0) < BYTES * 1.02
        assert found.priority_bytes[direction][priority] >= BYTES
        assert sum(found.priority_bytes[direction]) == found.bytes[direction]


def test_words_are_of_four_bytes(soft_roce: SoftRoce) -> None:
    soft_roce.start("sh", "-c", "echo ready; exec sleep 100")
    soft_roce.pair("ib_send_bw", "-c", "UD", "-s", "4096", "-n", "500", "-F", "-d", "mfs0")
    folder = "/sys/class/infiniband/mfs0/ports/1"
    shown = soft_roce.run("sh", "-c", f"cd {folder}; cat counters/port_xmit_data hw_counters/tx_prio*_bytes").stdout
    words, *priorities = map(int, shown.split())
    assert words == sum(priorities) // 4 >= 4096 * 500 // 4

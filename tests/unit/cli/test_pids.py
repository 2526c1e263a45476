"""Numbers of processes in another PID namespace are found by the kernel's own table."""

from __future__ import annotations

from pathlib import Path

from mfsd.cli.pids import Pids, _numbers
from mfsd.node.totals import Totals
from tests.unit.observe.test_metrics import CLIENT, status


def process(proc: Path, pid: int, numbers: str, space: str) -> None:
    (proc / str(pid) / "ns").mkdir(parents=True)
    (proc / str(pid) / "ns/pid").symlink_to(f"pid:[{space}]")
    (proc / str(pid) / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\n")


def test_numbers_are_translated_both_ways(tmp_path: Path) -> None:
    process(tmp_path, 100, "100 1", "inside")
    process(tmp_path, 4000, "4000 4711", "inside")
    process(tmp_path, 4711, "4711", "outside")
    pids = Pids(tmp_path / "missing.sock", 1)
    assert pids.here == {} and pids.of_daemon(7) == 7, "no daemon to ask: they stay"
    pids.here = _numbers(tmp_path, 100)
    assert pids.here == {1: 100, 4711: 4000}
    shown = pids.shown(status([CLIENT], Totals()))
    assert (shown.daemon.pid, shown.clients[0].pid) == (100, 4000)
    assert pids.of_daemon(4000) == 4711

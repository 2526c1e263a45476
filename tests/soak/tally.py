"""What a soak counts, and the report of it."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.soak.nodes import Waits

SAID_MAX = 3000


class Tally:
    """Shared by all threads of a soak."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._transfers: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._excused: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._recovered_s: defaultdict[str, list[float]] = defaultdict(list)
        self.problems: list[tuple[str, str]] = []
        """Kind (`lost`, `corrupted`, `growth`, `recovery`, `wait`) and what happened."""

    def moved(self, who: str, transfers: int, size_bytes: int) -> None:
        with self._lock:
            self._runs[who] += 1
            self._transfers[who] += transfers
            self._bytes[who] += size_bytes
        if not transfers:
            self.lost(who, "it ended well and has moved nothing")

    def excused(self, who: str) -> None:
        with self._lock:
            self._excused[who] += 1

    def lost(self, who: str, output: str) -> None:
        self.problem("lost", f"{who}: {output[-SAID_MAX:]}")

    def corrupted(self, who: str, output: str) -> None:
        self.problem("corrupted", f"{who}: {output[-SAID_MAX:]}")

    def problem(self, kind: str, what: str) -> None:
        with self._lock:
            self.problems.append((kind, what))
        print(f"{kind}: {what}", file=sys.stderr, flush=True)

    def killed(self, what: str) -> None:
        with self._lock:
            self._kills[what] += 1

    def recovered(self, what: str, after_s: float) -> None:
        with self._lock:
            self._recovered_s[what].append(after_s)

    def count(self, kind: str) -> int:
        return sum(1 for k, _ in self.problems if k == kind)

    def progress(self) -> str:
        """One line."""
        with self._lock:
            moved = f"{sum(self._transfers.values()):,} transfers, {sum(self._bytes.values()) / 1e9:.2f} GB"
            kills = sum(self._kills.values())
        return f"{moved}, {kills} faults, lost {self.count('lost')}, corrupted {self.count('corrupted')}"

    def report(
        self, seed: int, growth: dict[str, Any], waits: Mapping[str, tuple[float, Waits]] | None = None
    ) -> dict[str, Any]:
        """`waits`: by node, its `max_hold` in seconds and what was seen there."""
        with self._lock:
            return {
                "seed": seed,
                "seconds": round(time.monotonic() - self._began_s, 1),
                "transfers": sum(self._transfers.values()),
                "bytes": sum(self._bytes.values()),
                "lost": self.count("lost"),
                "corrupted": self.count("corrupted"),
                "programs": {
                    who: {
                        "runs": self._runs[who],
                        "ended_with_their_killer": self._excused[who],
                        "transfers": self._transfers[who],
                        "bytes": self._bytes[who],
                    }
                    for who in sorted(self._runs.keys() | self._excused.keys())
                },
                "faults": dict(sorted(self._kills.items())),
                "recovery_s": {
                    what: {
                        "median": round(statistics.median(all_s), 3),
                        "longest": round(max(all_s), 3),
                        "count": len(all_s),
                    }
                    for what, all_s in sorted(self._recovered_s.items())
                },
                "growth": growth,
                "waits": {
                    name: {
                        "max_hold_s": max_hold_s,
                        "longest_s": round(seen.longest_s, 3),
                        "of": seen.longest,
                        "failed_open": seen.failed_open(),
                    }
                    for name, (max_hold_s, seen) in (waits or {}).items()
                },
                "problems": [{"kind": kind, "what": what} for kind, what in self.problems],
                "held": not self.problems,
            }


def text(report: dict[str, Any]) -> str:
    """For people."""
    lines = [
        f"{report['seconds']:g} s, seed {report['seed']}: {report['transfers']:,} transfers, "
        f"{report['bytes'] / 1e9:.2f} GB",
        f"lost = {report['lost']}, corrupted = {report['corrupted']}",
        "",
        f"{'program':28} {'runs':>6} {'killed':>7} {'transfers':>12} {'GB':>8}",
    ]
    for who, row in report["programs"].items():
        lines.append(
            f"{who:28} {row['runs']:6} {row['ended_with_their_killer']:7} {row['transfers']:12,} "
            f"{row['bytes'] / 1e9:8.2f}"
        )
    lines += ["", f"{'fault':28} {'count':>6} {'recovery, median':>17} {'longest':>9}"]
    for what, count in report["faults"].items():
        seen = report["recovery_s"].get(what)
        times = f"{seen['median']:15.2f} s {seen['longest']:7.2f} s" if seen else f"{'-':>17} {'-':>9}"
        lines.append(f"{what:28} {count:6} {times}")
    lines += ["", f"{'daemon, most in one life':28} {'memory':>9} {'descriptors':>12} {'threads':>8}"]
    for name, row in report["growth"].items():
        lines.append(f"{name:28} {row['memory_bytes'] / 2**20:+7.1f}MB {row['descriptors']:+12} {row['threads']:+8}")
    for name, row in report["waits"].items():
        opened = ", ".join(f"{why} {count:,}" for why, count in row["failed_open"].items())
        longest = f"longest wait seen {row['longest_s']:.2f} s ({row['of']}) with max_hold {row['max_hold_s']:g} s"
        lines.append(f"{name}: {longest}; without a permit: {opened}")
    lines += [f"{p['kind']}: {p['what']}" for p in report["problems"]]
    return "\n".join(lines)

"""python -m tests.e2e.demo_serve: three replicas of vLLM behind one address, one of them killed: make demo-serve."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.e2e.replicas import NAMES, Outcome, Replicas, running, with_a_death

BEFORE, AFTER = 12, 12
KILLED = "b"


def main() -> int:
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="mfs-demo-serve-"))
    console.print("Starting three vLLM servers (a small random model, on the CPU) and a gateway ...")
    with running(Replicas(folder)) as made:
        address = f"http://127.0.0.1:{made.gateway_port}"
        console.print(
            f"One address: {address}. {BEFORE} requests stream; replica {KILLED} is killed; {AFTER} more come."
        )
        outcomes = with_a_death(made, KILLED, BEFORE, AFTER)
        received = made.received()
    console.print(table(outcomes, received))
    good = whole(outcomes, received)
    console.print(verdict(outcomes, received))
    if good:
        shutil.rmtree(folder)
    else:
        console.print(f"logs: {folder}")
    return 0 if good else 1


def table(outcomes: list[Outcome], received: dict[str, Counter[str]]) -> Table:
    made = Table(title="Requests, by replica")
    for heading in ("replica", "received by vLLM", "answered whole", "ended with an error", "events"):
        made.add_column(heading, justify="left" if heading == "replica" else "right")
    for name in NAMES:
        mine = [one for one in outcomes if one.replica == name]
        done = sum(one.end == "done" for one in mine)
        events = sum(one.events for one in mine)
        shown = f"{name} (killed)" if name == KILLED else name
        made.add_row(shown, str(sum(received[name].values())), str(done), str(len(mine) - done), str(events))
    return made


def lost(outcomes: list[Outcome]) -> list[Outcome]:
    """Neither answered whole nor ended with an error that says why."""
    return [one for one in outcomes if one.end not in ("done", "engine_lost")]


def twice(received: dict[str, Counter[str]]) -> list[str]:
    """Requests that reached engines more than once."""
    times = sum(received.values(), Counter[str]())
    return sorted(name for name, count in times.items() if count > 1)


def whole(outcomes: list[Outcome], received: dict[str, Counter[str]]) -> bool:
    times = sum(received.values(), Counter[str]())
    return not lost(outcomes) and not twice(received) and len(times) == len(outcomes)


def verdict(outcomes: list[Outcome], received: dict[str, Counter[str]]) -> str:
    ends = Counter(one.end for one in outcomes)
    return (
        f"{len(outcomes)} requests: {ends['done']} answered whole, {ends['engine_lost']} ended with the error that "
        f"their engine was lost, {len(lost(outcomes))} lost without an error, {len(twice(received))} run twice."
    )


if __name__ == "__main__":
    sys.exit(main())

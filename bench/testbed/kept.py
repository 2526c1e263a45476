"""Legs of several scenarios in one file: a run that was stopped goes on, and the page is written from the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bench.testbed import show
from bench.testbed.leg import LegResult
from bench.testbed.measure import Result, machine
from bench.testbed.modes import parse_modes, rotated
from bench.testbed.rounds import run_rounds
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario


class Case(NamedTuple):
    scenario: Scenario
    modes: str
    """The others are compared with the first."""


class Kept:
    """Figures of legs, written after each leg."""

    def __init__(self, path: Path, kinds: Sequence[str]) -> None:
        self.path = path
        self.content: dict[str, Any] = {"machine": machine(), "machines": {}, **{kind: {} for kind in kinds}}
        if path.exists():
            self.content |= json.loads(path.read_text())
        path.parent.mkdir(parents=True, exist_ok=True)

    def of(self, kind: str, case: str) -> list[Result]:
        found: list[Result] = self.content[kind].setdefault(case, [])
        return found

    def lacks(self, kind: str, case: str, mode: str, seed: int) -> bool:
        return not any(row["mode"] == mode and row["seed"] == seed for row in self.of(kind, case))

    def add(self, kind: str, case: str, row: Result) -> None:
        self.of(kind, case).append(row)
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text(json.dumps(self.content) + "\n")
        beside.replace(self.path)


def measure(console: Console, kept: Kept, cases: Mapping[str, Case], seeds: Sequence[int], asked: bool = False) -> None:
    """Runs the missing legs; must be in a sandbox. `asked`: only those with a coordinator, which is asked for
    forecasts."""
    kind = "asked" if asked else "measured"
    for name, case in cases.items():
        for seed in seeds:
            modes = rotated(parse_modes(case.modes, case.scenario.lanes), seed)
            missing = [
                mode for mode in modes if kept.lacks(kind, name, mode.name, seed) and (mode.coordinator or not asked)
            ]

            def keep(result: Result, _: LegResult, name: str = name) -> None:
                if asked:
                    kept.content.setdefault("asked on", machine())
                else:
                    kept.content["machines"].setdefault(name, machine())
                kept.add(kind, name, result)
                console.print(show.line(result), highlight=False)

            if missing:
                run_rounds(case.scenario, [seed], missing, Scale(), lambda _: None, keep, oracle=asked)

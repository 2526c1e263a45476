"""Runs the legs of a comparison: every seed is a round, in which all modes serve the same requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.sim.cluster import ConfigError
from bench.sim.point import saturation
from bench.testbed.build import build_worker
from bench.testbed.hosts import Hosts
from bench.testbed.leg import Leg, LegResult
from bench.testbed.measure import Result, configuration, machine, result_of
from bench.testbed.modes import Mode, rotated
from bench.testbed.scale import Scale
from bench.testbed.scenario import Scenario, cluster_of, requests_of


class Moment(msgspec.Struct):
    """The progress of a run."""

    leg: int
    legs: int
    mode: str
    seed: int
    served: int
    requests: int


Tell = Callable[[Moment], None]


def run_rounds(
    scenario: Scenario,
    seeds: Sequence[int],
    modes: Sequence[Mode],
    scale: Scale,
    tell: Tell,
    keep: Callable[[Result, LegResult], None],
    watch: tuple[str, ...] = (),
    oracle: bool = False,
) -> None:
    """Interleaves the modes: their order rotates from round to round, so that a drift of the machine affects all alike.
    `keep` gets every leg's figures as soon as it has ended. `oracle`: the coordinator is also asked how long each load
    will take. Must run in a sandbox (mfsd.playground.sandbox)."""
    program = build_worker()
    legs = len(seeds) * len(modes)
    done = 0
    with Hosts(scenario.hosts, scale.link_bits_per_s, scenario.slow_hosts) as hosts:
        for turn, seed in enumerate(seeds):
            this = msgspec.structs.replace(scenario, seed=seed)
            for mode in rotated(list(modes), turn):
                cluster = cluster_of(this)
                requests = requests_of(this, cluster)
                load = this.rate / saturation(cluster, requests)
                moment = Moment(done, legs, mode.name, seed, 0, len(requests))
                tell(moment)

                def progress(served: int, _: int, moment: Moment = moment) -> None:
                    tell(msgspec.structs.replace(moment, served=served))

                with Leg(hosts, program, mode, this, cluster, scale, oracle) as leg:
                    result = leg.run(requests, progress, watch)
                keep(result_of(result, this, load), result)
                done += 1


class ResultFile:
    """Results written after every leg, so that a stopped run keeps what it has."""

    def __init__(self, path: Path | None, scenario: Scenario, scale: Scale) -> None:
        self.path = path
        self.content: dict[str, Any] = {"config": configuration(scenario, scale), "machine": machine(), "results": []}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    @property
    def results(self) -> list[Result]:
        found: list[Result] = self.content["results"]
        return found

    def add(self, result: Result) -> None:
        self.results.append(result)
        self.save()

    def save(self) -> None:
        if self.path is None:
            return
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text(json.dumps(self.content, indent=1) + "\n")
        beside.replace(self.path)


def parse_seeds(text: str) -> list[int]:
    """Returns the seeds of a list such as 1,2,3, each once. Raises ConfigError."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seed {text}: use whole numbers separated by commas") from None
    return list(dict.fromkeys(seeds))

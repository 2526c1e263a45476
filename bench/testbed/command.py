"""python -m bench testbed: serves generated requests with real bytes between network namespaces, once for each mode."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.fabric.lab import missing
from bench.sim.cluster import ConfigError
from bench.sim.serve import SCHEDULERS
from bench.sim.workload import TraceError
from bench.testbed import overhead, page, show
from bench.testbed.build import BuildError
from bench.testbed.leg import LegResult
from bench.testbed.measure import Result
from bench.testbed.modes import (
    BACKLOG,
    BACKLOG_SAYS,
    MODES,
    REUSE,
    WITH_REQUESTS,
    Mode,
    check_fetch,
    parse_modes,
)
from bench.testbed.processes import LegError
from bench.testbed.rounds import Moment, ResultFile, parse_seeds, run_rounds
from bench.testbed.scale import Scale, parse_rate
from bench.testbed.scenario import FETCHES, RATES, WORKLOADS, Scenario
from bench.testbed.simulate import not_simulated, simulated
from mfsd.playground.sandbox import SandboxError, run_sandboxed

EXAMPLES = """
examples:
  python -m bench testbed                                              # all modes, one seed, about eight minutes
  python -m bench testbed --modes fifo,mfs --duration 30 --seed 1,2,3 --workload agent
  python -m bench testbed --modes fifo,dscp-size,static,mfs --duration 60 --seed 1,2,3,4,5 --json out/testbed.json
  python -m bench testbed --fetch loaded --modes fifo,dscp,mfs,mfs+fit,mfs+fit+slo    # requests beside the network
  python -m bench testbed --simulate --json out/with-simulator.json    # beside what the simulator expects
  python -m bench testbed --overhead                                   # what MFS costs when nothing competes

Runs as root, or as an ordinary user where the kernel allows user namespaces. Everything it makes (hosts, queues,
processes) vanishes with it, also on Ctrl-C. docs/testbed.md says what is real and what is scaled.
"""


def _add_requests(p: argparse.ArgumentParser) -> None:
    """Adds the options of batches and of reused KV."""
    p.add_argument(
        "--scheduler",
        default="fcfs",
        metavar="S",
        help="rule for who shares a batch, in modes whose names have none: "
        f"{', '.join(f'{name}: {says}' for name, (says, _) in SCHEDULERS.items())}",
    )
    p.add_argument(
        "--reuse",
        default="always",
        metavar="R",
        help="rule for reused KV, in modes whose names have none: "
        + "; ".join(f"{name}: {says}" for name, says in REUSE.items()),
    )
    p.add_argument(
        "--fetch",
        default="batch",
        metavar="WHEN",
        help="when units ask for reused KV: " + "; ".join(f"{name}: {says}" for name, says in FETCHES.items()),
    )


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench testbed",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    modes = "; ".join(f"{m.name}: {m.says}" for m in MODES.values())
    p.add_argument(
        "--modes",
        metavar="A,B",
        help=f"modes to compare (default all). {modes}. A name may add +SCHEDULER and +REUSE, such as "
        f"{WITH_REQUESTS}. With +{BACKLOG}: {BACKLOG_SAYS}",
    )
    _add_requests(p)
    p.add_argument(
        "--duration", type=float, default=60.0, metavar="S", help="time in which requests arrive (default 60)"
    )
    p.add_argument(
        "--seed", default="1", metavar="S[,S...]", help="seeds; a round for each, all modes, same requests (default 1)"
    )
    p.add_argument(
        "--workload", default="conversation", help=f"{', '.join(WORKLOADS)}, a generator of bench sim or a trace"
    )
    p.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="requests/s per prefill GPU of the cluster that is played (default: where fifo meets about half of the "
        f"deadlines: {', '.join(f'{name} {rate:g}' for name, rate in RATES.items())})",
    )
    p.add_argument(
        "--link", default="300mbit", metavar="RATE", help="rate of ports; stands for 50gbit (default 300mbit)"
    )
    p.add_argument(
        "--time-scale", type=float, default=2.0, metavar="X", help="seconds for each cluster second (default 2)"
    )
    p.add_argument("--decode-hosts", type=int, default=1, metavar="N", help="decode workers (default 1)")
    p.add_argument("--pool-hosts", type=int, default=1, metavar="N", help="owners of the cached KV (default 1)")
    p.add_argument(
        "--slow-owner",
        type=float,
        default=1.0,
        metavar="X",
        help="rate of the last owner's link, relative to the others (default 1)",
    )
    p.add_argument("--no-lanes", action="store_true", help="use one lane for all classes: the wire mixes them")
    p.add_argument(
        "--signals",
        default="all",
        metavar="WHICH",
        help="signaled work requests of collectives: all, or as nccl: the last of a transfer, and one of 256 "
        "clear-to-send writes (default all)",
    )
    p.add_argument(
        "--kv-scale", type=float, default=1.8, metavar="X", help="KV bytes per token, times the model's (default 1.8)"
    )
    p.add_argument(
        "--slo-factor", type=float, default=3.0, metavar="F", help="deadline: F times the isolated TTFT (default 3)"
    )
    p.add_argument("--overhead", action="store_true", help="measure instead what MFS costs at a low load")
    p.add_argument("--simulate", action="store_true", help="also show what the simulator expects")
    p.add_argument("--json", type=Path, metavar="FILE", help="file for the results, written after every leg")
    p.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="PNG of the contended links over time, by class; a page for browsers, with the table, beside it (.html)",
    )
    return p


def scenario_of(options: argparse.Namespace) -> tuple[Scenario, Scale]:
    scale = Scale(parse_rate(options.link), options.time_scale)
    rate = options.rate if options.rate is not None else RATES.get(options.workload)
    if rate is None:
        raise ConfigError(f"--workload {options.workload}: add --rate: this workload has no default rate")
    scenario = Scenario(
        workload=options.workload,
        rate=rate,
        duration_s=options.duration / scale.time,
        decode_hosts=options.decode_hosts,
        pool_hosts=options.pool_hosts,
        slow_owner=options.slow_owner,
        lanes=not options.no_lanes,
        signals=options.signals,
        fetch=options.fetch,
        kv_scale=options.kv_scale,
        slo_factor=options.slo_factor,
    )
    return scenario, scale


def run(
    console: Console, scenario: Scenario, scale: Scale, modes: list[Mode], seeds: list[int], file: ResultFile
) -> list[LegResult]:
    """Runs all legs with live progress; returns those of the last round."""
    legs: list[LegResult] = []
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TextColumn("requests"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=1)

        def tell(moment: Moment) -> None:
            text = f"[{moment.leg + 1}/{moment.legs}] {moment.mode}, seed {moment.seed}"
            if moment.served == 0:
                text += ": starting"
            progress.update(task, description=text, completed=moment.served, total=moment.requests)

        def keep(result: Result, leg: LegResult) -> None:
            file.add(result)
            legs.append(leg)
            progress.console.print(show.line(result), highlight=False)

        run_rounds(scenario, seeds, modes, scale, tell, keep, show.WATCHED)
    return legs[-len(modes) :]


def main(arguments: list[str]) -> int:
    console = Console()
    try:
        options = parser().parse_args(arguments)
        scenario, scale = scenario_of(options)
        modes = parse_modes(options.modes, scenario.lanes, options.scheduler, options.reuse)
        check_fetch(modes, scenario.fetch)
        seeds = parse_seeds(options.seed)
        if options.simulate and (reason := not_simulated(scenario)):
            raise ConfigError(f"--simulate: {reason}")
        if options.overhead and not scenario.lanes:
            raise ConfigError("--overhead: measured against fixed priorities on the wire; leave out --no-lanes")

        def inside() -> int:
            try:
                if lack := missing():
                    raise SandboxError(lack)
                if options.overhead:
                    return overhead.run(console, scenario, scale, seeds, ResultFile(options.json, scenario, scale))
                file = ResultFile(options.json, scenario, scale)
                console.print(scale.describe(), highlight=False)
                legs = run(console, scenario, scale, modes, seeds, file)
                show.table(console, file.results, modes)
                show.bars(console, legs, scale)
                if options.picture:
                    show.picture(options.picture, legs, scale)
                    web = options.picture.with_suffix(".html")
                    page.write(web, page.summary(file.results, modes), legs, file.results, modes, scale)
                if options.simulate:
                    rounds = [msgspec.structs.replace(scenario, seed=seed) for seed in seeds]
                    file.content["simulated"] = [simulated(r, scale, m) for r in rounds for m in modes]
                    file.save()
                    show.cross_check(console, file.results, file.content["simulated"], modes)
            except (ConfigError, TraceError, LegError, BuildError, SandboxError, OSError) as error:
                print(f"bench testbed: {error}", file=sys.stderr)
                return 2
            except KeyboardInterrupt:
                print("bench testbed: stopped; the --json file has the finished legs", file=sys.stderr)
                return 130
            return 0

        return run_sandboxed(inside)
    except (ConfigError, SandboxError) as error:
        print(f"bench testbed: {error}", file=sys.stderr)
        return 2

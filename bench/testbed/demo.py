"""python -m bench.testbed.demo: the first demonstration for a newcomer, as `make demo` runs it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from bench.sim.cluster import ConfigError
from bench.testbed import page, show
from bench.testbed.build import BuildError
from bench.testbed.command import run
from bench.testbed.hosts import Hosts
from bench.testbed.measure import (
    Result,
    chance_of_fewer,
    change,
    difference,
    machine,
    only_one_met,
    over_seeds,
)
from bench.testbed.modes import WITH_REQUESTS, Mode, parse_modes
from bench.testbed.processes import LegError
from bench.testbed.rounds import ResultFile
from bench.testbed.scale import Scale
from bench.testbed.scenario import SIGNALS, Scenario
from mfsd.playground.sandbox import SandboxError, run_sandboxed

MODES = f"fifo,dscp,mfs,{WITH_REQUESTS}"
MODES_ON_ONE_LANE = f"fifo,static,mfs,{WITH_REQUESTS}"
PEERS = {"dscp": "fixed priorities", "static": "stage order and deadlines in the host's queue"}
"""The modes that MFS is compared with, in words: the best ones without MFS, with lanes and without."""
DURATION_S = 10.0
RATE = 2.3
"""Requests/s per GPU: fifo meets a third to a half of the deadlines of legs this short."""
NO_HOSTS = 3
"""Exit status of the inner demo: this kernel cannot make such hosts."""
SEEDS = [1, 2]
SIGNALS_HELP = "Signaled work requests of collectives: all, or as few as NCCL's."
CHANCE_LEAST = 0.001
"""MFS counts as having missed more deadlines than its peer if the requests that were in time only with the peer
outnumber those that were in time only with MFS by more than chance explains once in a thousand demos. Requests of one
batch are late together, so their number overstates the difference. The two modes are within a few points
(docs/testbed.md), which two short rounds cannot distinguish. The measured values are printed."""


class Verdict(msgspec.Struct):
    """MFS wins if first tokens and collectives are faster and more deadlines are met than without a scheduler, and not
    fewer deadlines than with its peer: fixed priorities or, without lanes, the host's queue alone. With requests it
    must not meet fewer than without."""

    ttft_change: float
    cct_change: float
    points_over_fifo: float
    points_over_peer: float
    only_mfs: int
    only_peer: int
    """Requests that were in time in one mode and not in the other."""
    only_requests: int = 0
    """Requests that were in time only if MFS also orders requests; and those that were in time only with MFS alone."""
    only_network: int = 0

    @property
    def wins(self) -> bool:
        return (
            self.ttft_change < 0
            and self.cct_change < 0
            and self.points_over_fifo > 0
            and chance_of_fewer(self.only_mfs, self.only_peer) >= CHANCE_LEAST
            and chance_of_fewer(self.only_requests, self.only_network) >= CHANCE_LEAST
        )


def verdict(results: Sequence[Result], peer: str = "dscp") -> Verdict:
    served = any(result["mode"] == WITH_REQUESTS for result in results)
    return Verdict(
        change(results, "mfs", "fifo", "ttft_s.mean").mean,
        change(results, "mfs", "fifo", "cct_s.mean").mean,
        difference(results, "mfs", "fifo", "slo_attainment").mean,
        difference(results, "mfs", peer, "slo_attainment").mean,
        *only_one_met(results, "mfs", peer),
        *(only_one_met(results, WITH_REQUESTS, "mfs") if served else (0, 0)),
    )


def sentence(result: Verdict, results: Sequence[Result], peer: str = "dscp") -> str:
    fifo, mfs = (over_seeds(results, mode, "slo_attainment").mean for mode in ("fifo", "mfs"))
    text = (
        f"MFS {'wins' if result.wins else 'does NOT win'}: first tokens {result.ttft_change:+.0%}, collectives "
        f"{result.cct_change:+.0%}, {mfs:.0%} of the requests in time instead of {fifo:.0%} "
        f"({result.points_over_peer * 100:+.0f} points against {PEERS[peer]}: {result.only_mfs} requests in time "
        f"with MFS only, {result.only_peer} with {'those' if peer == 'dscp' else 'that'} only)"
    )
    if not any(each["mode"] == WITH_REQUESTS for each in results):
        return text + "."
    both = over_seeds(results, WITH_REQUESTS, "slo_attainment").mean
    return text + (
        f"; {both:.0%} where it orders requests, too ({result.only_requests} in time so only, {result.only_network} "
        "without only)."
    )


def additions(results: Sequence[Result], modes: Sequence[Mode], peer: str = "dscp") -> dict[str, str]:
    """Describes in words what each mode adds to the one before it."""
    names = {"fifo": "no scheduler", peer: PEERS[peer], "mfs": "MFS orders the network", WITH_REQUESTS: "and requests"}
    found = {}
    for before, mode in zip([None, *modes], modes, strict=False):
        share = over_seeds(results, mode.name, "slo_attainment").mean
        text = f"{names.get(mode.name, mode.name)}: {share:.0%} in time"
        if before is not None:
            more = difference(results, mode.name, before.name, "slo_attainment").mean
            text += f", {more * 100:+.0f} points"
        found[mode.name] = text
    return found


def introduce(console: Console, scenario: Scenario, scale: Scale, modes: Sequence[Mode]) -> None:
    switch = "with eight strict priorities:" if scenario.lanes else "on which all travels alike:"
    lines = [
        f"{len(scenario.hosts)} hosts (network namespaces) around a switch {switch}",
        f"two prefill units of two ranks, a KV pool, {scenario.decode_hosts} decode workers. They compute by",
        "profile (they wait) and move real bytes with RDMA verbs: KV fetches,",
        "all-to-alls of each layer, KV pushes.",
        *textwrap.wrap(f"Scale: {scale.describe()}.", 78),
        "",
        "The same requests are served by:",
        *(line for mode in modes for line in _named(mode)),
        "",
    ]
    console.print("[bold]A small LLM serving cluster on this machine[/bold]")
    for text in lines:
        console.print(text, highlight=False, markup=False)


def _named(mode: Mode) -> list[str]:
    """Returns its name and what it does, a line for each part."""
    first, *rest = textwrap.wrap(mode.says, 64)
    return [f"  {mode.name:11} {first}", *(f"  {'':11} {text}" for text in rest)]


def serve(console: Console, json_file: Path, picture: Path, lanes: bool, signals: str) -> int:
    """Runs the demo inside its own namespaces. Returns the exit status: 0 MFS wins, 1 it does not, 2 it failed,
    NO_HOSTS."""
    scale = Scale()
    scenario = Scenario(rate=RATE, duration_s=DURATION_S / scale.time, lanes=lanes, signals=signals, fetch="loaded")
    modes = parse_modes(MODES if lanes else MODES_ON_ONE_LANE, lanes)
    peer = modes[1].name
    started = time.monotonic()
    introduce(console, scenario, scale, modes)
    try:
        with Hosts(["probe"], scale.link_bits_per_s):
            pass
    except OSError as error:
        console.print(f"This kernel makes no such hosts: {error}", highlight=False)
        return NO_HOSTS
    try:
        file = ResultFile(json_file, scenario, scale)
        legs = run(console, scenario, scale, modes, SEEDS, file)
    except (LegError, BuildError, ConfigError, OSError) as error:
        console.print(f"[red]The demo stopped:[/red] {error}", highlight=False)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped; hosts, queues and programs are gone.")
        return 130
    legs = sorted(legs, key=lambda leg: [m.name for m in modes].index(leg.mode))
    show.table(console, file.results, modes)
    adds = additions(file.results, modes, peer)
    for name, text in adds.items():
        console.print(f"  {name:11} {text}", highlight=False, markup=False)
    console.print()
    show.bars(console, [leg for leg in legs if leg.mode in ("fifo", WITH_REQUESTS)], scale)
    show.picture(picture, legs, scale, adds)
    result = verdict(file.results, peer)
    output = sentence(result, file.results, peer)
    web = picture.with_suffix(".html")
    page.write(web, output, legs, file.results, modes, scale, adds)
    console.print(output, style="bold green" if result.wins else "bold red", highlight=False)
    for text in (
        f"Picture: {picture}, with the table for a browser: {web}, figures: {json_file}.",
        f"{time.monotonic() - started:.0f} s on {machine()}.",
        "Next: python -m bench testbed --help    other loads, workloads and modes",
        "      python -m bench sim --help        the same scheduler on 2,048 GPUs, simulated",
        "      docs/testbed.md                   what is real here, what is scaled, all figures",
    ):
        console.print(text, highlight=False, markup=False)
    return 0 if result.wins else 1


@click.command()
@click.option("--json", "json_file", default="out/demo.json", show_default=True, type=click.Path(path_type=Path))
@click.option("--picture", default="out/demo.png", show_default=True, type=click.Path(path_type=Path))
@click.option("--no-lanes", is_flag=True, help="One lane for all classes: the wire keeps nothing apart.")
@click.option("--signals", default="all", show_default=True, type=click.Choice(SIGNALS), help=SIGNALS_HELP)
def main(json_file: Path, picture: Path, no_lanes: bool, signals: str) -> None:
    """A serving cluster in network namespaces: TTFT without a scheduler, with fixed priorities, with MFS, and with MFS
    that orders requests, too.

    Needs root or user namespaces; where there are neither it falls back to two programs on one rate-limited software
    device. Exits 0 when MFS wins, 1 when it does not, 2 when something failed.
    """
    console = Console()
    try:
        sys.exit(run_sandboxed(lambda: serve(console, json_file, picture, not no_lanes, signals)))
    except SandboxError as error:
        console.print(f"This machine cannot make hosts of its own: {error}.", highlight=False)
        console.print("Instead: two programs on one software device of 1 Gbit/s (as root you would see the cluster).")
    command = [sys.executable, "-m", "bench.testbed.fallback", "--json", str(json_file)]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()

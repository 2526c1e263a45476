"""python -m bench.demo: the demo as `make demo` runs it."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.demo import show
from bench.demo.measure import Run, Verdict, completion_times_s, verdict
from bench.demo.programs import ProgramError, Stage

LINK_GBIT_PER_S = 1.0
ROUND_BYTES = 16 << 20
GAP_MS = 60
LEAD_CALLS = 12  # bulk calls before the all-to-all starts and after it ends: its idle time


class Report(msgspec.Struct):
    machine: str
    cores: int
    link_gbit_per_s: float
    repetitions: int
    verdict: Verdict
    alone: list[Run]
    without_mfs: list[Run]
    with_mfs: list[Run]


def run_alone(stage: Stage, rounds: int) -> Run:
    collective = stage.alltoall(False, rounds, ROUND_BYTES, GAP_MS)
    collective.finish()
    calls = collective.calls()
    return Run(rounds_s=completion_times_s(calls), collective=calls, bulk=[])


def run_together(stage: Stage, rounds: int, mfs: bool) -> Run:
    """Bulk alone, then both, then bulk alone again."""
    bulk = stage.bulk_write(mfs)
    bulk.wait_lines(1 + LEAD_CALLS)
    collective = stage.alltoall(mfs, rounds, ROUND_BYTES, GAP_MS)
    collective.finish()
    bulk.wait_lines(len(bulk.lines) + LEAD_CALLS)
    bulk.finish()
    calls = collective.calls()
    return Run(rounds_s=completion_times_s(calls), collective=calls, bulk=bulk.calls())


@click.command()
@click.option("--rounds", default=6, show_default=True, help="All-to-all rounds in each run.")
@click.option("--repetitions", default=3, show_default=True, help="Runs of each kind, interleaved.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures and calls to FILE.")
@click.option("--picture", default="out/demo.png", show_default=True, type=click.Path(path_type=Path))
def main(rounds: int, repetitions: int, json_file: Path | None, picture: Path) -> None:
    """Two unmodified RDMA programs on one software device of 1 Gbit/s, without MFS and with it.

    An all-to-all with NCCL's habits (it blocks the next layer of a model) runs beside a bulk write of the stock
    Mooncake transfer engine (it has time). Exits 0 when MFS protects the first and leaves the second the rest of
    the link, else 1.
    """
    console = Console()
    link_bytes_per_s = LINK_GBIT_PER_S * 1e9 / 8
    alone: list[Run] = []
    without: list[Run] = []
    with_mfs: list[Run] = []
    started = time.monotonic()
    columns = (TextColumn("{task.description:<48}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    try:
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress, Stage("1gbit") as stage:
            task = progress.add_task("", total=3 * repetitions)
            for repetition in range(1, repetitions + 1):
                part = f"{repetition}/{repetitions}"
                progress.update(task, description=f"[{part}] all-to-all alone")
                alone.append(run_alone(stage, rounds))
                progress.advance(task)
                progress.update(task, description=f"[{part}] all-to-all beside bulk write, without MFS")
                without.append(run_together(stage, rounds, mfs=False))
                progress.advance(task)
                progress.update(task, description=f"[{part}] all-to-all beside bulk write, with MFS")
                with stage.daemon():
                    with_mfs.append(run_together(stage, rounds, mfs=True))
                progress.advance(task)
            progress.update(task, description="done")
    except ProgramError as error:
        console.print(f"[red]The demo stopped:[/red] {error}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        console.print("Stopped; every program that was started has been ended.")
        sys.exit(130)
    result = verdict(alone, without, with_mfs, link_bytes_per_s)
    show.terminal(console, alone, without, with_mfs, result, link_bytes_per_s)
    show.picture(picture, without[-1], with_mfs[-1], link_bytes_per_s)
    machine = f"{platform.machine()}, Linux {platform.release()}"
    if json_file:
        report = Report(
            machine=machine,
            cores=os.cpu_count() or 1,
            link_gbit_per_s=LINK_GBIT_PER_S,
            repetitions=repetitions,
            verdict=result,
            alone=alone,
            without_mfs=without,
            with_mfs=with_mfs,
        )
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    console.print(show.sentence(result), style="bold green" if result.holds else "bold red", highlight=False)
    console.print(f"Picture: {picture}. {time.monotonic() - started:.0f} s on {machine}.", highlight=False)
    sys.exit(0 if result.holds else 1)


if __name__ == "__main__":
    main()

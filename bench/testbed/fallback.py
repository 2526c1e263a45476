"""python -m bench.testbed.fallback: runs the demo where this machine makes no namespaces.

Two unmodified programs on one software device of 1 Gbit/s: an all-to-all with NCCL's habits, which blocks a layer of a
model, beside a bulk write of the stock Mooncake engine, which has time. Exits with 0 when MFS makes the all-to-all
faster and leaves the link to the bulk write while the all-to-all is idle, with 1 when it does not, and with 2 when a
program failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bench.micro.daemon import compiler, mfsd
from mfsd.children import python_module

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
DEVICE, RATE = "mfsdemo0", "1gbit"
LINK_BYTES_PER_S = 125_000_000
ROUNDS, ROUND_BYTES, GAP_MS = 6, 16 << 20, 60
LEAD_CALLS = 16
"""Bulk calls before the all-to-all starts; they measure the bulk write while the other program is idle."""
CONFIG = f'[arbiter]\nwindow = "16ms"\n[nic.{DEVICE}]\nrate = "{RATE}"\n'
BULK_SHARE_MIN = 0.9

Call = dict[str, int]


class ProgramError(Exception):
    """Names the program that failed, with its last output."""


@contextlib.contextmanager
def program(socket: Path | None, *command: str, nice: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Runs a program on the software device, under MFS if a daemon's socket is given. It ends with the context."""
    under = [*python_module("nccl_shim.run"), "--"] if socket else []
    # Mooncake's workers poll without pause and must not take the cores of the others.
    front = ["nice", "-n", "8"] if nice else []
    device = [*python_module("mfsd.soft_roce.launcher"), "--rate", RATE, "--device", f"{DEVICE}=127.0.0.1", "--"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*front, *device, *under, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, "MFS_SOCKET": str(socket), "MFS_LOG": "quiet"},
        ) as process,
    ):  # fmt: skip
        try:
            yield process
            if process.wait(60) != 0:
                errors.seek(0)
                raise ProgramError(
                    f"{command} ended with code {process.returncode}. Its output: {errors.read()[-2000:]}"
                )
        finally:
            process.kill()


def read_calls(process: subprocess.Popen[str], count: int | None = None) -> list[Call]:
    """Returns the next `count` calls that the program prints, or all that are left. Raises ProgramError if there are
    fewer."""
    assert process.stdout
    found: list[Call] = []
    for line in process.stdout:
        if line.startswith('{"') and "start_ns" in (call := json.loads(line)):
            found.append(call)
            if len(found) == count:
                return found
    if count is not None:
        raise ProgramError(f"{process.args!r} printed {len(found)} of {count} calls")
    return found


def round_s(calls: list[Call]) -> float:
    """Returns the mean time of a round, from the last rank's start to the last rank's end, without warm-up rounds."""
    rounds = [[c for c in calls if c["round"] == number] for number in range(ROUNDS)]
    return statistics.fmean((max(c["end_ns"] for c in r) - max(c["start_ns"] for c in r)) / 1e9 for r in rounds)


def collective(folder: Path, socket: Path | None) -> float:
    with program(
        socket, str(folder / "alltoall"),
        "--rounds", str(ROUNDS), "--bytes", str(ROUND_BYTES), "--gap-ms", str(GAP_MS),
    ) as process:  # fmt: skip
        return round_s(read_calls(process))


def together(folder: Path, socket: Path | None) -> tuple[float, float]:
    """Returns (seconds of an all-to-all beside the bulk write, share of the link that the bulk write had before it)."""
    with program(socket, sys.executable, str(PROGRAMS / "bulk_write.py"), "--device", DEVICE, nice=True) as bulk:
        calls = read_calls(bulk, LEAD_CALLS)
        seconds = collective(folder, socket)
        assert bulk.stdin
        bulk.stdin.close()  # ends it
        read_calls(bulk)
    # From one call's end to another's: about as much is under way at both.
    took_ns = calls[-1]["end_ns"] - calls[LEAD_CALLS // 4]["end_ns"]
    return seconds, sum(call["bytes"] for call in calls[LEAD_CALLS // 4 + 1 :]) * 1e9 / took_ns / LINK_BYTES_PER_S


def holds(result: dict[str, float]) -> bool:
    return result["slower_with"] < result["slower_without"] and result["bulk_share"] >= BULK_SHARE_MIN


def measure(folder: Path, repetitions: int) -> dict[str, Any]:
    alone, without, beside = [], [], []
    for number in range(1, repetitions + 1):
        click.echo(f"[{number}/{repetitions}] alone, without MFS, with MFS ...", err=True)
        alone.append(collective(folder, None))
        without.append(together(folder, None)[0])
        with mfsd(config=CONFIG) as (socket, _):
            beside.append(together(folder, socket))
    return {
        "alone_s": statistics.fmean(alone),
        "slower_without": statistics.median(b / a for a, b in zip(alone, without, strict=True)),
        "slower_with": statistics.median(b / a for a, (b, _) in zip(alone, beside, strict=True)),
        "bulk_share": statistics.median(share for _, share in beside),
    }


@click.command(help=__doc__)
@click.option("--repetitions", default=3, show_default=True, help="Repetitions of each of the three cases, in turns.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures to FILE.")
def main(repetitions: int, json_file: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="mfs-demo-") as name:
        build = [compiler("cc", "gcc"), "-std=gnu11", "-O2", str(PROGRAMS / "alltoall.c"), "-o", f"{name}/alltoall"]
        try:
            subprocess.run([*build, "-ldl"], check=True)
            result = measure(Path(name), repetitions)
        except (ProgramError, subprocess.SubprocessError) as error:
            click.echo(f"The demo stopped: {error}", err=True)
            sys.exit(2)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=1) + "\n")
    click.echo(
        f"It {'holds' if holds(result) else 'does NOT hold'}: an all-to-all of {1e3 * result['alone_s']:.0f} ms takes "
        f"{result['slower_without']:.2f}x as long beside a bulk write without MFS, {result['slower_with']:.2f}x with; "
        f"while it is idle the bulk write has {result['bulk_share']:.2f} of the link (at least {BULK_SHARE_MIN})."
    )
    sys.exit(0 if holds(result) else 1)


if __name__ == "__main__":
    main()

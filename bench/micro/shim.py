"""What the shim costs a program that it does not hold: time added to a work request, and message rate kept.

``added_ns_*``: one work request's post and its share of the poll, over a provider that does nothing, bare and shimmed
in turns within one process attached to an idle daemon. ``message_rate_ratio``: ib_write_bw with 2-byte messages on soft
RoCE, runs with and without the shim in turns; 1 means nothing is lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.micro.paired import median_interval
from bench.ports import free_port
from mfsd.children import python_module

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).with_name("native")
BUILD = ROOT / "build/bench/micro"
SHIM = ROOT / "nccl_shim/libmfs_shim.so"
ROUNDS, REQUESTS_A_ROUND = 20000, 256  # short: few rounds are interrupted
RATE_PAIRS, RATE_MESSAGES = 41, 1_000_000  # half a second each: in ten milliseconds all is start and warming up; of 15
# pairs on two cores the median is known to no better than 0.78 to 1.09
START_S = 20.0


def build() -> Path:
    """Compiles the provider that does nothing and the program that posts to it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("cc") or "gcc"
    library, program = BUILD / "libibverbs.so.1", BUILD / "shim_post"
    warn = ("-O2", "-Wall", "-Wextra", "-Werror")
    provider = (str(SOURCES / "null_verbs.c"), "-fPIC", "-shared", "-Wl,-soname,libibverbs.so.1")
    subprocess.run([compiler, *warn, *provider, "-o", str(library)], check=True)
    post = (str(SOURCES / "shim_post.c"), str(library), f"-Wl,-rpath,{BUILD}")
    subprocess.run([compiler, *warn, *post, "-o", str(program)], check=True)
    return program


@contextlib.contextmanager
def daemon() -> Iterator[Path]:
    """A daemon with its built-in rules; gives its socket."""
    with tempfile.TemporaryDirectory(prefix="mfs-") as folder:
        path = Path(folder) / "run" / "mfsd.sock"
        (Path(folder) / "mfsd.toml").write_text("")
        arguments = ["--config", f"{folder}/mfsd.toml", "--socket", str(path)]
        command = [*python_module("mfsd.cli.daemon"), *arguments]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            deadline_s = time.monotonic() + START_S
            while not path.is_socket():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise RuntimeError(f"mfsd did not start: {' '.join(command)}")
                time.sleep(0.01)
            yield path
        finally:
            process.terminate()
            process.wait()


def shimmed(path: Path) -> dict[str, str]:
    return {**os.environ, "LD_PRELOAD": str(SHIM), "MFS_SOCKET": str(path), "MFS_MODE": "enforce"}


def added_ns(program: Path, path: Path, chain: int) -> list[float]:
    """Time added to a work request, one value for each round, sorted."""
    arguments = [str(program), str(ROUNDS), str(chain), str(REQUESTS_A_ROUND)]
    done = subprocess.run(arguments, env=shimmed(path), capture_output=True, text=True, check=True)
    if done.stderr:
        raise RuntimeError(f"the shim did not attach: {done.stderr}")
    return sorted(float(line) for line in done.stdout.split())


def message_rate(environment: dict[str, str]) -> float:
    """Messages per microsecond that ib_write_bw reports between two processes on soft RoCE."""
    device, port = f"bench{os.getpid()}", free_port()
    command = [
        *(*python_module("mfsd.soft_roce.launcher"), "--device", device, "--address", "127.0.0.1", "--"),
        *("ib_write_bw", "-d", device, "-s", "2", "-n", str(RATE_MESSAGES), "-p", str(port)),
    ]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + START_S
        while f":{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text() and (
            f":{port:04X} {'0' * 32}:0000 0A" not in Path("/proc/net/tcp6").read_text()
        ):
            if time.monotonic() > deadline_s:
                raise RuntimeError("the ib_write_bw server did not start")
            time.sleep(0.01)
        done = subprocess.run([*command, "127.0.0.1"], env=environment, capture_output=True, text=True, check=True)
        server.wait(START_S)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    row = next(line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["2"])
    return float(row[-1])


def run() -> dict[str, Any]:
    """The figures of one run, with their spread."""
    program = build()
    with daemon() as path:
        single, chained = added_ns(program, path, 1), added_ns(program, path, 16)
        bare_environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        message_rate(bare_environment)  # warms the page cache
        bare: list[float] = []
        with_shim: list[float] = []
        for pair in range(RATE_PAIRS):  # in turns, and each first in turn: drift of the machine hits both
            for environment in (bare_environment, shimmed(path))[:: 1 if pair % 2 else -1]:
                (with_shim if "MFS_SOCKET" in environment else bare).append(message_rate(environment))
    ratios = sorted(a / b for a, b in zip(with_shim, bare, strict=True))
    return {
        "added_ns_p50": statistics.median(single),
        "added_ns_p99": single[int(len(single) * 0.99)],
        "added_ns_p10": single[int(len(single) * 0.1)],
        "added_ns_p90": single[int(len(single) * 0.9)],
        "added_ns_chain16_p50": statistics.median(chained),
        "message_rate_ratio": statistics.median(ratios),
        "message_rate_ratio_interval": median_interval(ratios),
        "message_rate_ratio_min": ratios[0],
        "message_rate_ratio_max": ratios[-1],
        "message_rate_ratio_of_best": max(with_shim) / max(bare),
        "message_rate_bare_mpps": statistics.median(bare),
    }

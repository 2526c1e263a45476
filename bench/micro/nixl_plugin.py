"""What NIXL's backend plugin adds to a 1 MiB write of the stock NIXL wheel, with a real daemon (bar: under 1 %).

Writes through UCX's backend and through the plugin around another take turns in one stock agent, over UCX's TCP
transport on loopback and over its verbs transport on soft RoCE. And the time that the calling thread spends in the
plugin, around a backend that moves nothing: ahead of all ordinary programs where that is allowed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.micro.daemon import BUILD, ROOT, mfsd, realtime
from bench.micro.nccl_wheel import unpacked
from bench.micro.nixl import NIXL, TRANSPORTS
from bench.micro.paired import median_interval
from mfsd.children import python_module
from mooncake_adapter.nixl_plugins import FOLDER, LIBRARY

SECONDS = 60.0
ROUNDS = 5000


def run(seconds: float = SECONDS) -> dict[str, Any]:
    """By transport: medians, and what a pair of writes differs by; with the plugin asking, and switched off, since two
    engines of one agent differ by themselves. And the plugin alone."""
    results: dict[str, Any] = {}
    for name, transport in TRANSPORTS.items():
        asking, off = (measured(name, transport, seconds, mode) for mode in ("enforce", "off"))
        results |= {f"{name}_enforce": asking, f"{name}_off": off, name: difference(asking, off)}
    return results | {"alone": alone()}


def difference(asking: dict[str, Any], off: dict[str, Any]) -> dict[str, Any]:
    """What asking adds, in points of the plain write; both intervals hold at once in nine runs of ten."""
    low, high = asking["overhead_percent_interval"]
    off_low, off_high = off["overhead_percent_interval"]
    return {
        "overhead_percent": round(asking["overhead_percent"] - off["overhead_percent"], 2),
        "overhead_percent_interval": [round(low - off_high, 2), round(high - off_low, 2)],
    }


def build(folder: Path) -> Path:
    """The program and the backend that moves nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    compile_it = ("cc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc/include")
    backend = ("-fPIC", "-shared", f"{ROOT}/tests/native/nixl_backend.c", "-o", f"{folder}/libplugin_UCX.so")
    subprocess.run((*compile_it, *backend), check=True)
    program = folder / "nixl_plugin"
    subprocess.run((*compile_it, f"{ROOT}/bench/programs/nixl_plugin.c", "-o", str(program), "-ldl"), check=True)
    return program


def alone(rounds: int = ROUNDS) -> dict[str, Any]:
    """The plugin around a backend that moves nothing."""
    folder = BUILD / "nixl_plugin"
    program = build(folder)
    with mfsd(first=True) as (socket, _):
        environment = {**os.environ, "MFS_SOCKET": str(socket), "MFS_NIXL_PLUGIN_DIR": str(folder)}
        done = subprocess.run(
            (str(program), str(LIBRARY), str(rounds)),
            check=True,
            capture_output=True,
            text=True,
            env=environment,
            preexec_fn=realtime,
        )
    found = json.loads(done.stdout)
    added = [(a - b) / 1e3 for a, b in zip(found["plugin_ns"], found["plain_ns"], strict=True)]
    return {
        "rounds": rounds,
        "held": found["held"],
        "added_us": round(statistics.median(added), 2),
        "added_us_interval": [round(value, 2) for value in median_interval(added)],
    }


def measured(name: str, transport: str, seconds: float, mode: str = "enforce") -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "bench/programs/nixl_plugin_pair.py"), "--seconds", str(seconds)]
    if name == "rdma":
        command = [*python_module("mfsd.soft_roce.launcher"), "--address", "127.0.0.1", "--", *command]
    with mfsd() as (socket, _), tempfile.TemporaryDirectory(prefix="mfs-") as folder:
        environment = {
            **os.environ,
            "MFS_SOCKET": str(socket),
            "MFS_MODE": mode,
            "NIXL_PLUGIN_DIR": str(FOLDER),
            "PYTHONPATH": os.pathsep.join((str(unpacked("nixl-cu12", NIXL)), str(ROOT))),
            "XDG_RUNTIME_DIR": folder,
            "UCX_TLS": transport,
            "NIXL_LOG_LEVEL": "ERROR",
        }
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    overhead = [100 * (a / b - 1) for a, b in zip(found["MFS"], found["UCX"], strict=True)]
    return {
        "pairs": len(overhead),
        "stock_us": round(statistics.median(found["UCX"]), 1),
        "plugin_us": round(statistics.median(found["MFS"]), 1),
        "overhead_percent": round(statistics.median(overhead), 2),
        "overhead_percent_interval": [round(value, 2) for value in median_interval(overhead)],
    }

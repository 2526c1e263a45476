"""Writes of 1 MiB by one stock agent of NIXL, through UCX's backend and through the plugin around another of UCX's, in
turns.

    MFS_SOCKET=... NIXL_PLUGIN_DIR=... PYTHONPATH=... python bench/programs/nixl_plugin_pair.py --seconds 60

A handle is made, started, asked for until it is done, and released. Prints one JSON line: for each kind the time of
every round in microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy

SIZE = 1 << 20
PAUSE_S = 0.0005
BACKENDS = ("UCX", "MFS")
PROGRESS_DELAY_US = 10_000
"""For how long an engine's progress thread sleeps where nothing wakes it: four that spin would fill two cores."""


class Patient:
    """NIXL's bindings, for agents whose progress threads sleep."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:
        config.pthrDelay = PROGRESS_DELAY_US
        return self._bindings.nixlAgent(name, config)


def made(name: str) -> tuple[Any, Any]:
    from nixl_cu12 import _api as api

    api.nixlBind = Patient(api.nixlBind)
    area = numpy.zeros(SIZE, dtype=numpy.uint8)
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=list(BACKENDS)))
    agent.register_memory([(area.ctypes.data, SIZE, 0, "")], "DRAM", list(BACKENDS))
    return agent, area


def target() -> None:
    agent, area = made("target")
    print(json.dumps({"metadata": agent.get_agent_metadata().hex(), "address": area.ctypes.data}), flush=True)
    sys.stdin.read()
    os._exit(0)


def source(seconds: float) -> None:
    command = [sys.executable, __file__, "--target"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    where = json.loads(next(line for line in child.stdout if line.startswith('{"metadata"')))
    agent, area = made("source")
    peer = agent.add_remote_agent(bytes.fromhex(where["metadata"]))
    lists = [agent.get_xfer_descs([(at, SIZE, 0)], "DRAM") for at in (area.ctypes.data, where["address"])]

    def write(backend: str) -> float:
        time.sleep(PAUSE_S)  # the arbiter sleeps, as it does while a transfer runs
        began_ns = time.perf_counter_ns()
        handle = agent.initialize_xfer("WRITE", *lists, peer, b"", [backend])
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        if state != "DONE":
            sys.exit(f"nixl_plugin_pair: a write ended with {state}")
        return (time.perf_counter_ns() - began_ns) / 1e3

    for _ in range(20):
        for backend in BACKENDS:
            write(backend)  # connections are there from now on
    took: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    until_s = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until_s:
        turn += 1
        for backend in BACKENDS if turn % 2 else BACKENDS[::-1]:
            took[backend].append(write(backend))
    print(json.dumps(took), flush=True)
    child.stdin.close()
    child.wait()
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--target", action="store_true")
    options = parser.parse_args()
    if options.target:
        target()
    else:
        source(options.seconds)

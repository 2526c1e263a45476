"""Writes of 1 MiB with the adapted agent of NIXL and with the wheel's own methods, in turns, to an agent without an
adapter.

    MFS_SOCKET=... PYTHONPATH=... python bench/programs/nixl_pair.py --seconds 60

Every round is a stock write and an adapted one by the same connection, in each order as often, until the time is over:
a handle is made, started, asked for until it is done, and released. Then come rounds of the same calls around an agent
that moves nothing, by the wheel's methods and by the adapter, each after a stock write, so that the caches are as a
transfer leaves them: one whose transfers have ended when they are posted, and one where they have when they are asked
about ("later"). Prints one JSON line: "wall_us", for each kind of write the time of every round, "cpu_us", for each of
the others the calling thread's CPU time of every round, and "calls", how many functions in Python one round runs.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy

SIZE = 1 << 20
PAUSE_S = 0.0005
CPU_ROUNDS = 300


class Still:
    """A binding whose transfers move nothing, and have ended when they are posted or when they are asked about."""

    def __init__(self, posted: object, asked: object) -> None:
        self._posted, self._asked = posted, asked

    def makeXferReq(self, *arguments: object) -> int:
        return 1

    def postXferReq(self, *arguments: object) -> object:
        return self._posted

    def getXferStatus(self, *arguments: object) -> object:
        return self._asked

    def releaseXferReq(self, *arguments: object) -> None: ...


def made(kind: Any, api: Any, name: str) -> tuple[Any, Any]:
    area = numpy.zeros(SIZE, dtype=numpy.uint8)
    agent = kind(name, api.nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(area.ctypes.data, SIZE, 0, "")], "DRAM")
    return agent, area


def target() -> None:
    from nixl_cu12 import _api as api

    agent, area = made(api.nixl_agent, api, "target")
    print(json.dumps({"metadata": agent.get_agent_metadata().hex(), "address": area.ctypes.data}), flush=True)
    sys.stdin.read()
    os._exit(0)


def timed_us(step: Callable[[], object], clock_ns: Callable[[], int]) -> float:
    time.sleep(PAUSE_S)  # the arbiter sleeps, as it does while a transfer runs
    began_ns = clock_ns()
    step()
    return (clock_ns() - began_ns) / 1e3


def calls(step: Callable[[], object]) -> int:
    """How many functions in Python it runs."""
    seen: list[str] = []
    sys.setprofile(lambda frame, event, argument: seen.append(event))
    try:
        step()
    finally:
        sys.setprofile(None)
    return seen.count("call")


def measured(steps: tuple[Callable[[], None], ...], seconds: float) -> dict[str, dict[str, Any]]:
    """The line that is printed. Of `steps` the first is a stock write, the second an adapted one."""
    as_stock, adapted, *others = steps
    for _ in range(20):
        as_stock()
        adapted()  # connections are there from now on
    wall: dict[str, list[float]] = {step.__name__: [] for step in (as_stock, adapted)}
    until_s = time.monotonic() + seconds
    turn = 0
    while time.monotonic() < until_s:
        turn += 1
        for step in (as_stock, adapted) if turn % 2 else (adapted, as_stock):
            wall[step.__name__].append(timed_us(step, time.perf_counter_ns))
    cpu: dict[str, list[float]] = {step.__name__: [] for step in others}
    for _ in range(CPU_ROUNDS):
        for step in others:
            as_stock()
            cpu[step.__name__].append(timed_us(step, time.thread_time_ns))
    return {"wall_us": wall, "cpu_us": cpu, "calls": {step.__name__: calls(step) for step in others}}


def target_started() -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """The process, which ends with its input, and the line that it printed."""
    command = [sys.executable, __file__, "--target"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    return child, json.loads(next(line for line in child.stdout if line.startswith('{"metadata"')))


def prepared(agent: Any, name: str, address: int) -> Any:
    return agent.prep_xfer_dlist(name, [(address, SIZE, 0)], "DRAM")


def source(seconds: float) -> None:
    child, where = target_started()
    import mooncake_adapter

    mooncake_adapter.install()
    from nixl_cu12 import _api as api

    from mooncake_adapter.nixl.agent import native_path
    from mooncake_adapter.nixl.scheduling import Scheduling

    agent, area = made(api.nixl_agent, api, "source")
    stock: Any = api.nixl_agent.__mro__[1]
    session: Any = mooncake_adapter.current_session()
    if not session.scheduled:
        sys.exit("nixl_pair: no daemon schedules this process; set MFS_SOCKET")
    peer = agent.add_remote_agent(bytes.fromhex(where["metadata"]))
    sides = prepared(agent, "NIXL_INIT_AGENT", area.ctypes.data), prepared(agent, peer, where["address"])
    order = numpy.zeros(1, dtype=numpy.int32)

    def write(kind: Any, one: Any) -> None:
        handle = kind.make_prepped_xfer(one, "WRITE", sides[0], order, sides[1], order, b"", ["UCX"])
        state = kind.transfer(one, handle)
        while state == "PROC":
            state = kind.check_xfer_state(one, handle)
        kind.release_xfer_handle(one, handle)
        if state != "DONE":
            sys.exit(f"nixl_pair: a write ended with {state}")

    kept: Scheduling = agent._mfs.scheduling

    def around(posted: object) -> Any:
        """An agent whose transfers have ended when they are posted, or when they are asked about."""
        still = copy.copy(agent)
        still.agent = Still(posted, api.nixlBind.NIXL_SUCCESS)
        still._mfs = copy.copy(agent._mfs)
        still._mfs.scheduling = Scheduling(
            *(still.agent, api.nixlBind, session, still._mfs.sources, kept.lanes, still._mfs.once, kept.nic)
        )
        still._mfs_path = native_path(still)
        return still

    at_once, later = around(api.nixlBind.NIXL_SUCCESS), around(api.nixlBind.NIXL_IN_PROG)

    def as_stock() -> None:
        write(stock, agent)

    def adapted() -> None:
        write(api.nixl_agent, agent)

    def nothing() -> None:
        write(stock, at_once)

    def around_nothing() -> None:
        write(api.nixl_agent, at_once)

    def nothing_later() -> None:
        write(stock, later)

    def around_nothing_later() -> None:
        write(api.nixl_agent, later)

    def session_permit() -> None:
        session.permit(SIZE, stage=3, nic=kept.nic, timeout_s=10.0).complete()

    steps = (as_stock, adapted, nothing, around_nothing, nothing_later, around_nothing_later, session_permit)
    print(json.dumps(measured(steps, seconds)), flush=True)
    child.communicate()
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

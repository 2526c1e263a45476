"""Writes of 1 MiB with the adapted transfer engine and with the wheel's own, in turns, to a process without an adapter.

    MFS_SOCKET=... python bench/programs/mooncake_pair.py --rounds 500 [--protocol tcp]

Every round is a stock write, an adapted one, and an adapted one while nothing is scheduled, on one engine, in an order
that turns; then what the adapter does around a write that moves nothing, a permit as the session gives it and as the
native client does. Each comes after a pause like a transfer's. Prints one JSON line: for each of the six, wall time and
the calling thread's CPU time of every round (us). Mooncake's own writes spin, so that their CPU time says nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from typing import Any

SIZE = 1 << 20
PAUSE_S = 0.0005


class Still:
    """An engine that moves nothing."""

    def initialize(self, *arguments: str) -> int:
        return 0

    def get_rpc_port(self) -> int:
        return 1

    def transfer_sync_write(self, *arguments: object) -> int:
        return 0


def started(kind: Any, protocol: str) -> tuple[Any, int, mmap.mmap]:
    area = mmap.mmap(-1, 4 * SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    engine = kind()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "") != 0 or engine.register_memory(address, 4 * SIZE):
        sys.exit("mooncake_pair: the engine does not start")
    return engine, address, area


def target(protocol: str) -> None:
    from mooncake.engine import TransferEngine

    engine, address, area = started(TransferEngine, protocol)
    print(json.dumps({"peer": f"127.0.0.1:{engine.get_rpc_port()}", "address": address}), flush=True)
    sys.stdin.read()
    del area
    os._exit(0)  # Mooncake's threads outlive the interpreter's shutdown


def source(protocol: str, rounds: int) -> None:
    command = [sys.executable, __file__, "--target", "--protocol", protocol]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    where = json.loads(next(line for line in child.stdout if line.startswith('{"peer"')))

    import mooncake_adapter

    mooncake_adapter.install()
    from mooncake.engine import TransferEngine

    from mooncake_adapter.engine import adapted_engine
    from mooncake_adapter.process import PROCESS

    engine, address, _area = started(TransferEngine, protocol)
    stock: Any = TransferEngine.__mro__[1]
    session: Any = mooncake_adapter.current_session()
    if not session.scheduled:
        sys.exit("mooncake_pair: no daemon schedules this process; set MFS_SOCKET")
    scheduling, arguments = engine._mfs_scheduling, (where["peer"], address, where["address"], SIZE)
    client, nic = session._attachment.client(), session._native_nic[scheduling.nic]

    def adapted() -> None:
        result = engine.transfer_sync_write(*arguments)
        if result != 0:
            sys.exit(f"mooncake_pair: a write answered {result}")

    def as_stock() -> None:
        stock.transfer_sync_write(engine, *arguments)

    def unscheduled() -> None:
        engine.__dict__["_mfs_scheduling"] = None
        try:
            adapted()
        finally:
            engine.__dict__["_mfs_scheduling"] = scheduling

    still = adapted_engine(Still, PROCESS.holder, PROCESS.words, PROCESS.once)()
    still.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "")
    still._mfs_scheduling.nic = scheduling.nic

    def around_nothing() -> None:
        still.transfer_sync_write(*arguments)

    def session_permit() -> None:
        session.permit(SIZE, stage=3, nic=scheduling.nic, peer="127.0.0.1", timeout_s=10.0).complete()

    def native_permit() -> None:
        client.ask(SIZE, 3, nic, 0, 0, None, 0, False, False, 10**10, 6).complete()

    steps = [as_stock, adapted, unscheduled, around_nothing, session_permit, native_permit]
    wall: dict[str, list[float]] = {step.__name__: [] for step in steps}
    cpu: dict[str, list[float]] = {step.__name__: [] for step in steps}
    for _ in range(20):
        adapted()  # connections and memory are there from now on
    for turn in range(rounds):
        for step in steps[turn % len(steps) :] + steps[: turn % len(steps)]:
            time.sleep(PAUSE_S)  # the arbiter sleeps, as it does while a transfer runs
            began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            step()
            cpu[step.__name__].append((time.thread_time_ns() - began_cpu_ns) / 1e3)
            wall[step.__name__].append((time.perf_counter_ns() - began_ns) / 1e3)
    print(json.dumps({"wall_us": wall, "cpu_us": cpu}), flush=True)
    child.stdin.close()
    child.wait()
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--target", action="store_true")
    options = parser.parse_args()
    if options.target:
        target(options.protocol)
    else:
        source(options.protocol, options.rounds)

"""Writes of 1 MiB with the adapted transfer engine and with the wheel's own, in turns, to a process without an adapter.

    MFS_SOCKET=... python bench/programs/mooncake_pair.py --seconds 60 [--protocol tcp]

Every round is a stock write, an adapted one, and an adapted one while nothing is scheduled, on one engine, in each of
the six orders as often, until the time is over. Then come rounds of what is done around a write that moves nothing: by
no one, by the adapter, a permit as the session gives it, and as the native client does; each after a stock write, so
that the caches are as a transfer leaves them. Before each of all these is a pause like a transfer's. Prints one JSON
line: "wall_us", for each of the first three the time of every round, and "cpu_us", for each of the others the calling
thread's CPU time of every round. Mooncake's own writes spin, so that their CPU time says nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from mfsd.transfer import Transfer

SIZE = 1 << 20
PAUSE_S = 0.0005
CPU_ROUNDS = 600


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


def timed_us(step: Callable[[], object], clock_ns: Callable[[], int]) -> float:
    time.sleep(PAUSE_S)  # the arbiter sleeps, as it does while a transfer runs
    began_ns = clock_ns()
    step()
    return (clock_ns() - began_ns) / 1e3


def measured(
    writes: tuple[Callable[[], None], ...],
    others: tuple[Callable[[], None], ...],
    scheduled: Callable[[object], None],
    seconds: float,
) -> dict[str, dict[str, list[float]]]:
    """The line that is printed. Of `writes` the first is stock, the second adapted."""
    as_stock, adapted, *_ = writes
    wall: dict[str, list[float]] = {step.__name__: [] for step in writes}
    cpu: dict[str, list[float]] = {step.__name__: [] for step in others}
    for _ in range(20):
        adapted()  # connections and memory are there from now on
    until_s = time.monotonic() + seconds
    for order in itertools.cycle(itertools.permutations(writes)):
        if time.monotonic() >= until_s:
            break
        for step in order:
            scheduled(step)
            wall[step.__name__].append(timed_us(step, time.perf_counter_ns))
    scheduled(adapted)
    for _ in range(CPU_ROUNDS):
        for step in others:
            as_stock()
            cpu[step.__name__].append(timed_us(step, time.thread_time_ns))
    return {"wall_us": wall, "cpu_us": cpu}


def source(protocol: str, seconds: float) -> None:
    command = [sys.executable, __file__, "--target", "--protocol", protocol]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    where = json.loads(next(line for line in child.stdout if line.startswith('{"peer"')))

    import mooncake_adapter

    mooncake_adapter.install()
    from mooncake.engine import TransferEngine

    from mooncake_adapter.mooncake.engine import adapted as adapted_engine
    from mooncake_adapter.process import PROCESS

    engine, address, _area = started(TransferEngine, protocol)
    stock: Any = TransferEngine.__mro__[1]
    session: Any = mooncake_adapter.current_session()
    if not session.scheduled:
        sys.exit("mooncake_pair: no daemon schedules this process; set MFS_SOCKET")
    scheduling, fast_path = engine._mfs_scheduling, engine._mfs_fast_path
    arguments = (where["peer"], address, where["address"], SIZE)
    client, nic = session._attachment.client(), session._settled.nics[scheduling.nic]

    def write(kind: Any) -> None:
        result = kind.transfer_sync_write(engine, *arguments)
        if result != 0:
            sys.exit(f"mooncake_pair: a write answered {result}")

    def as_stock() -> None:
        write(stock)

    def adapted() -> None:
        write(TransferEngine)

    def unscheduled() -> None:
        write(TransferEngine)

    def scheduled(step: object) -> None:
        """What the engine goes by in this step."""
        on = step is not unscheduled
        engine.__dict__["_mfs_scheduling"] = scheduling if on else None
        engine.__dict__["_mfs_fast_path"] = fast_path if on else None

    still = adapted_engine(Still, PROCESS.holder, PROCESS.sources, PROCESS.once)()
    still.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "")
    still._mfs_scheduling.nic = scheduling.nic

    def nothing() -> None:
        Still.transfer_sync_write(still, *arguments)

    def around_nothing() -> None:
        still.transfer_sync_write(*arguments)

    def session_permit() -> None:
        session.permit(SIZE, stage=3, nic=scheduling.nic, peer="127.0.0.1", timeout_s=10.0).complete()

    def native_permit() -> None:
        client.ask(Transfer(SIZE, 3), nic, None, 0, 10**10, 6).complete()

    writes, others = (as_stock, adapted, unscheduled), (nothing, around_nothing, session_permit, native_permit)
    print(json.dumps(measured(writes, others, scheduled, seconds)), flush=True)
    child.stdin.close()
    child.wait()
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--target", action="store_true")
    options = parser.parse_args()
    if options.target:
        target(options.protocol)
    else:
        source(options.protocol, options.seconds)

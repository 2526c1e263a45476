"""Writes of 1 MiB with the adapted transfer engine and with the wheel's own, in turns, to a process without an adapter.

    MFS_SOCKET=... python bench/programs/mooncake_pair.py --blocks 20 --rounds 50 [--protocol tcp]

Prints one JSON line: for each block the median time (us) of an adapted write, of a stock write of the same engine, and
of an adapted write while nothing is scheduled; and of a permit alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from typing import Any

SIZE = 1 << 20


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


def source(protocol: str, blocks: int, rounds: int) -> None:
    command = [sys.executable, __file__, "--target", "--protocol", protocol]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    where = json.loads(next(line for line in child.stdout if line.startswith('{"peer"')))

    import mooncake_adapter

    mooncake_adapter.install()
    from mooncake.engine import TransferEngine

    engine, address, _area = started(TransferEngine, protocol)
    stock: Any = TransferEngine.__mro__[1]
    session: Any = mooncake_adapter.current_session()
    if not session.scheduled:
        sys.exit("mooncake_pair: no daemon schedules this process; set MFS_SOCKET")
    scheduling, arguments = engine._mfs_scheduling, (where["peer"], address, where["address"], SIZE)

    def block(write: Any) -> float:
        times = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            result = write(*arguments)
            times.append(time.perf_counter_ns() - start)
            if result != 0:
                sys.exit(f"mooncake_pair: a write answered {result}")
        return statistics.median(times) / 1e3

    def unscheduled(*given: Any) -> int:
        engine.__dict__["_mfs_scheduling"] = None
        try:
            return int(engine.transfer_sync_write(*given))
        finally:
            engine.__dict__["_mfs_scheduling"] = scheduling

    def permit() -> float:
        start = time.perf_counter_ns()
        for _ in range(rounds):
            task = session.submit(SIZE, stage=3, nic=scheduling.nic)
            task.wait(1.0)
            task.complete()
        return (time.perf_counter_ns() - start) / rounds / 1e3

    block(engine.transfer_sync_write)  # connections and memory are there from now on
    results: dict[str, list[float]] = {"adapted_us": [], "stock_us": [], "unscheduled_us": [], "permit_us": []}
    for _ in range(blocks):
        results["stock_us"].append(block(lambda *given: stock.transfer_sync_write(engine, *given)))
        results["adapted_us"].append(block(engine.transfer_sync_write))
        results["unscheduled_us"].append(block(unscheduled))
        results["permit_us"].append(permit())
    print(json.dumps(results), flush=True)
    child.stdin.close()
    child.wait()
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", default="tcp")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--target", action="store_true")
    options = parser.parse_args()
    if options.target:
        target(options.protocol)
    else:
        source(options.protocol, options.blocks, options.rounds)

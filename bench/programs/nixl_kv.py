"""A NIXL agent that moves KV to or from another one: timed transfers by request, or bulk writes without end.

    python bench/programs/nixl_kv.py --target FILE --mib 64
    python bench/programs/nixl_kv.py --peer FILE --mib 8 --operation READ --deadline-ms 500 --results FILE
    python bench/programs/nixl_kv.py --peer FILE --mib 64 --bulk 4

The target registers memory and writes FILE when it is there. A timed agent moves all of it a few times, writes
RESULTS.ready, and waits for RESULTS.begin; then it moves it --count times and writes the JSON list of how long each
took (s) to RESULTS. A bulk agent keeps so many writes under way. Descriptors have 64 KiB, as blocks of an engine do.
Runs with the wheel's own agent, or with the adapted one where MFS_SOCKET is set.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy

BLOCK_BYTES = 64 << 10
PROGRESS_DELAY_US = 10_000
WARM_UP, PAUSE_S = 4, 0.1
"""Transfers that connect, the first one everything and the second a lane, and the pause after each."""
POLL_S = 0.0005
"""Between two questions how a transfer stands: an engine's step takes longer."""


class Sleeping:
    """NIXL's bindings, with progress threads that sleep, as the adapter has them: else those of the legs without MFS
    would keep all cores busy."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:
        config.pthrDelay = PROGRESS_DELAY_US
        return self._bindings.nixlAgent(name, config)


def agent_of(name: str, size_bytes: int) -> tuple[Any, Any]:
    if os.environ.get("MFS_SOCKET"):
        import mooncake_adapter

        mooncake_adapter.install()
    from nixl_cu12 import _api as api

    area = numpy.full(size_bytes, len(name), dtype=numpy.uint8)
    api.nixlBind = Sleeping(api.nixlBind)
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(area.ctypes.data, size_bytes, 0, "")], "DRAM")
    return agent, area


@contextlib.contextmanager
def meant(number: int, deadline_ms: float) -> Iterator[None]:
    """Transfers made inside are for this request; 0: nothing is known of them."""
    if not os.environ.get("MFS_SOCKET") or not number:
        yield
        return
    import mooncake_adapter

    due_ns = time.monotonic_ns() + int(deadline_ms * 1e6) if deadline_ms else 0
    with mooncake_adapter.transfer(request_id=number, deadline_ns=due_ns):
        yield


class Source:
    """Moves its memory to or from the target's."""

    def __init__(self, options: argparse.Namespace) -> None:
        there = json.loads(options.peer.read_text())
        size_bytes = options.mib << 20
        self.options = options
        self.agent, self.area = agent_of(f"source-{os.getpid()}", size_bytes)
        self.peer = self.agent.add_remote_agent(bytes.fromhex(there["metadata"]))
        self.sides = [
            self.agent.prep_xfer_dlist(
                name, [(base + at, BLOCK_BYTES, 0) for at in range(0, size_bytes, BLOCK_BYTES)], "DRAM"
            )
            for name, base in (("NIXL_INIT_AGENT", self.area.ctypes.data), (self.peer, there["address"]))
        ]
        self.order = numpy.arange(size_bytes // BLOCK_BYTES, dtype=numpy.int32)

    def started(self, number: int) -> Any:
        options = self.options
        with meant(number, options.deadline_ms):
            handle = self.agent.make_prepped_xfer(
                options.operation, self.sides[0], self.order, self.sides[1], self.order
            )
            self.agent.transfer(handle)
        return handle

    def ended(self, handle: Any) -> bool:
        state = self.agent.check_xfer_state(handle)
        if state == "PROC":
            return False
        if state != "DONE":
            sys.exit(f"nixl_kv: a transfer ended with {state}")
        self.agent.release_xfer_handle(handle)
        return True

    def moved_s(self, number: int) -> float:
        began_s = time.monotonic()
        handle = self.started(number)
        while not self.ended(handle):
            time.sleep(POLL_S)
        return time.monotonic() - began_s

    def timed(self) -> None:
        results = self.options.results
        for number in range(WARM_UP):
            self.moved_s(1000 + number)
            time.sleep(PAUSE_S)
        results.with_suffix(".ready").touch()
        while not results.with_suffix(".begin").exists():
            time.sleep(PAUSE_S)
        took_s = []
        for number in range(self.options.count):
            took_s.append(self.moved_s(1 + number))
            time.sleep(PAUSE_S)
        part = results.with_suffix(".part")
        part.write_text(json.dumps(took_s))
        part.rename(results)

    def bulk(self) -> None:
        under_way = [self.started(0) for _ in range(self.options.bulk)]
        while True:
            time.sleep(POLL_S)
            for at, handle in enumerate(under_way):
                if self.ended(handle):
                    under_way[at] = self.started(0)


def target(options: argparse.Namespace) -> None:
    agent, area = agent_of(f"target-{os.getpid()}", options.mib << 20)
    found = {"metadata": agent.get_agent_metadata().hex(), "address": area.ctypes.data}
    part = options.target.with_suffix(".part")
    part.write_text(json.dumps(found))
    part.rename(options.target)
    while True:
        time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, metavar="FILE", help="be a target, described in this file")
    parser.add_argument("--peer", type=Path, metavar="FILE", help="the target's file")
    parser.add_argument("--mib", type=int, default=8, help="size of the memory, and of a transfer")
    parser.add_argument("--operation", choices=("READ", "WRITE"), default="WRITE")
    parser.add_argument("--deadline-ms", type=float, default=0.0, help="after the start; 0: none")
    parser.add_argument("--bulk", type=int, default=0, metavar="N", help="N writes under way, without end")
    parser.add_argument("--count", type=int, default=5, metavar="N", help="timed transfers")
    parser.add_argument("--results", type=Path, metavar="FILE", help="of a timed agent")
    options = parser.parse_args()
    if options.target:
        target(options)
    source = Source(options)
    if options.bulk:
        source.bulk()
    source.timed()
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other


if __name__ == "__main__":
    main()

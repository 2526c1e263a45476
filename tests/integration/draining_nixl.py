"""Two agents of NIXL and more transfers than there are permits for, while the node's daemon ends.

    draining_nixl.py BACKEND FILE    begins at FILE.go, writes FILE.half when all are started, and goes on at FILE.on

It writes FILE.ready when its agents are connected. Of each four transfers one is released before the daemon ends and
one while it ends; the others must arrive. Prints one JSON line: how many arrived, how many had moved no byte in the
middle, and how many were under way when they were released. Exits 0 when every byte and notification of those that
were not released is as it should be. With ADAPTED=1 the agents are the adapter's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy

from tests.integration.plugin_nixl import agents_of
from tests.support.waiting import eventually

PIECE = 256 << 10
TRANSFERS = 16


def main(backend: str, place: str) -> None:
    if os.environ.get("ADAPTED"):
        import mooncake_adapter

        mooncake_adapter.install()
    agents, areas = agents_of(backend)
    one, two = agents["one"], agents["two"]
    source, target = areas["one"], areas["two"]
    source[:] = numpy.random.default_rng(1).integers(0, 256, len(source), dtype=numpy.uint8)

    def part(at: int) -> slice:
        return slice(at * PIECE, (at + 1) * PIECE)

    def start(at: int) -> Any:
        lists = [one.get_xfer_descs([(a.ctypes.data + at * PIECE, PIECE, 0)], "DRAM") for a in (source, target)]
        handle = one.initialize_xfer("WRITE", *lists, "two", f"{at}".encode())
        one.transfer(handle)
        return handle

    released = {"under way": 0, "done": 0}

    def release(handle: Any) -> None:
        released["done" if one.check_xfer_state(handle) == "DONE" else "under way"] += 1
        one.release_xfer_handle(handle)

    first = start(TRANSFERS - 1)  # connects
    eventually(lambda: one.check_xfer_state(first) == "DONE", "the first transfer", pause_s=0.0005)
    one.release_xfer_handle(first)
    eventually(two.get_new_notifs)
    target[:] = 0
    Path(place + ".ready").touch()
    eventually(Path(place + ".go").exists, "the word to begin", pause_s=0.0005)
    handles = {at: start(at) for at in range(TRANSFERS)}
    for at in range(0, TRANSFERS, 4):
        release(handles.pop(at))
    held = sum(not target[part(at)].any() for at in handles)
    Path(place + ".half").touch()
    eventually(Path(place + ".on").exists, "the word to go on", pause_s=0.0005)
    for at in range(1, TRANSFERS, 4):
        release(handles.pop(at))
    for at, handle in handles.items():
        eventually(lambda handle=handle: one.check_xfer_state(handle) == "DONE", f"transfer {at}", pause_s=0.0005)
        assert (source[part(at)] == target[part(at)]).all(), f"transfer {at}"
        one.release_xfer_handle(handle)
    wanted, notified = {f"{at}".encode() for at in handles}, list[bytes]()

    def all_notified() -> bool:
        notified.extend(one for several in two.get_new_notifs().values() for one in several)
        return wanted <= set(notified)

    eventually(all_notified, "the notifications")
    assert len(notified) == len(set(notified)), "each once"
    print(json.dumps({"arrived": len(handles), "held": held, "released": released}), flush=True)
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""Two adapted processes over RDMA that mark without a daemon: each transfer in the lane of its stage and size. Run
under mfs-run --mode mark --policy paper-k8 --sizes p2d=256kib,4mib --sizes reuse=256kib.

Prints one JSON line: the classes whose lanes were opened, and that of the program's own engine. Exits 0 when every byte
is as it should be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import mooncake_adapter
from tests.support.mooncake_peer import Peer, memory, started
from tests.support.waiting import eventually

SMALL, MIDDLE, LARGE = 64 << 10, 1 << 20, 20 << 20
"""The last is more than the pieces into which a call is cut where permits are asked for."""


def main() -> None:
    mooncake_adapter.install()
    from mooncake.engine import TransferEngine

    area, address = memory()
    engine: Any = started(TransferEngine(), address, "rdma")
    lanes = engine._mfs_lanes

    def opened() -> set[int]:
        return {wire_class for _, wire_class in lanes._routes}

    with Peer(adapted=True, protocol="rdma", scripted=False) as peer:

        def write(letter: bytes, size: int, **metadata: Any) -> None:
            area[:size] = letter * size
            with mooncake_adapter.transfer(request_id=1, **metadata):
                assert engine.transfer_sync_write(peer.name, address, peer.address, size) == 0
            assert peer.read(0, size) == letter * size

        def read(letter: bytes, size: int, **metadata: Any) -> None:
            peer.ask("write", 0, letter * size)
            with mooncake_adapter.transfer(request_id=2, **metadata):
                assert engine.transfer_sync_read(peer.name, address, peer.address, size) == 0
            assert area[:size] == letter * size

        def until_marked(move: Callable[..., None], size: int, **metadata: Any) -> None:
            """Moves bytes until a lane is open for them, and twice more, through it."""
            before = opened()

            def moved_and_open() -> bool:
                move(b"a", size, **metadata)
                return opened() != before

            eventually(moved_and_open, "a lane", pause_s=0.02)
            move(b"b", size, **metadata)
            move(b"c", size, **metadata)

        until_marked(write, SMALL)
        until_marked(write, MIDDLE)
        write(b"l", LARGE)
        until_marked(read, SMALL)
        until_marked(read, MIDDLE)
        until_marked(write, MIDDLE, stage=4)  # background: nothing waits for it, whatever its size
        print(json.dumps({"lanes": sorted(opened()), "own": lanes.wire_class}), flush=True)
    os._exit(0)  # the engine's threads do not end by themselves


if __name__ == "__main__":
    main()

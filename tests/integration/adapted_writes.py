"""Two adapted processes over RDMA: messages of several stages, each in the lane of its class. Run under mfs-run.

Prints one JSON line: the classes whose lanes were opened. Exits 0 when every byte is as it should be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import mooncake_adapter
from tests.support.mooncake_peer import Peer, memory, started
from tests.support.waiting import eventually

SIZE = 1 << 20


def main() -> None:
    mooncake_adapter.install()
    from mooncake.engine import TransferEngine

    session: Any = mooncake_adapter.current_session()
    area, address = memory()
    engine: Any = started(TransferEngine(), address, "rdma")
    eventually(lambda: session.scheduled, "the shim's session, which comes with the first device", pause_s=0.01)
    lanes = engine._mfs_lanes

    def opened() -> set[int]:
        return {wire_class for _, wire_class in lanes._routes}

    with Peer(adapted=True, protocol="rdma", scripted=False) as peer, session.batch(1, layers=8) as batch:

        def write(letter: bytes, **metadata: Any) -> None:
            area[:SIZE] = letter * SIZE
            with mooncake_adapter.transfer(request_id=1, **metadata):
                assert engine.transfer_sync_write(peer.name, address, peer.address, SIZE) == 0
            assert peer.read(0, SIZE) == letter * SIZE

        def read(letter: bytes, **metadata: Any) -> None:
            peer.ask("write", 0, letter * SIZE)
            with mooncake_adapter.transfer(request_id=2, **metadata):
                assert engine.transfer_sync_read(peer.name, address, peer.address, SIZE) == 0
            assert area[:SIZE] == letter * SIZE

        def until_marked(move: Callable[..., None], **metadata: Any) -> None:
            """Moves bytes until a lane is open for them, and once more, through it."""
            before = opened()

            def moved_and_open() -> bool:
                move(b"a", **metadata)
                return opened() != before

            eventually(moved_and_open, "a lane", pause_s=0.02)
            move(b"b", **metadata)

        write(b"p", stage=3)
        until_marked(write, stage=4)  # background: the scavenger's class
        until_marked(read, stage=1, layer=2, batch=batch)  # reuse, two layers ahead of the batch
        print(json.dumps({"lanes": sorted(opened())}), flush=True)
    os._exit(0)  # the engine's threads do not end by themselves


if __name__ == "__main__":
    main()

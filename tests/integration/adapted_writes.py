"""Two adapted processes over RDMA: messages of several stages, each in the lane of its class. Run under mfs-run.

Prints one JSON line: for each stage the class that its last message had. Exits 0 when every byte is as it should be.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import mooncake_adapter
from tests.support.mooncake_peer import Peer, memory, started

SIZE = 1 << 20
ROUNDS_MAX = 400
STAGES = {"reuse": 1, "p2d": 3, "background": 4}


def main() -> None:
    mooncake_adapter.install()
    from mooncake.engine import TransferEngine

    session: Any = mooncake_adapter.current_session()
    area, address = memory()
    engine: Any = started(TransferEngine(), address, "rdma")
    while not session.scheduled:  # the shim attaches when the first device is opened
        time.sleep(0.01)
    lanes = engine._mfs_lanes
    with Peer(adapted=True, protocol="rdma", scripted=False) as peer:
        for number, (name, stage) in enumerate(STAGES.items()):
            seed = bytes([65 + number]) * SIZE
            for _ in range(ROUNDS_MAX):  # until the lane of this stage's class is open, then once through it
                area[:SIZE] = seed
                through = {wire_class for _, wire_class in lanes._routes}
                with mooncake_adapter.transfer(request_id=number + 1, stage=stage):
                    if stage == 1:
                        peer.ask("write", 0, seed)
                        assert engine.transfer_sync_read(peer.name, address, peer.address, SIZE) == 0
                        assert area[:SIZE] == seed
                    else:
                        assert engine.transfer_sync_write(peer.name, address, peer.address, SIZE) == 0
                        assert peer.read(0, SIZE) == seed
                if len(through) > number:
                    break
                time.sleep(0.02)
        print(json.dumps({"lanes": sorted(wire_class for _, wire_class in lanes._routes)}), flush=True)
    os._exit(0)  # the engine's threads do not end by themselves


if __name__ == "__main__":
    main()

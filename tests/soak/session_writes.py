"""Writes and reads blocks between two processes by a Mooncake engine whose transfers ask for permits through a session
of `mfsd.client`, and compares digests. Run under mfs-soft-roce and mfs-run.

Prints one JSON line; exits 0 when every byte is as it should be, 2 on wrong data, 1 otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
from typing import Any

import mooncake_adapter
from mfsd.client import Flow, Waiting
from tests.support.mooncake_peer import Peer, memory, started

SIZES = (4096, 65536, 300_001, 1 << 20)
STAGES = (1, 3, 4)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_outlook(session: Any, request: int, size_bytes: int) -> None:
    """Reads the outlook page as an engine's scheduler does, whatever becomes of the daemon, and announces what
    queues."""
    session.waiting([Waiting(request, rank=request, flows=(Flow(1, "10.99.0.1", size_bytes, incoming=True),))])
    predicted_ns, page = session.fetch_ns(size_bytes, "10.99.0.1", 1), session.outlook()
    if (predicted_ns is not None and predicted_ns <= 0) or (page is not None and len(page.pruned) > 1024):
        raise AssertionError(f"the outlook page says {predicted_ns} ns and {page}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfers", type=int, default=60)
    transfers = parser.parse_args().transfers
    mooncake_adapter.install()
    from mooncake.engine import TransferEngine

    session: Any = mooncake_adapter.current_session()
    area, address = memory()
    engine: Any = started(TransferEngine(), address, "rdma")
    chance, total = random.Random(os.getpid()), 0
    with Peer(adapted=True, protocol="rdma", scripted=False) as peer:
        for number in range(transfers):
            size = chance.choice(SIZES)
            check_outlook(session, number + 1, size)
            data = chance.randbytes(size)
            with session.batch(number + 1, layers=4) as batch:
                stage = chance.choice(STAGES)
                with mooncake_adapter.transfer(
                    request_id=number + 1, stage=stage, batch=batch, layer=chance.randrange(4)
                ):
                    if number % 2:
                        peer.ask("write", 0, data)
                        code = engine.transfer_sync_read(peer.name, address, peer.address, size)
                        arrived = area[:size]
                    else:
                        area[:size] = data
                        code = engine.transfer_sync_write(peer.name, address, peer.address, size)
                        arrived = peer.read(0, size)
            if code != 0:
                print(f"transfer {number} of {size} bytes failed: {code}", flush=True)
                return 1
            if digest(arrived) != digest(data):
                print(f"transfer {number} of {size} bytes: wrong data", flush=True)
                return 2
            total += size
    print(json.dumps({"transfers": transfers, "bytes": total}), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the engine's threads do not end by themselves

"""A node of Mooncake's store with its master, and another node's engine that reads from it without end.

    python store_programs.py owner MASTER_PORT METRICS_PORT
    python store_programs.py readers MASTER_PORT THREADS QUEUE_MIB

Both go on until standard input closes. The owner lends the memory and puts what the readers read. The readers announce
what they have still to read, as MfsConnector announces what queues at its engine; each read that has ended is a line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.mooncake_peer import memory
from tests.support.waiting import eventually

OWNER, READER = "127.0.0.2", "127.0.0.3"
OWNER_NIC, READER_NIC = "store0", "bulk0"
SEGMENT_BYTES = 384 << 20
OBJECT_BYTES = 2 << 20
OBJECTS = 16
LEASE_MS, TRANSFER_S = 300_000, 240
"""A load that takes longer than its lease, or than Mooncake waits for it, fails, and with it the request: not on a
busy machine either."""


def client(host: str, device: str, master_port: str, segment_bytes: int) -> Any:
    import mooncake.store

    def made() -> Any:
        store = mooncake.store.MooncakeDistributedStore()
        arguments = (host, "P2PHANDSHAKE", segment_bytes, 16 << 20, "rdma", device, f"127.0.0.1:{master_port}")
        return store if store.setup(*arguments) == 0 else None

    return eventually(made, "the master", pause_s=0.2)


def owner(master_port: str, metrics_port: str) -> None:
    import mooncake.store

    program = Path(mooncake.store.__file__).with_name("mooncake_master")
    program.chmod(0o755)
    master = subprocess.Popen(
        [
            *(program, f"--rpc_port={master_port}", f"--metrics_port={metrics_port}", "--logtostderr"),
            f"--default_kv_lease_ttl={LEASE_MS}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | {"LD_LIBRARY_PATH": str(program.parent)},
    )
    try:
        store = client(OWNER, OWNER_NIC, master_port, SEGMENT_BYTES)
        area, address = memory(OBJECT_BYTES)
        area[:] = bytes(range(256)) * (OBJECT_BYTES // 256)
        assert store.register_buffer(address, OBJECT_BYTES) == 0
        for number in range(OBJECTS):
            assert store.put_from(f"bulk-{number}", address, OBJECT_BYTES) == 0
        print(json.dumps({"ready": OBJECTS}), flush=True)
        sys.stdin.read()
    finally:
        master.kill()
        os._exit(0)  # the engines' threads do not end by themselves


def behind_other_work() -> None:
    """A node of its own has processors of its own: reads that are waited for in a loop take none from the engines."""
    os.nice(19)
    group = Path("/proc/self/autogroup")  # where there is one, niceness counts within it alone
    if group.exists():
        group.write_text("19")


def readers(master_port: str, threads: int, queue_bytes: int) -> None:
    behind_other_work()
    import mooncake_adapter

    mooncake_adapter.install()
    from mfsd.client import Flow, Session, Stage, Waiting

    store = client(READER, READER_NIC, master_port, 0)
    _area, address = memory(threads * OBJECT_BYTES)
    assert store.register_buffer(address, threads * OBJECT_BYTES) == 0
    session = Session.open(process="readers")
    nic = session.nic(READER_NIC)
    queue = Flow(Stage.REUSE, OWNER, queue_bytes, nic, incoming=True)
    session.waiting([Waiting(1, 1, tokens_left=1, flows=(queue,))])
    ended = threading.Event()

    def read(part: int) -> None:
        number, to = part, address + part * OBJECT_BYTES
        while not ended.is_set():
            number = (number + threads) % OBJECTS
            answer = store.get_into(f"bulk-{number}", to, OBJECT_BYTES)
            sys.stdout.write(json.dumps({"answer": answer}) + "\n")
            sys.stdout.flush()

    for part in range(threads):
        threading.Thread(target=read, args=(part,), daemon=True).start()
    sys.stdin.read()
    ended.set()
    session.waiting([])
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "owner":
        owner(*sys.argv[2:4])
    else:
        readers(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) << 20)

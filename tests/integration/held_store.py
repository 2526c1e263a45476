"""A stock Mooncake store over RDMA with a real master whose lease is known: one client owns the memory, another reads.

Run under mfs-run: python held_store.py MASTER_PORT METRICS_PORT LEASE_MS. Prints one JSON line: what the read answered,
whether all bytes are right, and how long it took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mooncake.store

from tests.support.mooncake_peer import SIZE_BYTES, memory
from tests.support.waiting import eventually

SIZE = 1 << 20


def main() -> None:
    program = Path(mooncake.store.__file__).with_name("mooncake_master")
    program.chmod(0o755)
    port, metrics, lease_ms = sys.argv[1:]
    master = subprocess.Popen(
        [
            *(program, f"--rpc_port={port}", f"--metrics_port={metrics}", "--logtostderr"),
            f"--default_kv_lease_ttl={lease_ms}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | {"LD_LIBRARY_PATH": str(program.parent)},
    )
    area, address = memory()

    def client(segment_bytes: int) -> Any:
        made = mooncake.store.MooncakeDistributedStore()
        arguments = ("127.0.0.1", "P2PHANDSHAKE", segment_bytes, 16 << 20, "rdma", "mfs0", f"127.0.0.1:{port}")
        return made if made.setup(*arguments) == 0 else None

    owner = eventually(lambda: client(64 << 20), "the master", pause_s=0.1)
    reader = client(0)
    assert owner.register_buffer(address, SIZE_BYTES) == 0 and reader.register_buffer(address, SIZE_BYTES) == 0
    area[:SIZE] = bytes(range(256)) * (SIZE // 256)
    assert owner.put_from("one", address, SIZE) == 0
    began_s = time.monotonic()
    answer = reader.get_into("one", address + SIZE, SIZE)
    took_s = time.monotonic() - began_s
    right = area[SIZE : 2 * SIZE] == area[:SIZE]
    print(json.dumps({"answer": answer, "right": right, "took_s": took_s}), flush=True)
    master.kill()
    os._exit(0)  # the engines' threads do not end by themselves


if __name__ == "__main__":
    main()

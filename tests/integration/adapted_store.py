"""An adapted Mooncake store over RDMA with a real master: background writes by a second client, in the scavenger's
lane.

Run under mfs-run: python adapted_store.py MASTER_PORT METRICS_PORT. Prints one JSON line; exits 0 when every byte is as
it should be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mooncake_adapter
from tests.support.mooncake_peer import SIZE_BYTES, memory

SIZE = 1 << 20
TRIES = 1000


def main() -> None:
    mooncake_adapter.install()
    import mooncake.store

    program = Path(mooncake.store.__file__).with_name("mooncake_master")
    program.chmod(0o755)
    master = subprocess.Popen(
        [program, f"--rpc_port={sys.argv[1]}", f"--metrics_port={sys.argv[2]}", "--logtostderr"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | {"LD_LIBRARY_PATH": str(program.parent)},
    )
    session: Any = mooncake_adapter.current_session()
    area, address = memory()
    store: Any = None
    for _ in range(TRIES):
        store = mooncake.store.MooncakeDistributedStore()
        arguments = ("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "rdma", "mfs0", f"127.0.0.1:{sys.argv[1]}")
        if store.setup(*arguments) == 0:
            break
        time.sleep(0.1)  # until the master listens
    assert store.register_buffer(address, SIZE_BYTES) == 0
    while not session.scheduled:  # the shim attaches when the first device is opened
        time.sleep(0.01)

    def put(name: str, letter: bytes) -> None:
        area[:SIZE] = letter * SIZE
        assert store.put_from(name, address, SIZE) == 0
        assert store.get_into(name, address + SIZE, SIZE) == SIZE
        assert area[SIZE : 2 * SIZE] == letter * SIZE

    put("first", b"a")  # opens the lane behind it
    stored = store._mfs_stored
    for _ in range(TRIES):
        if stored._writer is not None:
            break
        time.sleep(0.02)
    opened = stored._writer is not None
    for number in range(8):
        put(f"later-{number}", bytes([98 + number]))
    print(json.dumps({"lane": opened}), flush=True)
    master.kill()
    os._exit(0)  # the engines' threads do not end by themselves


if __name__ == "__main__":
    main()

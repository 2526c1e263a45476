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
from pathlib import Path
from typing import Any

import mooncake_adapter
from tests.support.mooncake_peer import SIZE_BYTES, memory
from tests.support.waiting import eventually

SIZE = 1 << 20


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

    def set_up() -> Any:
        made = mooncake.store.MooncakeDistributedStore()
        arguments = ("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "rdma", "mfs0", f"127.0.0.1:{sys.argv[1]}")
        return made if made.setup(*arguments) == 0 else None

    store = eventually(set_up, "the master", pause_s=0.1)
    assert store.register_buffer(address, SIZE_BYTES) == 0
    eventually(lambda: session.scheduled, "the shim's session, which comes with the first device", pause_s=0.01)

    def put(name: str, letter: bytes) -> None:
        area[:SIZE] = letter * SIZE
        assert store.put_from(name, address, SIZE) == 0
        assert store.get_into(name, address + SIZE, SIZE) == SIZE
        assert area[SIZE : 2 * SIZE] == letter * SIZE

    put("first", b"a")  # opens the lane behind it
    stored = store._mfs_stored
    eventually(lambda: stored._writer is not None, "the lane", pause_s=0.02)
    for number in range(8):
        put(f"later-{number}", bytes([98 + number]))
    print(json.dumps({"lane": stored._writer is not None}), flush=True)
    master.kill()
    os._exit(0)  # the engines' threads do not end by themselves


if __name__ == "__main__":
    main()

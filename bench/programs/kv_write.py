"""KV writes of the stock Mooncake transfer engine from one host to another, until the program is killed.

    python bench/programs/kv_write.py --folder FOLDER --address ADDRESS --target
    python bench/programs/kv_write.py --folder FOLDER --address ADDRESS --mib 8 --threads 3

The target registers a block and writes where it is to FOLDER/target.json; the source takes it from there. Each thread
of the source makes one call after the other, as the thread pool of an engine's KV connector does.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.programs.bulk_write import engine, memory, moved

WAIT_S = 0.02


def target(file: Path, device: str, address: str, length: int) -> None:
    transfer_engine = engine(device, address)
    _block, at = memory(length)
    if transfer_engine.register_memory(at, length) != 0:
        sys.exit("kv_write: register_memory failed")
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps({"peer": f"{address}:{transfer_engine.get_rpc_port()}", "address": at}))
    fresh.rename(file)
    signal.pause()


def source(file: Path, device: str, address: str, length: int, threads: int) -> None:
    transfer_engine = engine(device, address)
    _block, at = memory(length)
    if transfer_engine.register_memory(at, length) != 0:
        sys.exit("kv_write: register_memory failed")
    while not file.exists():
        time.sleep(WAIT_S)
    where = json.loads(file.read_text())
    part = length // threads
    failed = threading.Event()

    def write(thread: int) -> None:
        while not failed.is_set():
            if not moved(transfer_engine, where["peer"], at + thread * part, where["address"] + thread * part, part):
                print("kv_write: a transfer failed", file=sys.stderr)
                failed.set()

    for thread in range(threads):
        threading.Thread(target=write, args=(thread,), daemon=True).start()
    failed.wait()
    sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where source and target meet")
    parser.add_argument("--address", required=True, help="IPv4 address of this host")
    parser.add_argument("--device", default="mfs0", help="RDMA device")
    parser.add_argument("--mib", type=int, default=8, help="size of one call in MiB")
    parser.add_argument("--threads", type=int, default=3, help="calls under way at once")
    parser.add_argument("--target", action="store_true", help="be the one that is written to")
    options = parser.parse_args()
    length = options.threads * options.mib << 20
    file = options.folder / "target.json"
    if options.target:
        target(file, options.device, options.address, length)
    else:
        source(file, options.device, options.address, length, options.threads)


if __name__ == "__main__":
    main()

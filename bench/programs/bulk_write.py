"""A bulk KV write with the stock Mooncake transfer engine: what prefill-to-decode traffic looks like to a NIC.

    python bench/programs/bulk_write.py --mib 8 --threads 3 [--device mfs0]

Starts a target process, then writes blocks to it until standard input closes: each thread one call after the other, as
the thread pool of an engine's KV connector does. Prints one JSON line for each call: {"start_ns": .., "end_ns": ..,
"bytes": ..} on CLOCK_MONOTONIC, and {"ready": true} before the first. At the end the target compares every byte of the
last block. Exit 0; 1 when a call fails; 2 on wrong data.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import mmap
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

DONE, PENDING = 1, 0
POLL_S = 0.001


def engine(device: str, address: str = "127.0.0.1") -> Any:
    """A transfer engine on the RDMA device of the host with this address, with Mooncake's settings for a machine of few
    cores."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as topology:
        json.dump({"cpu:0": [[device], []]}, topology)
        topology.flush()
        os.environ |= {
            "MC_CUSTOM_TOPO_JSON": topology.name,
            "MC_GID_INDEX": "0",
            "MC_WORKERS_PER_CTX": "1",
            "MC_NUM_QP_PER_EP": "8",
            "GLOG_minloglevel": "2",
            "MC_LOG_LEVEL": "ERROR",
        }
        from mooncake.engine import TransferEngine

        transfer_engine = TransferEngine()
        if transfer_engine.initialize(address, "P2PHANDSHAKE", "rdma", "") != 0:
            sys.exit("bulk_write: Mooncake found no RDMA device; start me under mfs-soft-roce, or with a NIC")
    return transfer_engine


def memory(length: int) -> tuple[mmap.mmap, int]:
    block = mmap.mmap(-1, length)
    return block, ctypes.addressof(ctypes.c_char.from_buffer(block))


def moved(transfer_engine: Any, *arguments: Any) -> bool:
    """One write. Mooncake's own waiting spins, and would take from others the cores that they compute on."""
    transfer = transfer_engine.transfer_submit_write(*arguments)
    while (status := transfer_engine.transfer_check_status(transfer)) == PENDING:
        time.sleep(POLL_S)
    return bool(status == DONE)


def target(device: str, length: int) -> None:
    """Registers a block, tells where it is, and answers the block's digest when asked (a line on standard input)."""
    transfer_engine = engine(device)
    block, address = memory(length)
    if transfer_engine.register_memory(address, length) != 0:
        sys.exit("bulk_write: register_memory failed")
    print(json.dumps({"peer": f"127.0.0.1:{transfer_engine.get_rpc_port()}", "address": address}), flush=True)
    for _ in sys.stdin:
        print(hashlib.sha256(block).hexdigest(), flush=True)
    os._exit(0)  # Mooncake's threads outlive the interpreter's shutdown


def source(device: str, length: int, threads: int) -> None:
    child = subprocess.Popen(
        [sys.executable, __file__, "--target", "--threads", "1", "--mib", str(length >> 20), "--device", device],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin and child.stdout
    where = None
    for line in child.stdout:  # Mooncake prints a banner of its own first
        if line.startswith('{"peer"'):
            where = json.loads(line)
            break
    if where is None:
        sys.exit("bulk_write: the target did not start")
    transfer_engine = engine(device)
    block, address = memory(length)
    block[:] = os.urandom(length)
    if transfer_engine.register_memory(address, length) != 0:
        sys.exit("bulk_write: register_memory failed")
    print(json.dumps({"ready": True}), flush=True)
    failed = threading.Event()

    def write(part: int) -> None:
        """Calls of one thread: its own part of the block, again and again."""
        offset = part * (length // threads)
        while not failed.is_set() and not select.select([sys.stdin], [], [], 0)[0]:
            start_ns = time.monotonic_ns()
            arguments = (where["peer"], address + offset, where["address"] + offset, length // threads)
            if not moved(transfer_engine, *arguments):
                print("bulk_write: a transfer failed", file=sys.stderr)
                failed.set()
                return
            line = {"start_ns": start_ns, "end_ns": time.monotonic_ns(), "bytes": length // threads}
            sys.stdout.write(json.dumps(line) + "\n")  # one write: lines of two threads do not mix
            sys.stdout.flush()

    writers = [threading.Thread(target=write, args=(part,)) for part in range(threads)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    status = 1 if failed.is_set() else 0
    child.stdin.write("digest\n")
    child.stdin.flush()
    if status == 0 and child.stdout.readline().strip() != hashlib.sha256(block).hexdigest():
        print("bulk_write: the target holds other bytes than were written", file=sys.stderr)
        status = 2
    child.stdin.close()
    child.wait()
    os._exit(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=8, help="size of one call in MiB")
    parser.add_argument("--threads", type=int, default=3, help="calls under way at once")
    parser.add_argument("--device", default="mfs0", help="RDMA device")
    parser.add_argument("--target", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    length = arguments.threads * arguments.mib << 20
    if arguments.target:
        target(arguments.device, length)
    else:
        source(arguments.device, length, arguments.threads)


if __name__ == "__main__":
    main()

"""One call into the native client from Python: by Cython (mfsd._native) and by cffi (mfsd.capi), interleaved.

Both go through one session. A task is a submission and its completion; a layer is one store and, at most, a message; a
hash only computes. cffi's task is given in a structure that is made anew, and in one that is kept and filled again.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.micro.daemon import mfsd
from mfsd import _native
from mfsd._native import Client, Stage
from mfsd.capi import ffi, lib

BLOCKS, ROUNDS = 60, 500
RATE_BYTES_PER_S = 50_000_000_000
BYTES = 4096
GID = bytes(range(16))


def cython_calls(client: Client, nic: int, slot: int) -> dict[str, Callable[[], object]]:
    def task() -> None:
        client.complete(client.submit(BYTES, stage=Stage.P2D, nic=nic, request_id=7, asked=True))

    return {
        "hash": lambda: _native.peer_hash(GID),
        "layer": lambda: client.batch_layer(slot, 3),
        "task": task,
    }


def cffi_calls(client: Any, nic: int, slot: int) -> dict[str, Callable[[], object]]:
    task_id = ffi.new("uint64_t *")
    fields = {"bytes": BYTES, "stage": lib.MFS_STAGE_P2D, "nic": nic, "request_id": 7, "batch": lib.MFS_NONE_U32}
    kept = ffi.new("struct mfs_task *", {**fields, "at_once": True})

    def fresh() -> None:
        made = ffi.new("struct mfs_task *", {**fields, "at_once": True})
        lib.mfs_client_submit(client, made, lib.MFS_COOKIE_NONE, task_id)
        lib.mfs_client_complete(client, task_id[0])

    def filled() -> None:
        kept.bytes, kept.request_id = BYTES, 7
        lib.mfs_client_submit(client, kept, lib.MFS_COOKIE_NONE, task_id)
        lib.mfs_client_complete(client, task_id[0])

    return {
        "hash": lambda: lib.mfs_peer_hash(GID),
        "layer": lambda: lib.mfs_client_batch_layer(client, slot, 3),
        "task": fresh,
        "task_kept": filled,
    }


def block_ns(call: Callable[[], object]) -> float:
    began = time.thread_time_ns()
    for _ in range(ROUNDS):
        call()
    return (time.thread_time_ns() - began) / ROUNDS


def run() -> dict[str, Any]:
    """*_ns: processor time of a call with what Python needs around it, median of blocks; ratio: cffi's to Cython's."""
    with mfsd() as (socket, _):
        client = ffi.new("struct mfs_client **")
        path = ffi.new("char[]", str(socket).encode())
        options = ffi.new("struct mfs_client_options *", {"mode": lib.MFS_MODE_ENFORCE, "socket_path": path})
        if lib.mfs_client_attach(options, client, ffi.NULL) < 0:
            sys.exit("bench: the daemon does not take this client")
        nic = lib.mfs_client_nic(client[0], b"bench0", 1, RATE_BYTES_PER_S)
        slot = lib.mfs_client_batch_begin(client[0], 2, 32, 0, 0)
        first = cython_calls(Client.borrow(int(ffi.cast("size_t", client[0]))), nic, slot)
        calls = {f"cython_{name}_ns": call for name, call in first.items()}
        calls |= {f"cffi_{name}_ns": call for name, call in cffi_calls(client[0], nic, slot).items()}
        took: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(BLOCKS):
            for name, call in calls.items():
                took[name].append(block_ns(call))
        lib.mfs_client_detach(client[0])
    results = {name: round(statistics.median(values)) for name, values in took.items()}
    ratios = {f"{name}_ratio": results[f"cffi_{name}_ns"] / results[f"cython_{name}_ns"] for name in first}
    ratios["task_kept_ratio"] = results["cffi_task_kept_ns"] / results["cython_task_ns"]
    return {**results, **{name: round(ratio, 2) for name, ratio in ratios.items()}}

"""Two processes that move data by the stock NIXL wheel and its UCX: writes and reads, of one descriptor and of many.

Run under mfs-soft-roce with the wheel on PYTHONPATH and no TCP in UCX_TLS. Exits 0 when every byte is as it should be.
"""

import multiprocessing
import os
import time

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = 8 << 20
WAIT_S = 60


def pattern(seed):
    return numpy.random.default_rng(seed).integers(0, 256, SIZE, dtype=numpy.uint8)


def agent(name, area):
    made = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    assert made.register_memory([(area.ctypes.data, SIZE, 0, "")], "DRAM")
    return made


def target(pipe):
    if os.environ.get("STOCK_TARGET"):  # its plugins are NIXL's own, whatever the other process has
        os.environ.pop("NIXL_PLUGIN_DIR", None)
    area = numpy.zeros(SIZE, dtype=numpy.uint8)
    made = agent("target", area)
    pipe.send((made.get_agent_metadata(), area.ctypes.data))
    while (request := pipe.recv()) is not None:
        kind, seed = request
        if kind == "fill":
            area[:] = pattern(seed)
            pipe.send(True)
        else:
            pipe.send(bool((area == pattern(seed)).all()))
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other, with any transport


def transfer(own, kind, local, remote, pieces):
    step = SIZE // pieces
    lists = [
        own.get_xfer_descs([(base + i * step, step, 0) for i in range(pieces)], "DRAM")
        for base in (local.ctypes.data, remote)
    ]
    handle = own.initialize_xfer(kind, *lists, "target")
    state = own.transfer(handle)
    end = time.monotonic() + WAIT_S
    while state == "PROC" and time.monotonic() < end:
        state = own.check_xfer_state(handle)
    assert state == "DONE", state
    own.release_xfer_handle(handle)


def main():
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=target, args=(theirs,))
    child.start()
    metadata, remote = ours.recv()
    area = numpy.zeros(SIZE, dtype=numpy.uint8)
    own = agent("initiator", area)
    own.add_remote_agent(metadata)
    for seed, pieces in enumerate((1, 16, 1024)):
        area[:] = pattern(seed)
        transfer(own, "WRITE", area, remote, pieces)
        ours.send(("check", seed))
        assert ours.recv(), f"written in {pieces} pieces"
        ours.send(("fill", 100 + seed))
        assert ours.recv()
        transfer(own, "READ", area, remote, pieces)
        assert (area == pattern(100 + seed)).all(), f"read in {pieces} pieces"
    ours.send(None)
    child.join()
    print("verified 3 writes and 3 reads", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

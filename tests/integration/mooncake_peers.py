"""Two processes that move data by the stock Mooncake wheel over RDMA: writes, reads, batches, more engines.

Run under mfs-soft-roce with the wheel on PYTHONPATH. Exits 0 when every byte is as it should be.
"""

import ctypes
import mmap
import multiprocessing
import os
import sys

SIZE = 8 << 20
HALF = SIZE // 2
ENGINES = 2


def memory():
    area = mmap.mmap(-1, SIZE)
    return area, ctypes.addressof(ctypes.c_char.from_buffer(area))


def engine(address):
    from mooncake.engine import TransferEngine

    made = TransferEngine()
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    assert made.register_memory(address, SIZE) == 0
    return made


def pattern(seed, length):
    block = bytes((seed * 37 + i * 11 + i // 256) & 0xFF for i in range(4096))
    return (block * (length // 4096 + 1))[:length]


def target(pipe):
    area, address = memory()
    engines = [engine(address) for _ in range(ENGINES)]
    pipe.send(([f"127.0.0.1:{one.get_rpc_port()}" for one in engines], address))
    while (request := pipe.recv()) is not None:
        kind, offset, argument = request
        if kind == "fill":
            area[offset : offset + len(argument)] = argument
            pipe.send(True)
        else:
            pipe.send(area[offset : offset + len(argument)] == argument)
    os._exit(0)  # the engine's threads do not end by themselves


def main():
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other,))
    process.start()
    peers, remote = pipe.recv()
    area, local = memory()
    engines = [engine(local) for _ in range(ENGINES)]

    def ask(*request):
        pipe.send(request)
        assert pipe.recv(), request[:2]

    seed = 0
    for own in engines:
        for peer in peers:
            for length in (1, 4096, 65536, 65537, 3_000_001):
                seed += 1
                area[:length] = pattern(seed, length)
                assert own.transfer_sync_write(peer, local, remote, length) == 0
                ask("check", 0, pattern(seed, length))
                ask("fill", HALF, pattern(seed + 100, length))
                assert own.transfer_sync_read(peer, local + HALF, remote + HALF, length) == 0
                assert area[HALF : HALF + length] == pattern(seed + 100, length)
            parts = [(i * 200_000, 100_000 + i) for i in range(16)]
            for offset, length in parts:
                area[offset : offset + length] = pattern(offset, length)
            sources = [local + offset for offset, _ in parts]
            places = [remote + offset for offset, _ in parts]
            lengths = [length for _, length in parts]
            assert own.batch_transfer_sync_write(peer, sources, places, lengths) == 0
            for offset, length in parts:
                ask("check", offset, pattern(offset, length))
    pipe.send(None)
    process.join(200)
    print("verified", seed, "sizes and", len(engines) * len(peers), "batches", flush=True)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())

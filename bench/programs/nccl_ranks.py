"""NCCL ranks on one GPU that meet over the network: right results or an error, and how long it took.

Started once, it starts a process for each rank. NCCL refuses two ranks on one GPU of one host and prefers shared memory
between them, so each rank has a host name of its own (NCCL_HOSTID). Needs the CUDA driver and libnccl.so.2, nothing
else: both are called through ctypes. One JSON line for each rank on standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

ENVIRONMENT = {
    "NCCL_NET": "IB",
    "NCCL_IB_GID_INDEX": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET_GDR_LEVEL": "LOC",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_GIN_ENABLE": "0",
    "NCCL_MAX_CTAS": "4",
}
"""What makes ranks of one GPU talk over a (software) RoCE device, through the CPU's memory."""

COMMUNICATORS = ("tensor", "expert")
UNSET = -(2**31)
FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum
CONFIG_MAGIC, CONFIG_VERSION = 0xCAFEBEEF, 22700
WAIT_S = 60.0


class CudaError(Exception):
    """What the driver or NCCL refuses."""


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    """ncclConfig_t as of 2.27; later releases read as much of it as it says it has."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
        ("traffic_class", ctypes.c_int),
        ("comm_name", ctypes.c_char_p),
        ("collnet_enable", ctypes.c_int),
        ("cta_policy", ctypes.c_int),
        ("shrink_share", ctypes.c_int),
        ("nvls_ctas", ctypes.c_int),
    )


class Gpu:
    """The first GPU, through the CUDA driver."""

    def __init__(self) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"no CUDA driver: {error}") from None
        self._call("cuInit", 0)
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        if count.value == 0:
            raise CudaError("the CUDA driver finds no GPU")
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code:
            raise CudaError(f"{name}: CUDA error {code}")

    def allocate(self, size_bytes: int) -> ctypes.c_void_p:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        return ctypes.c_void_p(address.value)

    def write(self, to: ctypes.c_void_p, values: array[float]) -> None:
        address, count = values.buffer_info()
        size = ctypes.c_size_t(count * values.itemsize)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(to.value or 0), ctypes.c_void_p(address), size)

    def read(self, at: ctypes.c_void_p, count: int) -> array[float]:
        values = array("f", bytes(4 * count))
        address, _ = values.buffer_info()
        size = ctypes.c_size_t(count * values.itemsize)
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(address), ctypes.c_uint64(at.value or 0), size)
        return values

    def finish(self) -> None:
        self._call("cuCtxSynchronize")


class Nccl:
    """The calls of libnccl.so.2 that are used here; an error names the call and NCCL's own words."""

    def __init__(self, library: str) -> None:
        self._nccl = ctypes.CDLL(library)
        self._nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self._nccl.ncclCommInitRankConfig.argtypes = (
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_int,
            UniqueId,
            ctypes.c_int,
            ctypes.POINTER(Config),
        )

    def call(self, name: str, *arguments: object) -> None:
        code = getattr(self._nccl, name)(*arguments)
        if code:
            raise CudaError(f"{name}: {self._nccl.ncclGetErrorString(code).decode()}")

    def version(self) -> int:
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return number.value

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        self.call("ncclGroupStart")
        yield
        self.call("ncclGroupEnd")

    def communicator(self, name: str, identity: UniqueId, rank: int, ranks: int) -> ctypes.c_void_p:
        config = Config(
            ctypes.sizeof(Config), CONFIG_MAGIC, CONFIG_VERSION, 1, UNSET, UNSET, UNSET, None, UNSET, UNSET,
            name.encode(), UNSET, UNSET, UNSET, UNSET,
        )  # fmt: skip
        made = ctypes.c_void_p()
        self.call("ncclCommInitRankConfig", ctypes.byref(made), ranks, identity, rank, ctypes.byref(config))
        return made


def shared_id(nccl: Nccl, folder: Path, name: str, rank: int) -> UniqueId:
    """Rank 0 makes the communicator's identity, the others wait for it in the folder."""
    path = folder / f"{name}.id"
    identity = UniqueId()
    if rank == 0:
        nccl.call("ncclGetUniqueId", ctypes.byref(identity))
        partial = path.with_suffix(".partial")
        partial.write_bytes(ctypes.string_at(ctypes.byref(identity), ctypes.sizeof(identity)))
        partial.rename(path)
        return identity
    until = time.monotonic() + WAIT_S
    while not path.is_file():
        if time.monotonic() > until:
            raise TimeoutError(f"rank 0 has not made {path} within {WAIT_S:g} s")
        time.sleep(0.01)
    return UniqueId.from_buffer_copy(path.read_bytes())


class Rank:
    """One rank's buffers and communicators."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rank, self.ranks, self.count = arguments.rank, arguments.ranks, arguments.count
        self.gpu = Gpu()
        self.nccl = Nccl(arguments.library)
        self.send, self.receive = (self.gpu.allocate(4 * self.count * self.ranks) for _ in range(2))
        self.communicators = {
            name: self.nccl.communicator(
                name, shared_id(self.nccl, arguments.folder, name, self.rank), self.rank, self.ranks
            )
            for name in COMMUNICATORS
        }

    def _values(self, of: int, to: int) -> array[float]:
        """What rank `of` has for rank `to`: small whole numbers, so that sums are exact."""
        return array("f", [float((i * 7 + of * 13 + to * 29) % 64) for i in range(self.count)])

    def _check(self, what: str, at: int, wanted: array[float]) -> None:
        address = ctypes.c_void_p((self.receive.value or 0) + 4 * at)
        found = self.gpu.read(address, len(wanted))
        if found != wanted:
            wrong = next(i for i in range(len(wanted)) if found[i] != wanted[i])
            raise AssertionError(
                f"rank {self.rank}: {what}: element {at + wrong} is {found[wrong]}, not {wanted[wrong]}"
            )

    def _part(self, buffer: ctypes.c_void_p, part: int) -> ctypes.c_void_p:
        return ctypes.c_void_p((buffer.value or 0) + 4 * self.count * part)

    def _clear(self) -> None:
        self.gpu.write(self.receive, array("f", bytes(4 * self.count * self.ranks)))

    def all_reduce(self) -> Callable[[], None]:
        self._clear()
        self.gpu.write(self.send, self._values(self.rank, 0))
        size = ctypes.c_size_t(self.count)
        communicator = self.communicators["tensor"]
        self.nccl.call("ncclAllReduce", self.send, self.receive, size, FLOAT, SUM, communicator, None)

        def check() -> None:
            parts = [self._values(rank, 0) for rank in range(self.ranks)]
            self._check("all-reduce", 0, array("f", [sum(column) for column in zip(*parts, strict=True)]))

        return check

    def all_to_all(self) -> Callable[[], None]:
        self._clear()
        for peer in range(self.ranks):
            self.gpu.write(self._part(self.send, peer), self._values(self.rank, peer))
        size = ctypes.c_size_t(self.count)
        communicator = self.communicators["expert"]
        with self.nccl.group():
            for peer in range(self.ranks):
                self.nccl.call("ncclSend", self._part(self.send, peer), size, FLOAT, peer, communicator, None)
                self.nccl.call("ncclRecv", self._part(self.receive, peer), size, FLOAT, peer, communicator, None)

        def check() -> None:
            for peer in range(self.ranks):
                self._check("all-to-all", peer * self.count, self._values(peer, self.rank))

        return check

    def send_receive(self) -> Callable[[], None]:
        """To the next rank, from the one before."""
        self._clear()
        after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        self.gpu.write(self.send, self._values(self.rank, after))
        size = ctypes.c_size_t(self.count)
        communicator = self.communicators["tensor"]
        with self.nccl.group():
            self.nccl.call("ncclSend", self.send, size, FLOAT, after, communicator, None)
            self.nccl.call("ncclRecv", self.receive, size, FLOAT, before, communicator, None)
        return lambda: self._check("send/receive", 0, self._values(before, self.rank))

    def run(self, rounds: int, layer: Callable[[int], None]) -> dict[str, list[float]]:
        """Seconds of every operation in every round but the first, which connects."""
        seconds: dict[str, list[float]] = {}
        for round_number in range(rounds):
            layer(round_number)
            for name in ("all_reduce", "all_to_all", "send_receive"):
                start = time.perf_counter()
                check = getattr(self, name)()
                self.gpu.finish()
                if round_number:
                    seconds.setdefault(name, []).append(time.perf_counter() - start)
                check()
        return seconds

    def close(self) -> None:
        for communicator in self.communicators.values():
            self.nccl.call("ncclCommDestroy", communicator)


@contextlib.contextmanager
def batch(wanted: bool, batch_id: int, layers: int) -> Iterator[Callable[[int], None]]:
    """Tells MFS of a batch, where that is wanted: what is called at every layer boundary."""
    if not wanted:
        yield lambda _layer: None
        return
    from mfsd.client import Session

    with Session.open() as session, session.batch(batch_id, layers=layers) as batch:
        yield batch.layer


def one_rank(arguments: argparse.Namespace) -> None:
    rank = Rank(arguments)
    with batch(arguments.batch, 1 + secrets.randbelow(2**32), arguments.rounds) as layer:
        seconds = rank.run(arguments.rounds, layer)
        answer = {"rank": rank.rank, "nccl": rank.nccl.version(), "seconds": seconds}
        print(json.dumps(answer), flush=True)
        sys.stdin.read()  # the parent has seen what it wants to see
    rank.close()


def all_ranks(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Starts the ranks; they end when our standard input does. The first one that fails ends the others."""
    with tempfile.TemporaryDirectory(prefix="mfs-nccl-") as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, *argv, "--rank", str(rank), "--folder", folder],
                env={**ENVIRONMENT, **os.environ, "NCCL_HOSTID": f"rank{rank}"},
                stdin=subprocess.PIPE if rank else None,
            )
            for rank in range(arguments.ranks)
        ]
        failed = 0
        try:
            while not failed and any(rank.poll() is None for rank in ranks):
                failed = next((abs(rank.returncode) for rank in ranks if rank.poll()), 0)
                if ranks[0].poll() is not None:  # it has read the end of our input
                    for rank in ranks[1:]:
                        if rank.stdin is not None:
                            rank.stdin.close()
                            rank.stdin = None
                time.sleep(0.02)
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                rank.wait()
    return failed


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="path of libnccl.so.2")
    parser.add_argument("--ranks", type=int, default=2, help="2 to 8")
    parser.add_argument("--rounds", type=int, default=4, help="of every operation")
    parser.add_argument("--count", type=int, default=65536, help="elements (4 bytes) that a rank has for another")
    parser.add_argument("--batch", action="store_true", help="tell MFS of a batch; a round is a layer")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if not 2 <= arguments.ranks <= 8:
        parser.error(f"--ranks {arguments.ranks}: give 2 to 8")
    if arguments.rank is None:
        return all_ranks(arguments, argv)
    try:
        one_rank(arguments)
    except CudaError as error:
        print(f"rank {arguments.rank}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

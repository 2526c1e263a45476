"""The reverse multi-level queue compiled alone, called through ctypes: no daemon, no binding module."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "csrc/queue").glob("*.c"))
FLAGS = ["-std=gnu11", "-g1", "-Wall", "-Wextra", "-Werror", *shlex.split(os.environ.get("CPPFLAGS", ""))]
NEVER = 2**64 - 1


class Policy(ctypes.Structure):
    """Its thresholds; the parameters behind them are set by name."""

    _fields_ = [("threshold", c_double * 8), ("parameters", c_uint8 * 256)]


class Parameter(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("fallback", c_double),
        ("least", c_double),
        ("most", c_double),
        ("offset", c_uint32),
        ("kind", c_uint32),
    ]


class Flow(ctypes.Structure):
    _fields_ = [
        ("bytes", c_uint64),
        ("request", c_uint64),
        ("batch", c_uint64),
        ("deadline_ns", c_uint64),
        ("cookie", c_uint64),
        ("layer", c_uint16),
        ("destination", c_uint16),
        ("stage", c_uint8),
        ("reserved", c_uint8 * 3),
        ("bytes_left", c_uint64),
        ("turn", c_uint64),
    ]


class Pick(ctypes.Structure):
    _fields_ = [
        ("handle", c_uint64),
        ("cookie", c_uint64),
        ("bytes", c_uint64),
        ("rli", c_uint32),
        ("tier", c_uint8),
        ("level", c_uint8),
        ("wire_class", c_uint8),
        ("in_flight", c_uint8),
        ("destination", c_uint16),
        ("reserved", c_uint8 * 6),
    ]


class BatchContext(ctypes.Structure):
    _fields_ = [
        ("layer_current", c_uint32),
        ("layers", c_uint32),
        ("rank", c_uint32),
        ("pruned", c_uint32),
        ("deadline_ns", c_uint64),
        ("compute_left_ns", c_uint64),
    ]


class RequestContext(ctypes.Structure):
    _fields_ = [
        ("deadline_ns", c_uint64),
        ("budget_ns", c_uint64),
        ("bytes_ahead", c_uint64),
        ("bytes_tail", c_uint64),
    ]


class Stats(ctypes.Structure):
    _fields_ = [
        ("waiting_bytes", c_uint64 * 8),
        ("waiting_tasks", c_uint64 * 8),
        ("in_flight_bytes", c_uint64),
        ("in_flight_tasks", c_uint64),
        ("promotions", c_uint64),
        ("evaluations", c_uint64),
        ("requests", c_uint32),
        ("batches", c_uint32),
    ]


SIGNATURES = {
    "mfs_policy_default": (None, [POINTER(Policy), c_uint32]),
    "mfs_policy_parameter": (POINTER(Parameter), [c_uint32]),
    "mfs_policy_set": (None, [POINTER(Policy), POINTER(Parameter), c_double]),
    "mfs_rmlq_create": (c_int, [POINTER(Policy), c_uint64, c_uint32, POINTER(c_void_p)]),
    "mfs_rmlq_destroy": (None, [c_void_p]),
    "mfs_rmlq_set_incoming": (None, [c_void_p]),
    "mfs_rmlq_submit": (c_int, [c_void_p, POINTER(Flow), c_uint64, POINTER(c_uint64)]),
    "mfs_rmlq_peek": (c_int, [c_void_p, c_uint64, POINTER(Pick)]),
    "mfs_rmlq_pick": (c_int, [c_void_p, c_uint64, POINTER(Pick)]),
    "mfs_rmlq_take": (c_int, [c_void_p, c_uint64, c_uint64, POINTER(Pick)]),
    "mfs_rmlq_destination_close": (None, [c_void_p, c_uint16]),
    "mfs_rmlq_destination_open": (None, [c_void_p, c_uint16]),
    "mfs_rmlq_place": (c_int, [c_void_p, c_uint64, POINTER(Pick)]),
    "mfs_rmlq_complete": (c_int, [c_void_p, c_uint64, c_uint64]),
    "mfs_rmlq_cancel": (c_int, [c_void_p, c_uint64]),
    "mfs_rmlq_batch": (c_int, [c_void_p, c_uint64, POINTER(BatchContext), c_uint64]),
    "mfs_rmlq_batch_end": (c_int, [c_void_p, c_uint64]),
    "mfs_rmlq_request": (c_int, [c_void_p, c_uint64, POINTER(RequestContext), c_uint64]),
    "mfs_rmlq_request_end": (c_int, [c_void_p, c_uint64]),
    "mfs_rmlq_prune": (c_int, [c_void_p, c_uint64]),
    "mfs_rmlq_unprune": (c_int, [c_void_p, c_uint64]),
    "mfs_rmlq_set_load": (c_int, [c_void_p, c_double]),
    "mfs_rmlq_set_rate": (c_int, [c_void_p, c_uint64]),
    "mfs_rmlq_advance": (c_uint64, [c_void_p, c_uint64]),
    "mfs_rmlq_waiting": (c_uint32, [c_void_p]),
    "mfs_rmlq_waiting_at": (c_uint32, [c_void_p, c_uint16]),
    "mfs_rmlq_stats": (None, [c_void_p, POINTER(Stats)]),
}


class Native:
    """The compiled library. `queue()` makes queues; those still open are destroyed with the fixture."""

    NEVER = NEVER

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments

    def policy(self, classes: int = 8, **changes: object) -> Policy:
        policy = Policy()
        self.library.mfs_policy_default(byref(policy), classes)
        parameters: dict[str, ctypes._Pointer[Parameter]] = {}
        while parameter := self.library.mfs_policy_parameter(len(parameters)):
            parameters[parameter.contents.name.decode()] = parameter
        for name, value in changes.items():
            self.library.mfs_policy_set(byref(policy), parameters[name], value)
        return policy

    def create(self, policy: Policy, rate: int, flows_max: int) -> tuple[int, c_void_p]:
        queue = c_void_p()
        return self.library.mfs_rmlq_create(byref(policy), rate, flows_max, byref(queue)), queue

    def queue(self, policy: Policy | None = None, rate: int = 10**9, flows_max: int = 256) -> Queue:
        code, pointer = self.create(policy or self.policy(), rate, flows_max)
        assert code == 0
        return Queue(self.library, pointer)


class Queue:
    """One queue; calls return what C returns, and results by value."""

    def __init__(self, library: ctypes.CDLL, pointer: c_void_p) -> None:
        self._library, self._pointer = library, pointer

    def __del__(self) -> None:
        self._library.mfs_rmlq_destroy(self._pointer)

    def submit(self, now_ns: int = 0, **flow: int) -> tuple[int, int]:
        handle = c_uint64()
        code = self._library.mfs_rmlq_submit(self._pointer, byref(Flow(**flow)), now_ns, byref(handle))
        return code, handle.value

    def peek(self, now_ns: int = 0) -> tuple[int, Pick]:
        pick = Pick()
        return self._library.mfs_rmlq_peek(self._pointer, now_ns, byref(pick)), pick

    def pick(self, now_ns: int = 0) -> tuple[int, Pick]:
        pick = Pick()
        return self._library.mfs_rmlq_pick(self._pointer, now_ns, byref(pick)), pick

    def take(self, handle: int, now_ns: int = 0) -> tuple[int, Pick]:
        pick = Pick()
        return self._library.mfs_rmlq_take(self._pointer, handle, now_ns, byref(pick)), pick

    def place(self, handle: int) -> tuple[int, Pick]:
        pick = Pick()
        return self._library.mfs_rmlq_place(self._pointer, handle, byref(pick)), pick

    def batch(self, batch: int, now_ns: int = 0, **context: int) -> int:
        return self._library.mfs_rmlq_batch(self._pointer, batch, byref(BatchContext(**context)), now_ns)

    def request(self, request: int, now_ns: int = 0, **context: int) -> int:
        return self._library.mfs_rmlq_request(self._pointer, request, byref(RequestContext(**context)), now_ns)

    def stats(self) -> Stats:
        stats = Stats()
        self._library.mfs_rmlq_stats(self._pointer, byref(stats))
        return stats

    def __getattr__(self, name: str):  # the calls that take and return plain numbers
        function = getattr(self._library, f"mfs_rmlq_{name}")
        return lambda *arguments: function(self._pointer, *arguments)


def compile_queue(output: Path, *extra: str) -> Path:
    command = ["cc", *FLAGS, *extra, f"-I{ROOT / 'csrc/include'}", *map(str, SOURCES), "-o", str(output)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[:4000]
    return output


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    folder = tmp_path_factory.mktemp("rmlq")
    return Native(compile_queue(folder / "librmlq.so", "-O2", "-fPIC", "-shared"))


@pytest.fixture(scope="session")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stress program, built with the address and undefined-behaviour sanitizers."""
    folder = tmp_path_factory.mktemp("stress")
    return compile_queue(
        folder / "stress",
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        str(Path(__file__).parent / "stress.c"),
    )

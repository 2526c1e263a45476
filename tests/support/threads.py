"""Stops one thread of another process, as a debugger does: everything else of that process goes on."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000
"""__WALL: waitpid looks at threads, too."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, thread: int) -> None:
    if _libc.ptrace(request, thread, None, None) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"ptrace of thread {thread}")


def thread_named(pid: int, name: str) -> int:
    """The number of the process's one thread of that name."""
    (found,) = (int(t.name) for t in Path(f"/proc/{pid}/task").iterdir() if (t / "comm").read_text().strip() == name)
    return found


class Hung:
    """A thread that does not run, until `go_on` or the end of its process."""

    def __init__(self, pid: int, name: str) -> None:
        """The process must be ours to trace: a child."""
        self._thread = thread_named(pid, name)
        self._ended = False
        _ptrace(PTRACE_SEIZE, self._thread)
        _ptrace(PTRACE_INTERRUPT, self._thread)
        assert os.waitpid(self._thread, WALL)[0] == self._thread

    def wait_end(self) -> None:
        """Until the thread is killed where it stands. Its process is not seen to end before that was asked for."""
        while True:
            _, status = os.waitpid(self._thread, WALL)
            if os.WIFSIGNALED(status) or os.WIFEXITED(status):
                self._ended = True
                return

    def go_on(self) -> None:
        if not self._ended:
            _ptrace(PTRACE_DETACH, self._thread)


@contextlib.contextmanager
def hung(pid: int, name: str) -> Iterator[Hung]:
    """Within the block that thread of the process does not run."""
    thread = Hung(pid, name)
    try:
        yield thread
    finally:
        thread.go_on()

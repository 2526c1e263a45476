"""Stops one thread of another process, as a debugger does. All other threads of the process go on."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000
"""__WALL: waitpid also waits for threads."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, thread: int) -> None:
    if _libc.ptrace(request, thread, None, None) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"ptrace of thread {thread}")


def thread_named(pid: int, name: str) -> int:
    """Returns the number of the process's only thread of that name."""
    (found,) = (int(t.name) for t in Path(f"/proc/{pid}/task").iterdir() if (t / "comm").read_text().strip() == name)
    return found


class Hung:
    """A thread that is stopped until `go_on` or the end of its process."""

    def __init__(self, pid: int, name: str) -> None:
        """The process must be a child, which this process may trace."""
        self._thread = thread_named(pid, name)
        self._ended = False
        _ptrace(PTRACE_SEIZE, self._thread)
        _ptrace(PTRACE_INTERRUPT, self._thread)
        assert os.waitpid(self._thread, WALL)[0] == self._thread

    def wait_end(self) -> None:
        """Waits until the stopped thread is killed. Only after this wait is the process seen to have ended."""
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
    """Stops that thread of the process while the block runs."""
    thread = Hung(pid, name)
    try:
        yield thread
    finally:
        thread.go_on()

"""Runs a program in a terminal of a given size, and reads the text on its screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
from collections.abc import Callable
from types import TracebackType

import pyte

from tests.support.waiting import eventually

READ_S = 0.05


class Terminal:
    """Runs a command on a pseudo terminal. Leaving the context kills it."""

    def __init__(self, command: list[str], columns: int, lines: int, **environment: str) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            left_out = ("COLUMNS", "LINES", "NO_COLOR")
            kept = {name: value for name, value in os.environ.items() if name not in left_out}
            os.execvpe(command[0], command, {**kept, "TERM": "xterm-256color", **environment})
        self.status: int | None = None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)
        if error is not None:
            print("the screen:", *self.screen.display, sep="\n|")

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def _read(self) -> None:
        """Reads for a moment what the program writes."""
        while select.select([self._fd], [], [], READ_S)[0]:
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # the program has ended
                data = b""
            if not data:
                return
            self.raw += data
            with contextlib.suppress(Exception):  # the emulator does not know some private sequences
                self._stream.feed(data)

    def wait(self, seen: Callable[[str], bool], what: str) -> str:
        """Waits until the screen's text satisfies `seen`, and returns it."""

        def poll() -> str | None:
            self._read()
            return self.text if seen(self.text) else None

        return eventually(poll, what, pause_s=0)

    def wait_end(self) -> int:
        """Waits for the end of the program and returns its exit status."""

        def poll() -> tuple[int] | None:
            self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return (os.waitstatus_to_exitcode(status),) if pid else None

        self.status = eventually(poll, "the program's end", pause_s=0)[0]
        return self.status

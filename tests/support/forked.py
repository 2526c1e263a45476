"""A forked child that runs a function, possibly as another user, who then needs to read no executable."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from types import TracebackType

import msgspec


class Forked:
    """A child that sends the result of ``work``, then runs until it is killed or released."""

    def __init__(self, work: Callable[[], object], uid: int | None = None) -> None:
        self._results, results = os.pipe()
        hold, self._release = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._results)
                os.close(self._release)
                if uid is not None:
                    os.setgroups([])
                    os.setresgid(uid, uid, uid)
                    os.setresuid(uid, uid, uid)
                kept = work()
                answer = kept if isinstance(kept, (str, int, list, dict)) else "done"
                os.write(results, msgspec.json.encode(answer) + b"\n")
                os.close(results)
                os.read(hold, 1)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(results)
        os.close(hold)
        with os.fdopen(self._results, "rb") as stream:
            line = stream.readline()
        self.alive = True
        if not line:
            self.end()
            raise AssertionError("the forked child failed; see its traceback")
        self.result = msgspec.json.decode(line)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._reap()

    def end(self) -> None:
        """Lets the child exit."""
        os.close(self._release)
        self._reap(close=False)

    def _reap(self, close: bool = True) -> None:
        if self.alive:
            self.alive = False
            os.waitpid(self.pid, 0)
            if close:
                os.close(self._release)

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.alive:
            self.kill()

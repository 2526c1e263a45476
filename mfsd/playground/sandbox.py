"""Runs a function in namespaces of its own, so that nothing it makes can outlive it.

Network namespaces, mounts, processes: all are gone when the function has ended, however it ended (an exception,
Ctrl-C, SIGKILL), because the kernel takes them down with the namespaces. Needs root, or a kernel that lets users make
user namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
ENDING = (signal.SIGINT, signal.SIGTERM)
RETRY_S = 0.01
"""After a finalizer was interrupted: what is raised there Python drops, and it must be raised again, elsewhere."""
WAIT_S = 0.05

_libc = ctypes.CDLL(None, use_errno=True)


class SandboxError(Exception):
    """This host lets us make no namespaces; the text says what is missing and how to get it."""


def _call(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    _call(f"mount on {target}", _libc.mount(*encoded, ctypes.c_ulong(flags), None))


def _unshare() -> None:
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET
    if _libc.unshare(flags) == 0:
        return
    # An ordinary user, or the root of a container: becomes root of a user namespace of its own.
    _call("unshare", _libc.unshare(flags | CLONE_NEWUSER))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _furnish() -> None:
    """Private mounts: a /proc of the new process namespace, and a /run where named network namespaces can be kept."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV)
    os.environ["XDG_RUNTIME_DIR"] = "/run/user"
    Path("/run/user").mkdir(mode=0o700)


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends, however that happens."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_sandboxed(function: Callable[[], int], started: Callable[[int], None] | None = None) -> int:
    """Calls `function` in a child process inside new user (unless root), mount, process and network namespaces; answers
    what it answers, 130 when interrupted. SIGINT, SIGTERM and a closed terminal reach it as KeyboardInterrupt.
    `started` is called there first, with that process's number as seen from here: a process that joins it later needs
    that. SandboxError: not possible here."""
    ready, tell = os.pipe()
    signals = _Signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until all processes know what to do then
    keeper = os.fork()
    if keeper == 0:
        os.close(ready)
        _keep(function, started, tell, signals)
    os.close(tell)
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(keeper, signal.SIGTERM)

    closed = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []  # else it shall outlive that
    before = {number: signal.signal(number, forward) for number in (*ENDING, *closed)}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    try:
        with os.fdopen(ready) as pipe:
            problem = pipe.read()
        status = _ended(keeper, lambda: None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if problem:
        raise SandboxError(problem)
    return 130 if received else os.waitstatus_to_exitcode(status) & 0xFF


def enter(pid: int) -> None:
    """Joins the namespaces of a sandboxed process (its number as `started` got it); children of the caller are in its
    process namespace, too. The working folder stays where it can. OSError when the process is gone or
    another user's."""
    wanted = [("user", CLONE_NEWUSER), ("mnt", CLONE_NEWNS), ("net", CLONE_NEWNET), ("pid", CLONE_NEWPID)]
    here = Path.cwd()
    opened = []
    try:
        for name, kind in wanted:
            theirs, ours = Path(f"/proc/{pid}/ns/{name}"), Path(f"/proc/self/ns/{name}")
            if not theirs.samefile(ours):  # joining one's own user namespace is an error
                opened.append((name, kind, os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)))
        for name, kind, descriptor in opened:
            _call(f"join the {name} namespace of process {pid}", _libc.setns(descriptor, kind))
    finally:
        for _, _, descriptor in opened:
            os.close(descriptor)
    os.chdir(here if here.is_dir() else "/")


class _Signals:
    """How many the keeper has passed on and how many of them the first process has handled, in memory they share.
    Python runs a handler between two instructions: a signal that arrives just before a wait without end begins is
    handled when that ends, and only a further signal ends it."""

    def __init__(self) -> None:
        self._counts = mmap.mmap(-1, 2)

    def send(self, child: int) -> None:
        self._counts[0] = (self._counts[0] + 1) % 256
        os.kill(child, signal.SIGTERM)

    def repeat(self, child: int) -> None:
        """While one is not handled. By another signal than the first: one that comes late changes nothing."""
        if self.pending():
            os.kill(child, signal.SIGALRM)

    def pending(self) -> bool:
        return self._counts[0] != self._counts[1]

    def handled(self) -> None:
        self._counts[1] = self._counts[0]


def _keep(function: Callable[[], int], started: Callable[[int], None] | None, tell: int, signals: _Signals) -> NoReturn:
    """Between the caller and the first process of the namespaces: waits for that and dies with the caller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all processes; the caller decides
    die_with_parent()
    try:
        _unshare()
    except OSError as error:
        os.write(tell, f"needs root or user namespaces ({error.strerror or error})".encode())
        os._exit(1)
    child = os.fork()
    if child == 0:
        _first(function, started, tell, signals)
    os.close(tell)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as SIGINT; the programs inside shall not inherit that
    signal.signal(signal.SIGTERM, lambda *_: signals.send(child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    status = _ended(child, lambda: signals.repeat(child))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _ended(child: int, meanwhile: Callable[[], None]) -> int:
    """Its status, once it has ended. In steps (`_Signals` says why), `meanwhile` after each."""
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(WAIT_S)
        meanwhile()


def _first(
    function: Callable[[], int], started: Callable[[int], None] | None, tell: int, signals: _Signals
) -> NoReturn:
    """The first process: when it ends, the kernel ends all others of its namespace."""

    me, dropped_one = os.getpid(), False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal dropped_one
        if os.getpid() != me:  # a child that a library forked and now ends must not tidy up for us
            os._exit(143)
        if number == signal.SIGALRM and not dropped_one and not signals.pending():
            return
        signals.handled()
        dropped_one = False
        while frame is not None and frame.f_code is not once_more.__code__:
            frame = frame.f_back
        if frame is None:
            raise KeyboardInterrupt
        raise_later()

    def raise_later() -> None:
        nonlocal dropped_one
        dropped_one = True
        signal.setitimer(signal.ITIMER_REAL, RETRY_S)

    def once_more(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            raise_later()
        else:
            sys.__unraisablehook__(dropped)

    code = 1
    try:
        die_with_parent()
        sys.unraisablehook = once_more
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        if started is not None:
            started(int(os.readlink("/proc/self")))  # noqa: PTH115  still the caller's /proc: its number there
        try:
            _furnish()
        except OSError as error:
            os.write(tell, f"needs mounts of its own ({error.strerror or error})".encode())
            os._exit(1)
        os.close(tell)
        code = function()
    except KeyboardInterrupt:
        code = 130
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

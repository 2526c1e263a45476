"""Ownership of the daemon's socket path: one living daemon a path, and a dead one's leftovers are taken over.

The owner holds a lock (``flock``) on ``PATH.lock`` for its whole life. The kernel drops the lock with the
process, however it dies, so there is no guessing from a pid file or from a connect that might hang.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path


class AddressError(Exception):
    """The path cannot be served. ``str()`` names the path, the reason and the remedy."""


class Address:
    """The socket path while this process owns it: :meth:`listen` creates sockets there, :meth:`release`
    removes them."""

    def __init__(self, path: Path) -> None:
        """Takes the lock. AddressError when another daemon lives there or the folder cannot be used."""
        self.path = path
        self._lock_path = Path(f"{path}.lock")
        self._bound: list[Path] = []
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as error:
            raise AddressError(
                f"{path}: cannot be created: {error.strerror}; run as a user who may write to "
                f"{path.parent}, or choose another place with --socket (programs find it by MFS_SOCKET)"
            ) from error

    def listen(self, kind: socket.SocketKind, suffix: str, mode: int, group: int | None) -> socket.socket:
        """A listening, non-blocking unix socket at the path with ``suffix`` added, with these permissions."""
        path = Path(f"{self.path}{suffix}")
        listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    raise AddressError(
                        f"{path}: exists and is not a socket; remove it or choose another place with --socket"
                    )
                path.unlink()
            mask = os.umask(0o777)  # nobody connects before the permissions are set
            try:
                listener.bind(str(path))
            finally:
                os.umask(mask)
            self._bound.append(path)
            if group is not None:
                os.chown(path, -1, group)
            path.chmod(mode)
            listener.listen(128)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise AddressError(f"{path}: cannot listen: {error.strerror}") from error
        except AddressError:
            listener.close()
            raise
        return listener

    def release(self) -> None:
        """Removes the sockets and gives the path up."""
        for path in self._bound:
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            self._lock_path.unlink()
        os.close(self._lock)

    def _take_lock(self) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
                os.close(lock)
                raise AddressError(
                    f"{self.path}: another mfsd (pid {owner}) serves it; stop that one or choose another "
                    "place with --socket"
                ) from None
            except OSError:
                os.close(lock)
                raise
            # A daemon that just ended may have removed the file between our open and our lock.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), self._lock_path.stat()):
                    os.ftruncate(lock, 0)
                    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
                    return lock
            os.close(lock)

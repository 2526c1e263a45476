"""The daemon's two sockets. Each path has one living daemon at most, and what a dead one left is taken over.

Programs attach at one socket, whose folder containers mount. mfsctl asks at the other, whose folder none may mount:
root in a container is root to a unix socket, and could switch the node's mode.

The owner holds a lock (``flock``) on ``CONTROL.lock`` for its whole life. The kernel drops the lock with the process,
however it dies, so nothing has to be guessed from a pid file or from a connect that might hang. The lock lies beside
the control socket because a process that may open it for reading can take it, as any container could. Daemons with
different control sockets may still want the same attach socket: the one that listens there already keeps it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import NamedTuple

CONTROL_FOLDER_SUFFIX = "-control"
REMEDY = (
    "run as a user who may write there, or choose another place with --socket (programs find it by MFS_SOCKET) or "
    "socket.control"
)


def control_beside(path: Path) -> Path:
    """The control socket of a daemon that serves ``path``, unless `socket.control` names another."""
    return Path(f"{path.absolute().parent}{CONTROL_FOLDER_SUFFIX}") / path.name


class AddressError(Exception):
    """The path cannot be served. ``str()`` names the path, the reason and the remedy."""


class _Bound(NamedTuple):
    """A socket of this process, and which file it is, so that a file put in its place by another process stays."""

    path: Path
    device: int
    inode: int

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            now = self.path.lstat()
            if (now.st_dev, now.st_ino) == (self.device, self.inode):
                self.path.unlink()


class Address:
    """Both socket paths while this process owns them.

    :meth:`listen` creates a socket, :meth:`release` removes both.
    """

    def __init__(self, path: Path, control: Path) -> None:
        """Takes the lock. Raises AddressError if another daemon lives there or a folder cannot be used."""
        self.path = path
        self.control = control
        self._lock_path = Path(f"{control}.lock")
        self._bound: list[_Bound] = []
        try:
            _make_folder(path.parent)
            self._made_folder = _make_folder(control.parent)
            owner = control.parent.stat().st_uid
            if owner not in (0, os.geteuid()):
                raise AddressError(
                    f"{control.parent}: belongs to uid {owner}, who could take the control socket's place; remove the "
                    "folder or set socket.control"
                )
            self._lock = self._take_lock()
        except OSError as error:
            raise AddressError(f"{error.filename or control}: cannot be created: {error.strerror}; {REMEDY}") from error

    def listen(self, kind: socket.SocketKind, path: Path, mode: int, group: int | None) -> socket.socket:
        """Returns a listening, non-blocking unix socket at one of the two paths, with these permissions."""
        listener = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    raise AddressError(
                        f"{path}: exists and is not a socket; remove it or choose another place with --socket"
                    )
                if _listened_on(kind, path):
                    raise AddressError(
                        f"{path}: another mfsd serves it, with another control socket; stop that one or choose another "
                        "place with --socket"
                    )
                path.unlink()
            mask = os.umask(0o777)  # no client connects before the permissions are set
            try:
                listener.bind(str(path))
            finally:
                os.umask(mask)
            made = path.lstat()
            self._bound.append(_Bound(path, made.st_dev, made.st_ino))
            if group is not None:
                os.chown(path, -1, group)
            path.chmod(mode)
            listener.listen(128)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            remedy = f"; {REMEDY}" if error.errno in (errno.EACCES, errno.EPERM) else ""
            raise AddressError(f"{path}: cannot listen: {error.strerror}{remedy}") from error
        except AddressError:
            listener.close()
            raise
        return listener

    def release(self) -> None:
        """Removes the sockets and gives up the paths. The attach folder stays, for containers that have mounted it."""
        for bound in self._bound:
            bound.remove()
        with contextlib.suppress(OSError):
            self._lock_path.unlink()
        if self._made_folder:
            with contextlib.suppress(OSError):  # the folder has other files
                self.control.parent.rmdir()
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


def _make_folder(folder: Path) -> bool:
    """Makes a folder that all may enter, whatever the umask: the sockets decide who gets in. True if it is new."""
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    except FileNotFoundError:
        _make_folder(folder.parent)
        return _make_folder(folder)
    folder.chmod(0o755)
    return True


def _listened_on(kind: socket.SocketKind, path: Path) -> bool:
    """Whether a living process listens there; a dead one's socket refuses. Never waits: a full backlog means yes."""
    with socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as caller:
        try:
            caller.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

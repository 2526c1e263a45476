"""The folder with a user's playground's sockets and files, by which other commands find the running playground."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

SOCKET_PATH_BYTES_MAX = 100


class PlaygroundError(Exception):
    """The playground cannot start, continue or be found. The message says why and what to do."""


class Node(msgspec.Struct):
    name: str
    address: str
    """IPv4 address of its device and of its only interface."""
    device: str
    """RDMA device, as `ibv_devices` shows it on the node."""
    socket: str
    """Socket of its daemon, which programs outside the sandbox can also use."""


class Coordinator(msgspec.Struct):
    inside: str
    """HOST:PORT for the nodes."""
    outside: str
    """HOST:PORT for other programs of this machine."""
    page: str
    """URL for browsers on this machine."""


class State(msgspec.Struct):
    """A running playground, as `mfsctl playground --json` prints it."""

    pid: int
    """Process id of its first process; 0 until that is known."""
    folder: str
    nodes: list[Node]
    coordinators: list[Coordinator]
    etcd: bool
    """Whether the coordinators elect a leader through etcd."""

    def node(self, name: str) -> Node:
        """Returns the node of that name. PlaygroundError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise PlaygroundError(f"no node {name!r}; there are: {', '.join(n.name for n in self.nodes)}")


def folder_of_user() -> Path:
    """Returns the user's own folder. Each user has one, and so one playground."""
    return Path(tempfile.gettempdir()) / f"mfs-playground-{os.getuid()}"


@contextmanager
def own_folder() -> Iterator[Path]:
    """Locks and empties the user's folder, yields it, and removes it at the end. PlaygroundError if another playground
    has it."""
    folder = folder_of_user()
    if len(bytes(folder / "run-control" / "node99.sock")) > SOCKET_PATH_BYTES_MAX:
        raise PlaygroundError(
            f"{folder}: too long for the path of a socket; set TMPDIR to a short path, for example /tmp"
        )
    lock = _locked(folder)
    try:
        for entry in folder.iterdir():  # files of a playground that was killed
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    """Makes the folder and locks it; returns the lock's descriptor. PlaygroundError if another playground has it."""
    while True:
        _make(folder)
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # a playground that ends has just removed the folder
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise PlaygroundError(
                f"{folder}: a playground of yours already runs; end it, or use it: mfsctl playground shell node1"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), (folder / "lock").lstat()):
                return lock
        os.close(lock)  # its playground has just ended and removed it: no other process would find this lock


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _own_alone(folder)
    except OSError as error:
        raise PlaygroundError(f"{folder}: {error.strerror}; set TMPDIR to a folder that you may write to") from None


def _own_alone(folder: Path) -> None:
    """Raises PlaygroundError if another user could have written in the folder, as its contents could then be theirs.
    OSError if it cannot be read."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PlaygroundError(f"{folder} is not a folder of your own alone; remove it or set TMPDIR")


def publish(state: State) -> None:
    """Writes the file by which other commands find the playground."""
    file = Path(state.folder) / "playground.json"
    fresh = file.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(state))
    fresh.rename(file)


def running() -> State:
    """Returns this user's running playground. PlaygroundError if there is none."""
    folder = folder_of_user()
    try:
        _own_alone(folder)
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        raise _none() from None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # the playground holds the lock, so it runs
    else:
        raise _none()
    finally:
        os.close(lock)
    try:
        return msgspec.json.decode((folder / "playground.json").read_bytes(), type=State)
    except FileNotFoundError:
        raise PlaygroundError("the playground is still starting; try again when it has printed its addresses") from None
    except OSError as error:
        raise PlaygroundError(f"{folder / 'playground.json'}: cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        problem = f"{error}; start the playground again, as after an upgrade"
        raise PlaygroundError(f"{folder / 'playground.json'}: {problem}") from None


def _none() -> PlaygroundError:
    return PlaygroundError("no playground of yours runs; start one in another terminal: mfsctl playground")

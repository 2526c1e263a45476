"""Publishes the status of an engine in a file in a folder that `mfsctl serve` knows. Beside it is the file with the
policy that an operator wants.

This is a file and not a socket, so that readers cost the engine nothing and the status of a hanging engine can be read,
too. The file is replaced atomically, at most once a second while steps run, and removed when the engine ends. Readers
ignore a file whose process has ended.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Final

import msgspec

from mfsd.policy.serve import Policy
from mfsd.serve.controller import Controller
from mfsd.serve.engine import Engine
from mfsd.serve.metrics import Metrics
from mfsd.serve.status import EngineStatus, status_of
from mfsd.serve.status_files import (
    FOLDER_VARIABLE,
    FORMAT,
    SUFFIX,
    own_folder,
    pid_namespace,
    read_regular,
    still_runs,
)

EVERY_S: Final = 1.0
WANTED_SUFFIX: Final = ".policy"
PARTIAL_SUFFIX: Final = ".partial"
AUTO: Final = "auto"
"""Wanted in place of a policy: the configuration decides, the controller included."""
FILE_MAX_BYTES: Final = 16 << 20
WANTED_MAX_BYTES: Final = 64
CLOSE_S: Final = 5.0
"""How long an ending engine waits until its last file is written."""

Warn = Callable[[str, str], object]


class Publisher:
    """Status file and metrics of one engine. Call `tick` after each step. A separate thread makes and writes the file,
    because with many requests that takes longer than a step should wait."""

    def __init__(
        self, engine: Engine, warn: Warn, folder: Path | None = None, controller: Controller | None = None
    ) -> None:
        self._engine, self._warn, self._controller = engine, warn, controller
        self._configured = engine.config.policy
        self._folder = folder or own_folder()
        self._path = self._folder / f"{engine.name}{SUFFIX}"
        self._wanted = self._folder / f"{engine.name}{WANTED_SUFFIX}"
        self._forget_wanted()
        self._forget_killed()
        self._metrics = Metrics(engine)
        self._started_s = self._latest_s = engine.clock()
        self._failed = False
        """Whether the latest file could not be written."""
        self._writer: Thread | None = None
        self._write()

    def tick(self) -> None:
        now_s = self._engine.clock()
        if now_s - self._latest_s >= EVERY_S:
            self._latest_s = now_s
            self._take_wanted()
            if self._controller is not None:
                self._controller.tick()
            self._metrics.update()
            if self._writer is None or not self._writer.is_alive():
                self._writer = Thread(target=self._write, name="mfs-serve-status", daemon=True)
                self._writer.start()

    def _take_wanted(self) -> None:
        """Applies a policy that an operator has asked for since the last call. The controller then rests."""
        if self._failed or not self._wanted.exists():
            return
        try:
            name = read_regular(self._wanted, WANTED_MAX_BYTES).decode().strip()
            policy = self._configured if name == AUTO else Policy(name)
        except (OSError, ValueError) as error:
            self._warn("serve-wanted", f"{self._wanted}: {error}; the policy stays {self._engine.config.policy.value}")
        else:
            if self._controller is not None:
                self._controller.rest(name != AUTO)
            self._engine.use(msgspec.structs.replace(self._engine.base, policy=policy))
        self._forget_wanted()

    def _forget_wanted(self) -> None:
        self._forget(self._wanted)

    def _forget_killed(self) -> None:
        """Removes the files of killed engines, because a daemon reads only a limited number of files of a folder."""
        here = pid_namespace()
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"*{SUFFIX}"):
                try:
                    status = _read(path)
                except (OSError, msgspec.MsgspecError, ValueError):
                    continue
                if status is not None and status.pid_namespace == here != 0 and not _exists(status.pid):
                    for suffix in (SUFFIX, PARTIAL_SUFFIX, WANTED_SUFFIX):
                        self._forget(path.with_suffix(suffix))

    def _forget(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()

    def _write(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder.stat().st_uid != os.geteuid():
                raise PermissionError(0, "belongs to another user")
            partial = self._path.with_suffix(PARTIAL_SUFFIX)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(status_of(self._engine, os.getpid(), self._started_s)))
            partial.replace(self._path)
        except OSError as error:  # tried again in the next second, as the disk may have been full
            self._forget(self._path)  # else an old status would stay
            if not self._failed:
                remedy = f"mfsctl serve cannot show this engine; set {FOLDER_VARIABLE} to a folder that it may write"
                self._warn("serve-status", f"{self._folder}: {error.strerror or error}; {remedy}")
            self._failed = True
        except Exception as error:  # runs in a thread; tried again in the next second
            self._warn("serve-status-made", f"the status of {self._engine.name} could not be made ({error})")
        else:
            self._failed = False

    def settled(self) -> None:
        """Waits until no file is being written."""
        if self._writer is not None:
            self._writer.join(CLOSE_S)

    def close(self) -> None:
        self._metrics.update()
        self.settled()
        self._forget_wanted()
        self._forget(self._path)


def want(where: list[Path], engine: str, policy: str) -> bool:
    """Writes the wanted policy for the engine of that name; returns whether there is such an engine. OSError if the
    file cannot be written.

    Root writes in folders of other users, who may replace files there at any time. So the file is a new one, and its
    owner is changed by its descriptor."""
    for folder in where:
        if not (folder / f"{engine}{SUFFIX}").is_file():
            continue
        handle, partial = tempfile.mkstemp(prefix=f"{engine}-", suffix=".wanted", dir=folder)
        try:
            with os.fdopen(handle, "w") as file:
                file.write(policy)
                owner = folder.stat()
                if owner.st_uid != os.geteuid():  # root writes for an engine of another user
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            Path(partial).replace(folder / f"{engine}{WANTED_SUFFIX}")
        except BaseException:
            with contextlib.suppress(OSError):
                Path(partial).unlink()
            raise
        return True
    return False


def read_all(where: list[Path]) -> tuple[list[EngineStatus], list[str]]:
    """Returns the status of running engines, sorted by name, and one line for each file that could not be read. Engines
    of other containers are included, because it cannot be known whether their process runs."""
    found: list[EngineStatus] = []
    complaints: list[str] = []
    here = pid_namespace()
    for folder in where:
        with contextlib.suppress(OSError):
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                try:
                    status = _read(path)
                except (OSError, msgspec.MsgspecError, ValueError) as error:
                    complaints.append(f"{path}: {error}")
                    continue
                if status is not None and (status.pid_namespace not in (0, here) or _lives(path, status.pid)):
                    found.append(status)
    return sorted(found, key=lambda one: one.engine), complaints


def _read(path: Path) -> EngineStatus | None:
    """Reads a status; None if the file has been removed in the meantime."""
    try:
        raw = read_regular(path, FILE_MAX_BYTES)
    except FileNotFoundError:
        return None
    try:
        status = msgspec.json.decode(raw, type=EngineStatus)
    except RecursionError:
        raise ValueError("lists or tables within each other without end") from None
    if status.format != FORMAT:
        raise ValueError(f"format {status.format}, this mfsctl reads {FORMAT}; use the one of the engine's version")
    return status


def _lives(path: Path, pid: int) -> bool:
    try:
        return still_runs(pid, path.stat().st_mtime, time.time())
    except OSError:  # removed in the meantime
        return False


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()

"""Reads, for the daemon's report, what this node's engines have of each tier from the status files that they publish.

Engines may belong to any user of the node, so the files are not trusted: their number, their size and their contents
are limited. A file that cannot be read is left out, counted, and logged once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from mfsd.policy.request_tiers import COUNT_MAX, FIRST_COME, TIERS_MAX, NodeTiers, TierReport, added
from mfsd.proto.wire import is_name
from mfsd.serve.status_files import FORMAT, SUFFIX, open_regular, pid_namespace, still_runs

FOLDERS_MAX: Final = 64
ENTRIES_MAX: Final = 1024
"""Most entries of a folder that are listed."""
FILES_MAX: Final = 64
"""Most files of a folder that are read."""
FILE_MAX_BYTES: Final = 4 << 20
"""Largest file that is read. The largest real status, a thousand requests with long names, is a quarter of it."""
READ_MAX_BYTES: Final = 32 << 20
"""Most bytes that are read in one pass over all folders."""
FRESH_S: Final = 10.0
"""Age up to which a file counts as fresh. A serving engine writes once a second."""
NAMED_MAX: Final = 256
"""Most files that a daemon logs during its life."""

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Now = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class _Tier(msgspec.Struct, frozen=True):
    met: Count = 0
    late: Count = 0
    no_deadline: Count = 0
    aborted: Count = 0
    waiting: Now = 0
    running: Now = 0
    paused: Now = 0
    relegated: Now = 0
    lost: Now = 0


class _Config(msgspec.Struct, frozen=True):
    policy: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,32}$")]


class _Status(msgspec.Struct, frozen=True):
    """The fields of EngineStatus that are needed here; the others are skipped."""

    format: int
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    config: _Config
    gave_up: bool
    tiers: Annotated[dict[str, _Tier], msgspec.Meta(max_length=TIERS_MAX)]
    pid_namespace: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class _Format(msgspec.Struct, frozen=True):
    format: int


class _File(NamedTuple):
    """A file as of its latest reading."""

    key: tuple[int, ...]
    written_s: float
    status: _Status | None
    problem: str


class _Full(Exception):
    """This pass has read READ_MAX_BYTES."""


class TierReader:
    """Reads the status files. A file that has not changed is not read again."""

    def __init__(
        self,
        folders: Callable[[], list[Path]],
        warn: Callable[[Path, str], object],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """warn: called once, with the reason, for each file or folder that cannot be read."""
        self._folders = folders
        self._warn = warn
        self._clock_s = clock_s
        self._files: dict[Path, _File] = {}
        self._named: set[Path] = set()
        self._left_bytes = 0
        self._broken: dict[Path, str] = {}

    def read(self) -> NodeTiers:
        """Returns the tiers of all running engines."""
        self._left_bytes, self._broken = READ_MAX_BYTES, {}
        seen: dict[Path, _File] = {}
        tiers: dict[str, TierReport] = {}
        engines = 0
        for folder in self._folders()[:FOLDERS_MAX]:
            for path, file in self._in_folder(folder):
                seen[path] = file
                if file.status is None or not _lives(file.status, file.written_s, self._clock_s()):
                    continue
                if len(tiers.keys() | file.status.tiers.keys()) > TIERS_MAX:
                    self._broken[path] = f"with it the node has more than {TIERS_MAX} tiers"
                    continue
                engines += 1
                for name, report in _reports(file.status):
                    tiers[name] = added(tiers.get(name), report)
        self._files = seen
        self._name_broken()
        return NodeTiers(tiers, engines, len(self._broken))

    def _in_folder(self, path: Path) -> Iterable[tuple[Path, _File]]:
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # no engine of that user has run yet
        except OSError as error:
            self._broken[path] = error.strerror or str(error)
            return
        try:
            owner = os.fstat(folder).st_uid
            with os.scandir(folder) as entries:
                names = sorted(entry.name for entry in islice(entries, ENTRIES_MAX) if entry.name.endswith(SUFFIX))
            if len(names) > FILES_MAX:
                self._broken[path] = f"{len(names)} status files: the first {FILES_MAX} are read"
            for name in names[:FILES_MAX]:
                file = self._file(folder, path / name, owner)
                if file is None:
                    continue
                if file.problem:
                    self._broken[path / name] = file.problem
                yield path / name, file
        finally:
            os.close(folder)

    def _file(self, folder: int, path: Path, owner: int) -> _File | None:
        """Reads a file; None if it has been removed in the meantime."""
        try:
            found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        key = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_uid)
        known = self._files.get(path)
        if known is not None and known.key == key:
            return known
        try:
            return _File(key, found.st_mtime, self._status(folder, path.name, owner), "")
        except FileNotFoundError:
            return None
        except _Full as error:
            return _File((), found.st_mtime, None, str(error))  # the next pass may have room for it
        except RecursionError:
            return _File(key, found.st_mtime, None, "lists or tables within each other without end")
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return _File(key, found.st_mtime, None, problem)

    def _status(self, folder: int, name: str, owner: int) -> _Status:
        """Reads a status. OSError, ValueError, MsgspecError or RecursionError."""
        with os.fdopen(open_regular(name, folder), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != owner:
                raise ValueError("it belongs to another user than its folder")
            if found.st_size > FILE_MAX_BYTES:
                raise ValueError(f"{found.st_size} bytes: at most {FILE_MAX_BYTES} are read")
            raw = file.read(min(FILE_MAX_BYTES, self._left_bytes) + 1)
        if len(raw) > self._left_bytes:
            raise _Full(f"all files together have more than {READ_MAX_BYTES} bytes")
        self._left_bytes -= len(raw)
        written_as = msgspec.json.decode(raw, type=_Format).format
        if written_as != FORMAT:
            raise ValueError(f"format {written_as}, this mfsd reads {FORMAT}; use the one of the engine's version")
        status = msgspec.json.decode(raw, type=_Status)
        for tier in status.tiers:
            if not is_name(tier):
                raise ValueError("the name of a tier is too long, or cannot be printed")
        return status

    def _name_broken(self) -> None:
        for path, problem in self._broken.items():
            if path not in self._named and len(self._named) < NAMED_MAX:
                self._named.add(path)
                self._warn(path, problem)


def _reports(status: _Status) -> Iterable[tuple[str, TierReport]]:
    policies = {FIRST_COME if status.gave_up else status.config.policy: 1}
    for name, tier in status.tiers.items():
        yield name, TierReport._make((*msgspec.structs.astuple(tier), 1, policies))


def _lives(status: _Status, written_s: float, now_s: float) -> bool:
    """Whether the file's engine still runs: the file is fresh, or the process that wrote it runs. An idle engine writes
    nothing. For an engine in another container only the file's age is known, because its process id is another
    process's here."""
    if abs(now_s - written_s) <= FRESH_S:
        return True
    if status.pid_namespace not in (0, pid_namespace()):
        return False
    return still_runs(status.pid, written_s, now_s)

"""A folder of NIXL's plugins that holds UCX's under several names: an agent has one engine for each name.

NIXL reads NIXL_PLUGIN_DIR once, when the first agent of the process is made. To the loader links to one file are one
library. It is loaded by its own name first, so that it finds the libraries beside it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from mooncake_adapter.warn_once import WarnOnce

VARIABLE = "NIXL_PLUGIN_DIR"
PLUGIN = "libplugin_{}.so"
LANED = "UCX"
"""The plugin that has lanes."""
PREFIX = f"{LANED}_MFS"
ASKED = "MFS_NIXL_ASKED"
"""Tells the backend plugin (csrc/nixl) that other code asks for permits for the engines made now."""


@contextlib.contextmanager
def asked_for() -> Iterator[None]:
    """Inside, the backend plugin makes engines that ask for no permits: the adapter asks once for each transfer."""
    before = os.environ.get(ASKED)
    os.environ[ASKED] = "adapter"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(ASKED, None)
        else:
            os.environ[ASKED] = before


def alias(wire_class: int) -> str:
    """Returns the plugin name of a class. Both ends of a transfer use the same name, whichever DSCP the class has."""
    return f"{PREFIX}{wire_class}"


def is_alias(name: str) -> bool:
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).isdigit()


def own_folder(module: str) -> Path | None:
    """Returns where NIXL would look: NIXL_PLUGIN_DIR, else the wheel's own folder; None if that is not known."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    package = sys.modules.get(module.partition(".")[0])
    if package is None or not package.__file__:
        return None
    place = Path(package.__file__).parent
    found = sorted(place.parent.glob(f".{place.name}.mesonpy.libs/plugins")) or sorted(
        place.parent.glob(f"{place.name}.libs/nixl")
    )
    return found[0] if found else None


class Plugins:
    """The plugins of one process, with an alias of UCX's for each class."""

    def __init__(self, module: str, once: WarnOnce) -> None:
        """`module`: the module of the agent's class."""
        self._module, self._once = module, once
        self._lock = threading.Lock()
        self._own: Path | None = None

    def _link(self, classes: int) -> Path | None:
        """Makes the links and returns their folder; None if there is nothing to link."""
        if self._own is None:
            self._own = own_folder(self._module)
        if self._own is None or not (self._own / PLUGIN.format(LANED)).exists():
            self._once.warn("nixl-plugins", "NIXL's UCX plugin is not in %s; transfers have no lanes", self._own)
            return None
        targets = {plugin.name: plugin.resolve() for plugin in self._own.iterdir()}
        aliases = {PLUGIN.format(alias(wire_class)): targets[PLUGIN.format(LANED)] for wire_class in range(classes)}
        folder = _shared_folder(f"{self._own.resolve()} {classes}")
        for name, target in {**targets, **aliases}.items():
            _set_link(folder / name, target)
        return folder

    @contextlib.contextmanager
    def named(self, classes: int) -> Iterator[None]:
        """Inside, the first agent of the process finds the aliases. Programs that the process starts later do not."""
        with self._lock:
            before = os.environ.get(VARIABLE)
            try:
                folder = self._link(classes)
            except OSError as error:
                self._once.warn("nixl-plugins", "NIXL's plugins cannot be linked (%s); transfers have no lanes", error)
                folder = None
            if folder is None:
                yield
                return
            os.environ[VARIABLE] = str(folder)
            try:
                yield
            finally:
                if before is None:
                    del os.environ[VARIABLE]
                else:
                    os.environ[VARIABLE] = before

    def load(self, name: str) -> None:
        """Loads a plugin from its own folder: through a link it would not find the libraries beside it."""
        if self._own is not None and (path := self._own / PLUGIN.format(name)).exists():
            with contextlib.suppress(OSError):  # NIXL reports what is wrong with it
                ctypes.CDLL(str(path))


def _shared_folder(of: str) -> Path:
    """Returns the folder of these links, which all processes of this user share. Engine workers end by SIGKILL, so
    folders of their own would be left behind. Raises OSError if another user can write to the folder."""
    name = hashlib.sha256(of.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"mfs-nixl-{os.geteuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, f"another user can write to it, remove it: {folder}")
    return folder


def _set_link(link: Path, target: Path) -> None:
    """Points the link at the target. Works if another process does the same, or if links were deleted as temporary
    files."""
    with contextlib.suppress(OSError):
        if link.readlink() == target:
            return
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)

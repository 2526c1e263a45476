"""Reads the files in which an operator sets variables of NCCL and UCX. The environment takes precedence over both."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Setting(NamedTuple):
    value: str
    file: Path


def set_in_files(
    environ: Mapping[str, str], *, uid: int | None = None, root: Path = Path("/"), folder: Path = Path()
) -> dict[str, Setting]:
    """Returns variable -> setting that a program of this user, with this environment and started in this folder, finds
    in these files. `root` is the parent of /etc.

    NCCL puts the variables of its files into the process's environment, so these may be of other libraries, too. A
    `ucx.conf` beside the UCX library, or in a folder that the program changes to first, is not read. A section of it
    for another CPU counts.
    """
    found: dict[str, Setting] = {}
    for file in (*_of_ucx(environ, root, folder), *_of_nccl(environ, uid, root)):
        found |= {name: Setting(value, file) for name, value in _lines(file)}
    return {name: setting for name, setting in found.items() if setting.value}


def _of_nccl(environ: Mapping[str, str], uid: int | None, root: Path) -> list[Path]:
    """Returns NCCL's files; later ones take precedence. NCCL reads the home folder from the user's passwd entry, not
    from HOME."""
    system = root / "etc/nccl.conf"
    if named := environ.get("NCCL_CONF_FILE"):
        return [system, Path(named)]
    try:
        homes = [pwd.getpwuid(os.getuid() if uid is None else uid).pw_dir]
    except KeyError:
        homes = []
    return [system, *(Path(home) / ".nccl.conf" for home in [*homes, environ.get("HOME")] if home)]


def _of_ucx(environ: Mapping[str, str], root: Path, folder: Path) -> list[Path]:
    named = [environ[name] for name in ("HOME", "UCX_CONFIG_DIR") if environ.get(name)]
    return [place / "ucx.conf" for place in (root / "etc/ucx", *map(Path, named), folder)]


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not name.startswith(("#", ";", "[")):
            yield name.strip(), value.strip()

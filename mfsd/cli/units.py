"""Adapts the systemd units that come with MFS to the environment that this program runs from.

They are files of the package (`systemd/`), with `/usr/bin/env` in place of the program.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Literal

UNITS = Path("/etc/systemd/system")
RUNS = Path("/run/systemd/system")
"""Exists if systemd runs this system, as sd_booted(3) checks."""
DAEMON, COORDINATOR = "mfsd.service", "mfsd-coordinator.service"
HIDDEN = {"ProtectHome=yes": ("/home", "/root", "/run/user"), "PrivateTmp=yes": ("/tmp", "/var/tmp")}
"""Setting of our units -> directories that a service with it does not see."""
_MARK = "# Written by mfsctl install systemd, which also takes it away. Changes of yours: systemctl edit {name}"
_SHIPPED = "/usr/bin/env mfsd"


class UnitError(Exception):
    """Why a unit is not possible; the text has the remedy."""


def program() -> Path:
    """Returns `mfsd` of the running environment. Raises UnitError if it has none."""
    found = Path(sysconfig.get_path("scripts")) / "mfsd"
    if not os.access(found, os.X_OK):
        raise UnitError(f"{found} is missing: run the mfsctl of the environment in which MFS is installed")
    return found


def unit_text(name: str, mfsd: Path) -> str:
    """Returns the unit, starting that program."""
    shipped = (files("mfsd.cli") / "systemd" / name).read_text()
    quoted = str(mfsd).replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    if any(character.isspace() or character in "\"'" for character in quoted):
        quoted = '"' + quoted.replace('"', '\\"') + '"'
    started = shipped.replace(f"ExecStart={_SHIPPED}", f"ExecStart={quoted}")
    return f"{_MARK.format(name=name)}\n{started}"


def ours(text: str) -> bool:
    return text.startswith(_MARK.partition("{")[0])


def needed(mfsd: Path) -> Iterator[Path]:
    """Yields what must be visible for the program to start: itself, its Python, and the package, which may be
    elsewhere."""
    yield mfsd
    yield Path(sys.executable)
    yield Path(sys.executable).resolve()
    yield Path(__file__).resolve()


def check_place(name: str, paths: Iterator[Path]) -> None:
    """Raises UnitError if the service would not see one of these paths, or if its user may not."""
    for path in paths:
        for setting, places in HIDDEN.items():
            for place in places:
                if path.is_relative_to(place):
                    raise UnitError(
                        f"{path} is below {place}, which a service with {setting} cannot see: create the environment "
                        "elsewhere, with a Python from elsewhere: /usr/bin/python3 -m venv /opt/mfs"
                    )
        if name == COORDINATOR:  # runs as an unprivileged user
            closed = [one for one in (path, *path.parents) if not one.stat().st_mode & 0o001 and one.is_dir()]
            if closed:
                raise UnitError(f"the coordinator's user may not enter {closed[-1]}: chmod o+rx {closed[-1]}")


Outcome = Literal[
    "installed", "changed", "unchanged", "removed", "absent", "would install", "would change", "would remove"
]


def compare(file: Path, wanted: str | None) -> Outcome:
    """Returns what has to be done so that the file has this text or, for None, does not exist. Raises UnitError if it
    is not MFS's."""
    try:
        there = file.read_text()
    except FileNotFoundError:
        return "absent" if wanted is None else "installed"
    if not ours(there):
        raise UnitError(
            f"{file} was not written by mfsctl install systemd: move it away, or keep it and do not use this command"
        )
    if wanted is None:
        return "removed"
    return "unchanged" if there == wanted else "changed"


def write(file: Path, text: str) -> None:
    """Writes the file as a whole or not at all."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    new.chmod(0o644)
    new.replace(file)

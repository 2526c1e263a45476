"""Where the page is, what it has to have, and the system that it is run in."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.afternoon.console import Step
from tests.support.clean_system import CleanSystem
from tests.support.packaged import digest, listed

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "afternoon.md"
SOURCES = ("README.md", "docs/guide.md", "docs/operations.md")
"""Whose commands are all in the page."""
INSTALLED = "mkdir -p ~/afternoon"
"""The command before which everything is installed."""
CLUSTER = "mfsctl playground --load &"
"""The command with which the second half begins."""
WHEELS = ROOT / "build" / "afternoon-wheels"
SUDO = '#!/bin/sh\nexec "$@"\n'
"""Every user is root in there, and not every distribution has one."""


def documented() -> list[tuple[str, str]]:
    """(page, command) of every command in blocks of these pages."""
    found = []
    for name in SOURCES:
        text = (ROOT / name).read_text()
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        blocks += re.findall(r"(?:^    (?:make|pip|mfsd|mfsctl|mfs-run)\b.*\n)+", text, re.MULTILINE)
        for block in blocks:
            found += [(name, plain(line)) for line in block.splitlines()]
    return [one for one in dict.fromkeys(found) if one[1]]


def plain(line: str) -> str:
    """A command without the comment behind it and what ends it."""
    return re.split(r"  +#", line)[0].strip().removesuffix("&").strip()


def wheels() -> Path:
    """What `pip install .` fetches, fetched once: the clean system has no network."""
    wanted = (ROOT / "pyproject.toml").read_text()
    mark = WHEELS / "of"
    if not mark.exists() or mark.read_text() != wanted:
        environment = ROOT / "build" / "afternoon-pip"
        subprocess.run(["/usr/bin/python3", "-m", "venv", environment], check=True)
        get = (environment / "bin" / "pip", "download", "-q", "-d", WHEELS, ROOT, "setuptools", "Cython", "wheel")
        subprocess.run(get, check=True)
        mark.write_text(wanted)
    return WHEELS


def without_install(steps: list[Step]) -> list[Step]:
    return steps[[step.line for step in steps].index(INSTALLED) :]


def first_half(steps: list[Step]) -> list[Step]:
    return steps[: [step.line for step in steps].index(CLUSTER)]


def archive() -> Path:
    """Where the environment is kept that was installed of these very sources."""
    return ROOT / "build" / f"afternoon-{digest()}.tar"


def keep(system: CleanSystem, folder: Path) -> None:
    """Keeps what was installed in there for the short form."""
    assert system.run("tar -cf /srv/mfs/installed.tar -C /opt mfs -C / usr/local/bin").returncode == 0
    for old in archive().parent.glob("afternoon-*.tar"):
        old.unlink()
    shutil.move(folder / "mfs" / "installed.tar", archive())


def restore(system: CleanSystem, folder: Path) -> bool:
    """Puts what was kept where it was; False when there is none."""
    if not archive().exists():
        return False
    shutil.copy(archive(), folder / "mfs" / "installed.tar")
    line = "tar -xf installed.tar -C /opt mfs && tar -xf installed.tar -C / usr/local/bin && rm installed.tar"
    assert system.run(line).returncode == 0
    return True


def checkout(folder: Path) -> Path:
    """The tracked files as they are now, as a user has them who has just cloned the project."""
    made = folder / "mfs"
    made.mkdir()
    names = b"".join(name + b"\0" for name in listed())
    archive = ("tar", "--null", "--no-recursion", "-cf", "-", "-T", "-")
    packed = subprocess.run(archive, cwd=ROOT, input=names, capture_output=True, check=True).stdout
    subprocess.run(("tar", "-xf", "-", "--no-same-owner"), cwd=made, input=packed, check=True)
    return made


def clean_system(folder: Path) -> CleanSystem:
    folder.chmod(0o755)
    system = CleanSystem(folder, checkout(folder), wheels(), names=("coord-1", "coord-2"))
    system.run(f"printf %b {SUDO!r} > /usr/local/bin/sudo; chmod 755 /usr/local/bin/sudo")
    return system

"""Published wheels, downloaded once into build/wheels, and where NCCL's InfiniBand transport lies in its library."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build/wheels"


def unpacked(project: str, version: str, *members: str) -> Path:
    """The folder with the wheel's files, or with those of its members whose names end like one given."""
    folder = WHEELS / f"{project}-{version}"
    if folder.is_dir():
        return folder
    WHEELS.mkdir(parents=True, exist_ok=True)
    with (WHEELS / f"{project}-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of the tests ask at the same time
        if not folder.is_dir():
            _unpack(project, version, folder, members)
    return folder


def _unpack(project: str, version: str, folder: Path, members: tuple[str, ...]) -> None:
    name = project.replace("-", "_")
    if not list(WHEELS.glob(f"{name}-{version}-*.whl")):
        download = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:")
        subprocess.run([*download, "-d", str(WHEELS), f"{project}=={version}"], check=True)
    (wheel,) = WHEELS.glob(f"{name}-{version}-*.whl")
    partial = folder.with_suffix(".partial")
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if not members or member.endswith(members):
                archive.extract(member, partial)
    partial.rename(folder)


def symbol_offset(library: Path, name: str, *options: str) -> str:
    """Where the library has the symbol; ``nm`` knows local ones, too."""
    for line in subprocess.run(
        ["nm", *options, str(library)], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        offset, _, found = line.rpartition(" ")
        if found.split("@")[0] == name:
            return offset.split()[0]
    raise LookupError(f"{library} has no symbol {name}")


def nccl_net_arguments(version: str) -> list[str]:
    """What bench/programs/nccl_net.h needs to know of this NCCL version: the library and two offsets in it."""
    library = next(unpacked("nvidia-nccl-cu12", version, "libnccl.so.2").rglob("libnccl.so.2"))
    return [str(library), symbol_offset(library, "ncclNetIb"), symbol_offset(library, "ncclGetVersion", "-D")]

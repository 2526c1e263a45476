"""Servers of the distribution that tests start themselves, as unpacked by tools/system-packages."""

from __future__ import annotations

from pathlib import Path

UNPACKED = Path(__file__).resolve().parents[2] / "build" / "debian"


def program(package: str, name: str) -> str:
    """Returns the path of a program. Fails with the remedy if the package is not there."""
    path = UNPACKED / package / "usr" / "bin" / name
    assert path.exists(), f"{package} is not unpacked under build/debian; run tools/system-packages"
    return str(path)

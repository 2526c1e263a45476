"""The files of the native core, for programs of tests that are compiled with it."""

from __future__ import annotations

from pathlib import Path

APART = ("soft_roce", "nixl", "nixl_stand_in")
"""Folders of csrc that are libraries of their own, loaded by other people's programs."""
CSRC = Path(__file__).resolve().parents[2] / "csrc"


def core(*left_out: str) -> list[Path]:
    """Every source of the core but those named by folder and file (`arbiter/command.c`): a program includes them."""
    sources = sorted(path for path in CSRC.glob("*/*.c") if path.parent.name not in APART)
    excluded = {CSRC / name for name in left_out}
    assert excluded <= {*sources}, f"no source: {excluded - {*sources}}"
    return [path for path in sources if path not in excluded]

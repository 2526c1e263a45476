"""Fabric policy files with given DSCPs, for daemons that mark by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MFS_CLASSES = 8


def marked_with(folder: Path, dscps: Sequence[int]) -> str:
    """Writes a policy file whose classes have these DSCPs, and returns the [wire] table that names it. If there are
    fewer than eight, the last one is also for the remaining classes of MFS."""
    classes = [
        f'  {{ name = "class-{at}", dscp = {dscp}, priority = {7 - at}, floor_percent = {min(at, 1)}, ecn = false }},'
        for at, dscp in enumerate(dscps)
    ]
    fold = [min(at, len(dscps) - 1) for at in range(MFS_CLASSES)]
    lines = [
        "[profiles.test]",
        'summary = "of a test"',
        f"fold = {fold}",
        f"control = {{ dscp = [{dscps[0]}], priority = 7 }}",
        "best_effort = { priority = 0, floor_percent = 1 }",
        "port_groups = { hosts = { speed_gbps = 1 } }",
        "classes = [",
        *classes,
        "]",
    ]
    file = folder.absolute() / "policy.toml"
    file.write_text("\n".join([*lines, ""]))
    return f'[wire]\nprofile = "test"\npolicy_file = "{file}"\n'

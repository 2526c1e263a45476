"""A preloaded shim of another version than this package, as where a container's image is older than its node's: its
client's memory is not touched, and nothing waits here for a permit."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.native import CSRC, foreign_shim

PROGRAM = """
import sys
from mfsd.client import Session, Stage
from mooncake_adapter.mooncake.lanes import shim_present

with Session.open(socket_path=sys.argv[1]) as session:
    nic = session.nic("mlx5_0")
    with session.submit(1 << 20, stage=Stage.P2D, nic=nic) as task:
        print(session.scheduled, task.wait(100) is not None, shim_present())
"""
LAYOUT = (1, "713d95b3")
"""MFS_CLIENT_LAYOUT, and what `digest` says of the structures that it stands for."""


@pytest.mark.parametrize("variant", [(), ("-DEARLIER",)])
def test_what_is_posted_waits_for_no_permit_here(serve, tmp_path: Path, variant: tuple[str, ...]) -> None:
    server = serve()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(server.path)],
        env={**os.environ, "LD_PRELOAD": str(foreign_shim(tmp_path, *variant))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.split() == ["False", "True", "False"], done.stderr
    assert "another version" in done.stderr
    assert server.segments == {}, "it asks no daemon"


def test_another_layout_of_clients_has_another_number() -> None:
    number = re.search(r"#define MFS_CLIENT_LAYOUT (\d+)", (CSRC / "include/mfs/client.h").read_text())
    assert number is not None
    assert (int(number[1]), digest((CSRC / "client/state.h").read_text())) == LAYOUT, (
        "struct mfs_client has changed: give MFS_CLIENT_LAYOUT the next number, and note it here with the digest"
    )


def digest(source: str) -> str:
    """Of what a compiler sees."""
    code = re.sub(r"/\*.*?\*/", " ", source, flags=re.DOTALL)
    return hashlib.sha256(" ".join(code.split()).encode()).hexdigest()[:8]

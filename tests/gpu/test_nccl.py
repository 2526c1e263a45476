"""NCCL ranks on one GPU over soft RoCE, with the shim, its profiler plugin and a daemon: results are right (the ranks
check every element), every byte has its communicator and operation, and nothing of it waits.

What it costs is measured by `python -m bench micro nccl_gpu`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mfsd.node.control import CommunicatorStatus
from tests.conftest import ROOT, SoftRoce
from tests.support.daemon import Daemon
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually

PROGRAM = ROOT / "bench/programs/nccl_ranks.py"
ROUNDS, COUNT = 3, 65536
FINISH_S = 240.0
CLASSES = """
[wire]
profile = "rocev2-lossy-ecn"
[[rule]]
communicator = "expert"
role = "nccl-data"
action = "pass"
stage = "collective"
class = 0
"""

pytestmark = pytest.mark.slow


@contextmanager
def ranks_at_rest(
    soft_roce: SoftRoce, library: Path, prefix: list[str], ranks: int, *more: str, **environment: str
) -> Iterator[list[dict[str, Any]]]:
    """What the ranks have said once all of them have finished their work; they end with the context."""
    shape = ("--ranks", str(ranks), "--rounds", str(ROUNDS), "--count", str(COUNT))
    program = [sys.executable, str(PROGRAM), "--library", str(library), *shape, *more]
    process = subprocess.Popen(
        soft_roce.argv(*prefix, *program),
        env=soft_roce.environment(**environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    soft_roce.started.append(process)
    assert process.stdin is not None and process.stdout is not None
    output = [json.loads(line) for _, line in zip(range(ranks), process.stdout, strict=False)]
    assert len(output) == ranks, f"ended early with {process.wait(timeout=FINISH_S)}"
    yield output
    process.stdin.close()
    assert process.wait(timeout=FINISH_S) == 0


def communicators(daemon: Daemon) -> list[CommunicatorStatus]:
    return [c for client in daemon.status().clients for c in client.communicators]


def collective_bytes(daemon: Daemon) -> int:
    return sum(client.posted_bytes.get("collective", 0) for client in daemon.status().clients)


@pytest.mark.parametrize("ranks", [2, 4])
def test_results_are_right_and_every_byte_is_tagged(
    soft_roce: SoftRoce, nccl_library: Path, folder: Path, ranks: int
) -> None:
    with (
        Daemon(folder, CLASSES) as daemon,
        ranks_at_rest(soft_roce, nccl_library, under_mfs(daemon.socket), ranks, "--batch") as output,
    ):
        assert {one["rank"] for one in output} == set(range(ranks))
        sent = collective_bytes(daemon)
        # every rank gives each of its peers `COUNT` elements in an all-to-all
        assert sent >= ROUNDS * ranks * (ranks - 1) * COUNT * 4
        eventually(lambda: sum(c.sent_bytes for c in communicators(daemon)) == sent, "every byte has a communicator")
        found = communicators(daemon)
        assert {(c.name, c.rank, c.ranks) for c in found} == {
            (name, rank, ranks) for name in ("tensor", "expert") for rank in range(ranks)
        }
        for c in found:
            assert "other" not in c.operation_bytes
            assert c.batch_bytes == c.sent_bytes  # the one batch under way
            assert c.layer == ROUNDS - 1
        assert sum(c.operation_bytes.get("send", 0) for c in found if c.name == "expert") > 0
        assert sum(c.operation_bytes.get("all-reduce", 0) for c in found if c.name == "tensor") > 0
        assert sum(c.grants for nic in daemon.status().nics for c in nic.classes) == 0


def test_without_the_plugin_stage_2_is_still_known(soft_roce: SoftRoce, nccl_library: Path, folder: Path) -> None:
    with (
        Daemon(folder) as daemon,
        ranks_at_rest(soft_roce, nccl_library, under_mfs(daemon.socket), 2, NCCL_PROFILER_PLUGIN="none"),
    ):
        assert collective_bytes(daemon) >= ROUNDS * 2 * COUNT * 4
        assert communicators(daemon) == []


def test_a_daemon_that_dies_changes_no_result(soft_roce: SoftRoce, nccl_library: Path, folder: Path) -> None:
    with Daemon(folder) as daemon, ranks_at_rest(soft_roce, nccl_library, under_mfs(daemon.socket), 2):
        daemon.process.kill()
    with ranks_at_rest(soft_roce, nccl_library, under_mfs(daemon.socket), 2) as output:
        assert len(output) == 2


def test_the_ranks_alone(soft_roce: SoftRoce, nccl_library: Path) -> None:
    """What the others are compared with."""
    with ranks_at_rest(soft_roce, nccl_library, [], 2) as output:
        assert {one["nccl"] // 100 for one in output}

"""Published wheels, unmodified, on the soft RoCE device: NCCL's own InfiniBand transport, Mooncake's engine, NIXL.

Each runs alone and with shim and daemon.
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.ports import free_port
from mfsd._native import Arbiter, Rule, RuleAction, Stage
from tests.conftest import NativePrograms, SoftRoce
from tests.support.arbiter import Server
from tests.support.daemon import Daemon
from tests.support.under_mfs import under_mfs
from tests.support.wheels import (
    NCCL_ENVIRONMENT,
    NCCL_VERSIONS,
    NIXL_VERSIONS,
    mooncake_environment,
    nccl_net_arguments,
    nixl_environment,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64"),
]
SHAPES = ((400, 131072, 1), (100, 40000, 4), (20, 4 << 20, 1), (400, 1, 8))
MOONCAKE_PEERS = Path(__file__).with_name("mooncake_peers.py")
HELD_STORE = Path(__file__).with_name("held_store.py")
NIXL_PEERS = Path(__file__).with_name("nixl_peers.py")
NIXL_BYTES = 8 << 20
"""Of each of its transfers."""
ADAPTED_PEERS = (
    "-c",
    "import runpy, mooncake_adapter; mooncake_adapter.install(); "
    f"runpy.run_path({str(NIXL_PEERS)!r}, run_name='__main__')",
)
"""The same program with the adapter, which an installed package brings by itself."""


def run_nccl(soft_roce: SoftRoce, program: Path, version: str, prefix: list[str]) -> None:
    for messages, size, multi in SHAPES:
        shape = map(str, (messages, size, multi))
        command = [*prefix, str(program), *nccl_net_arguments(version), *shape]
        assert f"{messages} messages" in soft_roce.run(*command, env=NCCL_ENVIRONMENT).stdout


@pytest.mark.parametrize("version", NCCL_VERSIONS)
def test_nccl_internal_net(soft_roce: SoftRoce, native: NativePrograms, version: str) -> None:
    run_nccl(soft_roce, native("nccl_net", "-ldl"), version, [])


@pytest.mark.parametrize("version", NCCL_VERSIONS)
def test_nccl_internal_net_under_mfs(soft_roce: SoftRoce, native: NativePrograms, folder: Path, version: str) -> None:
    """With the rules as shipped: NCCL's queue pairs are known and nothing of it waits."""
    with Daemon(folder) as daemon:
        run_nccl(soft_roce, native("nccl_net", "-ldl"), version, under_mfs(daemon.socket))
        assert daemon.status().daemon.attached_total == 2 * len(SHAPES)
        assert sum(c.grants for nic in daemon.status().nics for c in nic.classes) == 0


@pytest.mark.parametrize("version", NCCL_VERSIONS)
def test_nccl_internal_net_held(soft_roce: SoftRoce, native: NativePrograms, folder: Path, version: str) -> None:
    """Data that must ask for permits arrives as whole as data that need not. It is held for as long as a busy machine
    needs to grant it: what goes on without a permit is not counted."""
    patient = '[arbiter]\nmax_hold = "5s"\nstale_after = "10s"\n'
    rule = '[[rule]]\nrole = "nccl-data"\naction = "hold"\nstage = "p2d"\n'
    with Daemon(folder, patient + rule) as daemon:
        run_nccl(soft_roce, native("nccl_net", "-ldl"), version, under_mfs(daemon.socket))
        sent_bytes = sum(messages * size * multi for messages, size, multi in SHAPES)
        assert sum(c.granted_bytes for nic in daemon.status().nics for c in nic.classes) >= sent_bytes


def test_mooncake_transfers(soft_roce: SoftRoce, tmp_path: Path) -> None:
    environment = mooncake_environment(tmp_path)
    output = soft_roce.run(sys.executable, MOONCAKE_PEERS, env=environment, timeout_s=120).stdout
    assert "verified 20 sizes and 4 batches" in output


def test_mooncake_transfers_under_mfs(soft_roce: SoftRoce, tmp_path: Path, folder: Path) -> None:
    """With the rules as shipped: Mooncake's transfers are held, permitted, and whole."""
    with Daemon(folder) as daemon:
        command = under_mfs(daemon.socket, sys.executable, MOONCAKE_PEERS)
        output = soft_roce.run(*command, env=mooncake_environment(tmp_path), timeout_s=120).stdout
        assert "verified 20 sizes and 4 batches" in output
        assert sum(c.grants for nic in daemon.status().nics for c in nic.classes) > 0


@pytest.mark.parametrize("version", NIXL_VERSIONS)
def test_nixl_transfers(soft_roce: SoftRoce, version: str) -> None:
    """Its own libibverbs does not know the device; the launcher has put the system's before it."""
    output = soft_roce.run(sys.executable, NIXL_PEERS, env=nixl_environment(version), timeout_s=120).stdout
    assert "verified 3 writes and 3 reads" in output


@pytest.mark.parametrize("version", NIXL_VERSIONS)
@pytest.mark.parametrize("program", [(NIXL_PEERS,), ADAPTED_PEERS], ids=["stock", "adapted"])
def test_nixl_transfers_under_mfs(
    soft_roce: SoftRoce, folder: Path, version: str, program: tuple[str | Path, ...]
) -> None:
    """With the rules as shipped UCX's own queue pairs are not held: the adapter alone asks, for whole transfers."""
    with Daemon(folder) as daemon:
        command = under_mfs(daemon.socket, sys.executable, *program)
        output = soft_roce.run(*command, env=nixl_environment(version), timeout_s=120).stdout
        assert "verified 3 writes and 3 reads" in output
        assert daemon.status().daemon.attached_total >= 2
        classes = [c for nic in daemon.status().nics for c in nic.classes]
        assert (sum(c.granted_bytes for c in classes) >= NIXL_BYTES) == (program == ADAPTED_PEERS)
        assert (sum(c.grants for c in classes) > 0) == (program == ADAPTED_PEERS)


@contextmanager
def nothing_is_permitted(folder: Path, rule: Rule) -> Iterator[Server]:
    """A daemon that holds what the rule is about for ever: its arbiter never runs, and is not missed for so long."""
    forever_ns = 1000 * 10**9
    with Arbiter(stale_after_ns=forever_ns, max_hold_ns=forever_ns) as arbiter:
        arbiter.rules([rule])
        server = Server(folder / "s", arbiter)
        yield server
        server.close()
        assert arbiter.stats()["nics"] == 1 and arbiter.nic_stats(0)["name"] == "mfs0"
        assert arbiter.stats()["grants"] == 0


def test_mooncake_transfers_while_nothing_is_permitted(soft_roce: SoftRoce, tmp_path: Path, folder: Path) -> None:
    """Held for as long as the daemon allows, each of some forty transfers would fail by Mooncake's own time-out, which
    is two seconds here. They share what their queue pairs may lose, and are whole."""
    with nothing_is_permitted(folder, Rule(action=RuleAction.HOLD, stage=Stage.P2D)) as server:
        command = under_mfs(server.path, sys.executable, MOONCAKE_PEERS)
        environment = {**mooncake_environment(tmp_path), "MC_TRANSFER_TIMEOUT": "2"}
        output = soft_roce.run(*command, env=environment, timeout_s=200).stdout
        assert "verified 20 sizes and 4 batches" in output


@pytest.mark.parametrize("given_ms", [6000, 60_000])
def test_a_store_reads_while_nothing_is_permitted(
    soft_roce: SoftRoce, tmp_path: Path, folder: Path, given_ms: int
) -> None:
    """Held for a quarter of the lease that the process was given, or of Mooncake's own time-out where that is less.
    Where the lease is the master's own the read is through within it, and right; where it is too long the store
    itself refuses what came after the lease."""
    lease_ms, timeout_ms = 6000, 30_000
    with nothing_is_permitted(folder, Rule(action=RuleAction.HOLD, stage=Stage.REUSE)) as server:
        ports = (str(free_port()), str(free_port()))
        command = under_mfs(server.path, sys.executable, HELD_STORE, *ports, str(lease_ms))
        environment = {**mooncake_environment(tmp_path), "MFS_STORE_LEASE_MS": str(given_ms)}
        output = soft_roce.run(*command, env=environment, timeout_s=200).stdout
        found = json.loads(output.splitlines()[-1])
    assert found["took_s"] >= min(given_ms, timeout_ms) / 4000
    if given_ms == lease_ms:
        assert found["answer"] == 1 << 20 and found["right"], found
    else:
        assert found["answer"] < 0, found

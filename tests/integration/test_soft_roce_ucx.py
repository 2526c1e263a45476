"""The distribution's UCX on the soft RoCE device: RC queue pairs, wired up by UD ones, and UD queue pairs alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from bench.ports import free_port
from tests.conftest import WAIT_S, SoftRoce, wait_for_listener
from tests.support.capture import capture
from tests.support.daemon import Daemon
from tests.support.under_mfs import HOLD_EVERYTHING, ROOT, under_mfs
from tests.support.waiting import eventually

TRANSPORTS = ("rc_verbs,ud_verbs", "rc_v", "ud_verbs")
"""`rc_v` is UCX's own name for what `rc_verbs` needs, wire-up included."""


def perftest(soft_roce: SoftRoce, transports: str, *arguments: str, prefix: list[str] | None = None) -> float:
    """Runs server and client; answers the bandwidth that the client has seen, in MB/s."""
    port = str(free_port())
    command = [*(prefix or []), "ucx_perftest", "-p", port]
    environment = {"UCX_TLS": transports, "UCX_WARN_UNUSED_ENV_VARS": "n"}
    server = soft_roce.start(*command, env=environment)
    wait_for_listener(int(port), server)
    client = soft_roce.run(*command, "127.0.0.1", *arguments, env=environment)
    output, _ = server.communicate(timeout=WAIT_S)
    assert server.returncode == 0, output
    row = re.search(r"^Final:\s+(?:\S+\s+){4}(\S+)", client.stdout, re.MULTILINE)
    assert row, client.stdout + client.stderr
    return float(row[1])


def test_info_lists_the_transports(soft_roce: SoftRoce) -> None:
    output = soft_roce.run("ucx_info", "-d").stdout
    found = re.findall(r"Transport: (\w+)\n#\s+Device: mfs0:1", output)
    assert {"rc_verbs", "ud_verbs"} <= set(found), output


@pytest.mark.parametrize("transports", TRANSPORTS)
@pytest.mark.parametrize("size", ["8", "4096", "1000000"])
def test_tag_bandwidth(soft_roce: SoftRoce, transports: str, size: str) -> None:
    assert perftest(soft_roce, transports, "-t", "tag_bw", "-s", size, "-n", "100") > 0


def test_latency_and_remote_memory(soft_roce: SoftRoce) -> None:
    for test in ("tag_lat", "ucp_put_bw", "ucp_get"):
        assert perftest(soft_roce, "rc_v", "-t", test, "-s", "16384", "-n", "200") > 0


@pytest.mark.parametrize("configuration", ["", HOLD_EVERYTHING], ids=["as-shipped", "held"])
def test_under_mfs(soft_roce: SoftRoce, folder: Path, configuration: str) -> None:
    with Daemon(folder, configuration) as daemon:
        prefix = under_mfs(daemon.socket)
        assert perftest(soft_roce, "rc_v", "-t", "tag_bw", "-s", "65536", "-n", "200", prefix=prefix) > 0
        assert daemon.status().daemon.attached_total == 2


@pytest.mark.parametrize("mode", ["mark", "enforce"])
def test_a_policy_gives_it_the_class_of_kv(soft_roce: SoftRoce, folder: Path, mode: str) -> None:
    """By its own variable, so also where the preloaded library does not see its queue pairs."""
    tos = 24 << 2  # of last stages in paper-k8; TCP, which carries this device's bytes, sets the ECN bits itself
    run = [sys.executable, "-m", "nccl_shim.run", "--quiet", "--mode", mode, "--policy", "paper-k8"]
    with Daemon(folder, HOLD_EVERYTHING) as daemon, capture() as wire:
        prefix = [*run, *(["--socket", str(daemon.socket)] if mode == "enforce" else []), "--"]
        assert perftest(soft_roce, "rc_v", "-t", "tag_bw", "-s", "65536", "-n", "200", prefix=prefix) > 0
        eventually(lambda: wire.both_ways(tos, tos), "the class of KV on both directions")


RECIPE = re.search(r'library = "(libuc\w+)"', (ROOT / "docs" / "configuration.md").read_text())


def test_the_recipe_names_the_library_that_makes_the_queue_pairs(soft_roce: SoftRoce, folder: Path) -> None:
    assert RECIPE is not None
    rule = f'[[rule]]\nlibrary = "{RECIPE[1]}"\naction = "hold"\nstage = "p2d"\nset_role = "kv"\n'
    with Daemon(folder, rule) as daemon:
        prefix = under_mfs(daemon.socket)
        assert perftest(soft_roce, "rc_v", "-t", "tag_bw", "-s", "65536", "-n", "200", prefix=prefix) > 0
        assert sum(total.submits for total in daemon.status().totals) > 0, "nothing asked for a permit"

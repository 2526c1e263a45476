"""`mfsctl fabric probe` in namespaces: through a switch that keeps classes apart, and a router that
bleaches DSCP."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import netns

from bench.fabric.lab import Lab, missing, slow_profile
from mfsd.fabric.policy import shipped_policy
from mfsd.fabric.probe import Reflector, quoted_dscp

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
LINK_GBPS = 0.1
"""So that the least bytes of a phase take no longer than its least time, and two cores can fill it."""


def probe_in(namespace: str, *arguments: str) -> tuple[int, str]:
    code = "import sys; from mfsd.cli.commands.fabric import fabric; fabric(sys.argv[1:])"
    command = ["ip", "netns", "exec", namespace, sys.executable, "-c", code, "probe", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    return result.returncode, result.stdout + result.stderr


def serve_in(namespace: str) -> tuple[Reflector, threading.Thread]:
    netns.pushns(namespace)
    try:
        reflector = Reflector("0.0.0.0", 0)
    finally:
        netns.popns()
    thread = threading.Thread(target=reflector.run, daemon=True)
    thread.start()
    return reflector, thread


@pytest.fixture
def lab() -> Iterator[tuple[Lab, int]]:
    with Lab(["near", "peer"], slow_profile("rocev2-lossy-ecn", LINK_GBPS)) as lab:
        reflector, thread = serve_in(lab.namespace("peer"))
        yield lab, reflector.port
        reflector.stop()
        thread.join(200)
        reflector.close()


def test_a_configured_path_keeps_its_classes_apart(lab: tuple[Lab, int]) -> None:
    """A machine that stands still makes a pair look alike: then once more. A path without classes never looks apart."""
    switch, port = lab
    for _ in range(4):
        status, output = probe_in(
            switch.namespace("near"),
            switch.address("peer"),
            "--port",
            str(port),
            "--policy",
            "rocev2-lossy-ecn",
            "--json",
        )
        found = json.loads(output)
        assert [(d["dscp"], d["arrived"], d["came_back"]) for d in found["dscp"]] == [
            (d, d, d) for d in (8, 26, 34, 46, 48)
        ]
        if status == 0:
            break
    assert [p["verdict"] for p in found["pairs"]] == ["apart"] * 3, found
    assert status == 0


def test_classes_the_path_does_not_know_are_found(lab: tuple[Lab, int], tmp_path: Path) -> None:
    switch, port = lab
    policy = tmp_path / "policy.toml"
    policy.write_text(shipped_policy().replace("dscp = 46", "dscp = 20").replace("dscp = 34", "dscp = 18"))
    arguments = ("--port", str(port), "--policy", "rocev2-lossy-ecn", "--policy-file", str(policy))
    status, output = probe_in(switch.namespace("near"), switch.address("peer"), *arguments)
    assert status == 1
    assert "critical over high: not apart" in output, output


@pytest.fixture
def bleaching_router() -> Iterator[tuple[str, int]]:
    """near - r1 - r2 - peer, where r2 clears every DSCP that it forwards to the peer."""
    prefix = f"mfsb{os.getpid()}"
    chain = ["near", "r1", "r2", "peer"]
    spaces = [f"{prefix}-{n}" for n in chain]
    reflector = None
    try:
        for space in spaces:
            run(f"ip netns add {space}")
            run(f"ip -n {space} link set dev lo up")
            run(f"ip netns exec {space} sysctl -qw net.ipv4.ip_forward=1 net.ipv4.icmp_ratelimit=0")
        for i, (left, right) in enumerate(itertools.pairwise(spaces)):
            run(f"ip -n {left} link add name right type veth peer name left netns {right}")
            run(f"ip -n {left} address add 10.87.{i}.1/24 dev right")
            run(f"ip -n {right} address add 10.87.{i}.2/24 dev left")
            run(f"ip -n {left} link set dev right up")
            run(f"ip -n {right} link set dev left up")
        run(f"ip -n {spaces[0]} route add default via 10.87.0.2")
        run(f"ip -n {spaces[1]} route add 10.87.2.0/24 via 10.87.1.2")
        run(f"ip -n {spaces[2]} route add 10.87.0.0/24 via 10.87.1.1")
        run(f"ip -n {spaces[3]} route add default via 10.87.2.1")
        clear = "iifname left ip dscp set cs0;"
        filtered = f"chain in {{ type filter hook prerouting priority mangle; {clear} }}"
        subprocess.run(
            ["ip", "netns", "exec", spaces[2], "nft", "-f", "-"],
            input=f"table ip bleach {{ {filtered}; }}",
            text=True,
            check=True,
            timeout=200,
        )
        reflector, thread = serve_in(spaces[3])
        yield spaces[0], reflector.port
    finally:
        if reflector:
            reflector.stop()
            thread.join(200)
            reflector.close()
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, timeout=200)


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, timeout=200)


@pytest.mark.skipif(shutil.which("nft") is None, reason="nftables is not installed")
def test_a_bleaching_router_is_named(bleaching_router: tuple[str, int]) -> None:
    near, port = bleaching_router
    status, output = probe_in(near, "10.87.2.2", "--port", str(port), "--no-load", "--json")
    assert status == 1
    found = {d["dscp"]: d for d in json.loads(output)["dscp"]}
    assert found[26]["arrived"] == 0
    assert found[26]["came_back"] == 26, "only the way there is bleached"
    assert found[26]["changed_at"] == "10.87.1.2 (hop 2) already saw 0"


def test_a_peer_that_does_not_answer() -> None:
    with Lab(["near", "peer"], slow_profile("rocev2-lossy-ecn", 0.04)) as lab:
        status, output = probe_in(lab.namespace("near"), lab.address("peer"), "--no-load")
    assert status == 1
    assert "run `mfsctl fabric serve` there" in output


def test_only_quotes_of_datagrams_are_read() -> None:
    outer = bytes([0x45]) + bytes(19)
    inner = bytes([0x45, 26 << 2]) + bytes(7) + bytes([17]) + bytes(10) + (4242).to_bytes(2, "big") + bytes(6)
    exceeded = outer + bytes([11]) + bytes(7) + inner
    assert quoted_dscp(exceeded) == (26, 4242)
    assert quoted_dscp(outer + bytes([3]) + bytes(7) + inner) is None
    assert quoted_dscp(exceeded[:30]) is None
    assert quoted_dscp(b"") is None

"""Lanes without a daemon: what `mfs-run --mode mark` puts into the packets of real programs (captured on the wire)."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.ports import free_port
from tests.conftest import ROOT, NativePrograms, SoftRoce
from tests.integration.adapted_marks import LARGE, MIDDLE, SMALL
from tests.integration.adapted_nixl import SIZE as NIXL_BYTES
from tests.support.capture import Capture, capture
from tests.support.own_loopback import own_loopback
from tests.support.under_mfs import build_program
from tests.support.waiting import eventually
from tests.support.wheels import (
    NCCL_ENVIRONMENT,
    NCCL_VERSIONS,
    mooncake_environment,
    nccl_net_arguments,
    nixl_environment,
)

DSCP = [56, 48, 40, 32, 24, 16, 8, 0]
"""Of paper-k8."""
COLLECTIVE, LOADS, LAST_STAGES, BACKGROUND = 0, (1, 2, 3), (4, 5, 6), 7
SIZES = ("--sizes", "p2d=256kib,4mib", "--sizes", "reuse=256kib")


@pytest.fixture(scope="module", autouse=True)
def _wheels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fetched while there is a network."""
    mooncake_environment(tmp_path_factory.mktemp("mooncake"))
    if platform.machine() == "x86_64":
        nixl_environment()
        for version in NCCL_VERSIONS:
            nccl_net_arguments(version)


@pytest.fixture(autouse=True)
def _network(_wheels: None) -> Iterator[None]:
    """What is said of all packets on loopback is said of this test's own."""
    with own_loopback():
        yield


def marking(*options: str | Path, policy: str = "paper-k8") -> list[str]:
    return [
        *(sys.executable, "-m", "nccl_shim.run", "--mode", "mark", "--policy", policy),
        *map(str, options),
        "--",
    ]


@contextmanager
def no_connection(folder: Path) -> Iterator[dict[str, str]]:
    """A daemon's socket at which no client may knock, as the environment names it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "mfsd.sock"))
        listener.listen()
        listener.setblocking(False)
        yield {"MFS_SOCKET": str(folder / "mfsd.sock")}
        with pytest.raises(BlockingIOError):
            listener.accept()


def carried_bytes(wire: Capture, wire_class: int) -> int:
    return wire.payload_bytes(DSCP[wire_class] << 2)


@pytest.mark.parametrize("program", ["ib_write_bw", "ib_read_bw", "ib_send_bw"])
def test_a_rules_dscp_is_on_both_directions(soft_roce: SoftRoce, folder: Path, program: str) -> None:
    rules = folder / "rules.toml"
    rules.write_text('[[rule]]\nlibrary = "ib_"\nprocess = "ib_"\naction = "pass"\ndscp = 11\n')
    with no_connection(folder) as environment, capture() as wire:
        command = ("env", *(f"{k}={v}" for k, v in environment.items()), *marking("--rules", rules))
        soft_roce.pair(*command, program, "-s", "4096", "-n", "500", "-F", "-d", "mfs0")
        eventually(lambda: wire.both_ways(11 << 2, 11 << 2), "DSCP 11 on both directions of a connection")


@pytest.mark.parametrize("options", [(), ("-e",), ("-N",)], ids=["polling", "events", "builders"])
def test_what_no_rule_knows_keeps_its_class(soft_roce: SoftRoce, options: tuple[str, ...]) -> None:
    with capture() as wire:
        for output in soft_roce.pair(*marking(), "ibv_rc_pingpong", "-d", "mfs0", "-g", "0", "-c", *options):
            assert "iters in" in output and "invalid data" not in output
        eventually(lambda: wire.both_ways(0, 0), "unmarked packets in both directions")
        assert {tos for tos, _, _ in wire.carried} == {0}


def test_queue_pairs_of_nccls_shape_have_the_class_of_collectives(
    soft_roce: SoftRoce, folder: Path, tmp_path: Path
) -> None:
    """The program reaches libibverbs by dlvsym, as NCCL does."""
    alltoall = build_program("alltoall", tmp_path, "-ldl", source_folder="bench/programs")
    tos = 46 << 2  # of the highest class of rocev2-lossy-ecn
    with no_connection(folder) as environment, capture() as wire:
        command = ("env", *(f"{k}={v}" for k, v in environment.items()), *marking(policy="rocev2-lossy-ecn"))
        soft_roce.run(*command, str(alltoall), "--rounds", "3", "--gap-ms", "0")
        eventually(lambda: wire.both_ways(tos, tos), "the collectives' DSCP on both directions")


def variable(name: str) -> tuple[str, int]:
    """What `mfsctl host env` prints for it, and the TOS of its packets (ECN is the sender's TCP's own)."""
    command = [sys.executable, "-m", "mfsd.cli.ctl", "host", "env", "--profile", "paper-k8", "--json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    (value,) = [row["value"] for row in json.loads(output) if row["variable"] == name]
    return value, int(value) & ~3


@pytest.mark.slow
@pytest.mark.parametrize("version", NCCL_VERSIONS)
def test_nccls_own_variable_is_on_the_wire(soft_roce: SoftRoce, native: NativePrograms, version: str) -> None:
    """The shipped wheel's InfiniBand transport alone, with what an operator pastes."""
    value, tos = variable("NCCL_IB_TC")
    assert tos == DSCP[COLLECTIVE] << 2
    command = (str(native("nccl_net", "-ldl")), *nccl_net_arguments(version), "200", "131072", "1")
    with capture() as wire:
        assert "200 messages" in soft_roce.run(*command, env={**NCCL_ENVIRONMENT, "NCCL_IB_TC": value}).stdout
        eventually(lambda: wire.both_ways(tos, tos), "the collectives' class on both directions")


@pytest.mark.slow
def test_mooncakes_own_variable_is_on_the_wire(soft_roce: SoftRoce, tmp_path: Path) -> None:
    value, tos = variable("MC_IB_TC")
    assert tos == DSCP[LAST_STAGES[0]] << 2
    with capture() as wire:
        program = ROOT / "tests/integration/mooncake_peers.py"
        environment = mooncake_environment(tmp_path) | {"MC_IB_TC": value}
        output = soft_roce.run(sys.executable, program, env=environment, timeout_s=120).stdout
        assert "verified 20 sizes and 4 batches" in output
        eventually(lambda: wire.both_ways(tos, tos), "the last stages' class on both directions")


def test_each_transfer_of_mooncake_has_the_class_of_its_stage_and_size(
    soft_roce: SoftRoce, folder: Path, tmp_path: Path
) -> None:
    program = ROOT / "tests/integration/adapted_marks.py"
    with no_connection(folder) as environment, capture() as wire:
        command = (*marking(*SIZES), sys.executable, str(program))
        output = soft_roce.run(*command, env=mooncake_environment(tmp_path) | environment, timeout_s=180).stdout
        printed = json.loads(output.splitlines()[-1])
        small, middle, large = LAST_STAGES
        assert printed == {"lanes": sorted([*LOADS[:2], small, middle, BACKGROUND]), "own": large}, output
        for wire_class in (*LOADS[:2], small, middle, large, BACKGROUND):
            tos = DSCP[wire_class] << 2
            eventually(lambda tos=tos: wire.both_ways(tos, tos), f"class {wire_class} on both directions")
        for wire_class, least in (
            (small, SMALL),
            (middle, MIDDLE),
            (LOADS[0], SMALL),
            (LOADS[1], MIDDLE),
            (large, LARGE),
        ):
            # A busy capture misses some; what else travels in a class is less than a message of it.
            eventually(
                lambda k=wire_class, n=least: carried_bytes(wire, k) > n // 2, f"the bytes of class {wire_class}"
            )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64")
def test_each_transfer_of_nixl_has_the_class_of_its_stage_and_size(soft_roce: SoftRoce, folder: Path) -> None:
    """Writes of 4 MiB in the background and as last stages, reads of reuse; what no lane is connected for yet has the
    class of large last stages, which is the program's own engine's."""
    place = folder / "word"
    place.with_suffix(".on").touch()
    _, reuse, _ = LOADS
    _, middle, large = LAST_STAGES
    taken = (reuse, middle, BACKGROUND)
    with no_connection(folder) as environment, capture() as wire:
        program = ROOT / "tests/integration/adapted_nixl.py"
        command = (*marking(*SIZES), sys.executable, str(program), str(place), str(len(taken)))
        output = soft_roce.run(*command, env=nixl_environment() | environment, timeout_s=200).stdout
        assert json.loads(output.splitlines()[-1]) == {"lanes": [f"UCX_MFS{one}" for one in taken]}, output
        for wire_class in (*taken, large):
            tos = DSCP[wire_class] << 2
            eventually(lambda tos=tos: wire.both_ways(tos, tos), f"class {wire_class} on both directions")
            assert carried_bytes(wire, wire_class) > NIXL_BYTES // 2, dict(wire.carried)  # a busy capture misses some


def test_store_writes_have_the_lowest_class_and_reads_that_of_loads(
    soft_roce: SoftRoce, folder: Path, tmp_path: Path
) -> None:
    program = ROOT / "tests/integration/adapted_store.py"
    with no_connection(folder) as environment, capture() as wire:
        command = (*marking(), sys.executable, str(program), str(free_port()), str(free_port()))
        output = soft_roce.run(*command, env=mooncake_environment(tmp_path) | environment, timeout_s=180).stdout
        assert json.loads(output.splitlines()[-1])["lane"], output
        assert carried_bytes(wire, BACKGROUND) > 4 << 20
        eventually(lambda: wire.both_ways(DSCP[LOADS[0]] << 2, DSCP[LOADS[0]] << 2), "loads on both directions")

"""The class that a rule gives a queue pair is what its packets carry, in both directions (captured on the wire)."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT, NativePrograms, SoftRoce
from tests.support.daemon import Daemon
from tests.support.fabric import marked_with
from tests.support.under_mfs import build_program, under_mfs
from tests.support.waiting import eventually

ETH_P_IP = 0x0800
TCP = 6


class Capture:
    """TCP packets seen on loopback: (TOS, source port, destination port)."""

    def __init__(self, packets: socket.socket):
        self._packets = packets
        self.seen: set[tuple[int, int, int]] = set()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                packet = self._packets.recv(256)
            except OSError:
                return
            header_bytes = (packet[0] & 15) * 4
            if len(packet) >= header_bytes + 4 and packet[9] == TCP:
                source, destination = struct.unpack_from("!HH", packet, header_bytes)
                self.seen.add((packet[1], source, destination))

    def both_ways(self, tos: int, back: int) -> bool:
        """Some connection carried ``tos`` one way and ``back`` the other."""
        return any((back, b, a) in self.seen for seen_tos, a, b in set(self.seen) if seen_tos == tos)


@contextmanager
def capture() -> Iterator[Capture]:
    try:
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
    except PermissionError:
        pytest.skip("capturing packets needs CAP_NET_RAW")
    packets.bind(("lo", ETH_P_IP))
    try:
        yield Capture(packets)
    finally:
        packets.close()


def test_a_rules_dscp_is_on_both_directions(soft_roce: SoftRoce, folder: Path) -> None:
    rule = '[[rule]]\naction = "hold"\nstage = "p2d"\ndscp = 11\n'
    with Daemon(folder, rule) as daemon, capture() as wire:
        soft_roce.pair(*under_mfs(daemon.socket, "ib_write_bw", "-s", "4096", "-n", "500", "-F", "-d", "mfs0"))
        eventually(lambda: wire.both_ways(11 << 2, 11 << 2), "DSCP 11 on both directions of a connection")


def test_lanes_of_different_class_live_in_one_process(soft_roce: SoftRoce, folder: Path, tmp_path: Path) -> None:
    """Each rank of the all-to-all owns data queue pairs and clear-to-send queue pairs."""
    lanes = '[[rule]]\nrole = "nccl-data"\naction = "pass"\nstage = "collective"\ndscp = 11\n'
    lanes += '[[rule]]\nrole = "nccl-cts"\naction = "pass"\nstage = "control"\ndscp = 13\n'
    alltoall = build_program("alltoall", tmp_path, "-ldl", source_folder="bench/programs")
    with Daemon(folder, lanes) as daemon, capture() as wire:
        soft_roce.run(*under_mfs(daemon.socket, alltoall, "--rounds", "3", "--gap-ms", "0"))
        # a data queue pair talks to its peer's clear-to-send queue pair: each marks what it sends
        eventually(lambda: wire.both_ways(11 << 2, 13 << 2), "DSCP 11 one way and 13 the other")


def test_an_engines_lane_carries_its_class(soft_roce: SoftRoce, native: NativePrograms, folder: Path) -> None:
    """What a lane sends has the DSCP of its class, each end its own; and it is not held, whatever the rules say."""
    everything = marked_with(folder, [46, 34, 26, 18]) + '[[rule]]\naction = "hold"\nstage = "p2d"\ndscp = 11\n'
    program = native("soft_roce_lanes", f"-I{ROOT}/csrc/include", "-libverbs", "-lpthread", "-ldl")
    with Daemon(folder, everything) as daemon, capture() as wire:
        soft_roce.run(*under_mfs(daemon.socket, program, "1", "2"))
        eventually(lambda: wire.both_ways(34 << 2, 26 << 2), "DSCP 34 one way and 26 the other")
        soft_roce.run(*under_mfs(daemon.socket, program, "3", "-1"))
        eventually(lambda: wire.both_ways(18 << 2, 11 << 2), "DSCP 18 of the lane one way and the rule's 11 the other")
        # the side without a lane asked for its one permit
        assert sum(c.grants for nic in daemon.status().nics for c in nic.classes) == 1

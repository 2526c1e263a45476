"""What the network sees of a queue pair: its traffic class, and no more bytes than the rate allows."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mfsd.soft_roce import namespace


@contextmanager
def capture(path: str, expression: str) -> Iterator[None]:
    """Captures on loopback while the body runs; nothing sent in the body is missed."""
    command = ["tcpdump", "-i", "lo", "-U", "--immediate-mode", "-s", "96", "-w", path, expression]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if "listening on" in line:
                    break
            yield
        finally:
            process.terminate()


@pytest.mark.skipif(not namespace.has_sys_admin(), reason="captures packets")
def test_traffic_class_is_the_tos_of_every_data_packet_in_both_directions(soft_roce, native, tmp_path):
    """A queue pair of class 0x68 on one side, 0xb8 on the other: each side's packets carry its own class."""
    file = str(tmp_path / "lo.pcap")
    address = "127.0.0.77"
    program = native("soft_roce_classes", "-libverbs")
    with capture(file, f"tcp and host {address}"):
        ports = soft_roce.run(program, "104", "184", address=address).stdout.split()
    text = subprocess.run(["tcpdump", "-nn", "-v", "-r", file], capture_output=True, text=True, check=True).stdout
    packets = re.findall(r"tos (0x[0-9a-f]+),.*?length \d+\)\n\s+\S+\.(\d+) > \S+\.(\d+): .* length (\d+)", text)
    seen = {(ports.index(port), tos) for tos, *pair, length in packets if int(length) for port in pair if port in ports}
    seen_sent = {tos for tos, _, _, length in packets if int(length)}
    assert seen_sent == {"0x68", "0xb8"}
    # to and from the listener of either side both classes are seen: requests of one, responses of the other
    assert seen == {(0, "0x68"), (0, "0xb8"), (1, "0x68"), (1, "0xb8")}


def test_rate_holds_and_is_used(soft_roce):
    """4 MB at 80 Mbit/s take 0.4 s and no less; the upper bound only says that the transfer does not hang."""
    begin = time.monotonic()
    soft_roce.pair("ib_write_bw", "-F", "-d", "mfs0", "-s", "65536", "-n", "61", options=("--rate", "80mbit"))
    assert time.monotonic() - begin > 61 * 65536 / 10e6 * 0.95

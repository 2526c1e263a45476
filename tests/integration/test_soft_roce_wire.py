"""What the network sees of a queue pair: its traffic class, and no more bytes than the rate allows."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.ports import free_port
from mfsd.soft_roce import namespace
from tests.conftest import wait_for_listener
from tests.support.waiting import eventually

END = (b"end of the capture", ("127.0.0.80", 9))
"""Sent after all the rest: when it is in the file, so is that."""


@contextmanager
def capture(path: str, expression: str) -> Iterator[None]:
    """Captures on loopback while the body runs; nothing sent in the body is missed."""
    ends = f"({expression}) or (udp and dst host {END[1][0]})"
    command = ["tcpdump", "-i", "lo", "-U", "--immediate-mode", "-s", "96", "-w", path, ends]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if "listening on" in line:
                    break
            yield
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(*END)
            eventually(lambda: END[0] in Path(path).read_bytes(), "the end of the capture")
        finally:
            process.terminate()


def captured(path: str, expression: str) -> str:
    command = ["tcpdump", "-nn", "-v", "-r", path, expression]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not namespace.has_sys_admin(), reason="captures packets")
def test_traffic_class_is_the_tos_of_every_data_packet_in_both_directions(soft_roce, native, tmp_path):
    """A queue pair of class 0x68 on one side, 0xb8 on the other: each side's packets carry its own class."""
    file = str(tmp_path / "lo.pcap")
    address = "127.0.0.77"
    program = native("soft_roce_classes", "-libverbs")
    expression = f"tcp and host {address}"
    with capture(file, expression):
        ports = soft_roce.run(program, "104", "184", address=address).stdout.split()
    text = captured(file, expression)
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


def test_rate_holds_for_datagrams(soft_roce):
    """80 Mbit/s are 9.54 MiB/s, without limit hundreds; perftest's clock is off by some percent on a busy host."""
    command = ("ib_send_bw", "-c", "UD", "-F", "-d", "mfs0", "-s", "4096", "-n", "500", "-r", "512")
    _, client = soft_roce.pair(*command, options=("--rate", "80mbit"))
    (average,) = re.findall(r"^ 4096 +500 +\S+ +(\S+)", client, re.MULTILINE)
    assert float(average) < 9.54 * 1.5


@pytest.mark.skipif(not namespace.has_sys_admin(), reason="captures packets")
def test_traffic_class_of_the_address_handle_is_the_tos_of_every_datagram(soft_roce, tmp_path):
    file, address, port = str(tmp_path / "lo.pcap"), "127.0.0.79", str(free_port())
    command = ("ib_send_lat", "-c", "UD", "-F", "-d", "mfs0", "-n", "20", "-p", port, "--tclass=106")
    expression = f"udp and host {address}"
    with capture(file, expression):
        server = soft_roce.start(*command, address=address)
        wait_for_listener(int(port), server)
        soft_roce.run(*command, address, address=address)
        output, _ = server.communicate(timeout=200)
        assert server.returncode == 0, output
    text = captured(file, expression)
    seen = re.findall(r"tos (0x[0-9a-f]+)", text)
    assert len(seen) >= 40
    assert set(seen) == {"0x6a"}


def listening_ports(address: str) -> set[int]:
    number = int.from_bytes(socket.inet_aton(address), "little")
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {int(row[1][9:], 16) for row in rows if row[3] == "0A" and int(row[1][:8], 16) == number}


def test_who_never_says_hello_takes_no_descriptors_from_others(soft_roce):
    """Twice as many silent connections as a process has descriptors: the device keeps the last, and still serves."""
    address, port = "127.0.0.78", free_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    strangers = min(2 * 1024, hard - 200)
    command = ("ib_write_bw", "-F", "-d", "mfs0", "-s", "4096", "-n", "100", "-p", str(port))
    server = soft_roce.start("prlimit", "--nofile=1024", *command, address=address)
    wait_for_listener(port, server)
    (device,) = listening_ports(address)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, strangers + 200), hard))
    try:
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection((address, device))) for _ in range(strangers)]
            for one in silent:
                one.setblocking(False)
            eventually(lambda: sum(map(is_closed, silent)) >= strangers - 256, "the oldest ones are sent away")
            assert not is_closed(silent[-1])
            soft_roce.run(*command, address, address=address)
            output, _ = server.communicate(timeout=200)
            assert server.returncode == 0, output
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def is_closed(end: socket.socket) -> bool:
    try:
        return end.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True

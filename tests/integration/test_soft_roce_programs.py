"""Unmodified programs of the distribution on the soft RoCE device."""

from __future__ import annotations

import re

import pytest

PINGPONG = ("ibv_rc_pingpong", "-d", "mfs0", "-g", "0", "-c")


def test_devinfo_shows_a_roce_port(soft_roce):
    output = soft_roce.run("ibv_devinfo", "-v").stdout
    assert re.search(r"hca_id:\s+mfs0", output)
    assert re.search(r"state:\s+PORT_ACTIVE", output)
    assert re.search(r"link_layer:\s+Ethernet", output)
    assert re.search(r"GID\[\s*0\]:\s+::ffff:127.0.0.1, RoCE v2", output)


def test_devices_are_listed_in_order(soft_roce):
    options = ("--device", "alpha=127.0.0.2", "--device", "beta=127.0.0.3,10gbit")
    lines = soft_roce.run("ibv_devices", options=options, address=None).stdout.splitlines()[2:]
    assert sorted(line.split()[0] for line in lines) == ["alpha", "beta"]


@pytest.mark.parametrize("options", [(), ("-e",), ("-N",), ("-s", "1000000", "-n", "50"), ("-e", "-s", "1")])
def test_rc_pingpong_with_checked_payload(soft_roce, options):
    for output in soft_roce.pair(*PINGPONG, *options):
        assert "iters in" in output
        assert "invalid data" not in output


@pytest.mark.parametrize("options", [(), ("-e",), ("-s", "4096", "-n", "200")])
def test_ud_pingpong_with_checked_payload(soft_roce, options):
    for output in soft_roce.pair("ibv_ud_pingpong", "-d", "mfs0", "-g", "0", "-c", *options):
        assert "iters in" in output
        assert "invalid data" not in output


PERFTEST = [
    "ib_write_bw -s 1 -n 1000",
    "ib_write_bw -s 8388608 -n 10",
    "ib_write_bw -s 65536 -n 2000",
    "ib_write_bw -s 2 -n 20000 -l 16",
    "ib_write_bw -s 4096 -n 1000 -q 8",
    "ib_write_bw -s 65536 -n 1000 -b",
    "ib_read_bw -s 65536 -n 2000",
    "ib_read_bw -s 3000001 -n 20 -b",
    "ib_send_bw -s 65536 -n 2000",
    "ib_send_bw -s 512 -n 5000 -r 16",
    "ib_send_bw -s 4096 -n 1000 -e",
    "ib_send_bw -s 4096 -n 1000 --use-srq -q 4",
    "ib_write_lat -s 64 -n 1000",
    "ib_send_lat -s 64 -n 1000",
    "ib_send_lat -s 64 -n 500 -e",
    "ib_read_lat -s 64 -n 1000",
    "ib_atomic_bw -A FETCH_AND_ADD -n 2000",
    "ib_atomic_bw -A CMP_AND_SWAP -n 2000 -q 4",
    "ib_atomic_lat -n 500",
    "ib_send_lat -c UD -s 64 -n 1000",
    "ib_send_lat -c UD -s 4096 -n 500 -e",
    # No more messages than there are receives, as nothing waits for a slow receiver.
    "ib_send_bw -c UD -s 1024 -n 500 -r 512",
    "ib_send_bw -c UD -s 4096 -n 200 -r 512 -q 2",
]


@pytest.mark.parametrize("command", PERFTEST)
def test_perftest(soft_roce, command):
    options = ("--rate", "100mbit") if "ib_send_bw -c UD" in command else ()
    _, client = soft_roce.pair(*command.split(), "-F", "-d", "mfs0", options=options)
    assert re.search(r"^ \d+ +\d+ ", client, re.MULTILINE), client

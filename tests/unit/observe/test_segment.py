"""A program's segment, read by the declarations of the headers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mfsd import _native
from mfsd._native import Arbiter, Client, DemandInfo, RequestInfo, Stage
from mfsd.capi import lib
from mfsd.cli.ctl import main
from mfsd.observe.segment import Mapping, SegmentError, decode_segment, mapped_segments, read_segments, segment_lines
from tests.support.arbiter import Server


@pytest.fixture
def server(tmp_path: Path):
    arbiter = Arbiter(stale_after_ns=1000 * 10**9, rate_default_bytes_per_s=1000)
    arbiter.start()
    server = Server(tmp_path / "s", arbiter)
    yield server
    server.close()
    arbiter.close()


@pytest.fixture
def client(server):
    with Client.attach(server.path, process="segment-test") as client:
        yield client


def segment_of(client: Client, rings: bool = False) -> dict[str, Any]:
    """The client's own among those that this process has mapped: it is its arbiter, too, and clients of other tests,
    which something may still refer to, may have the same number under other arbiters."""
    own = (client.epoch, client.client_id)
    trees = [decode_segment(data, rings=rings) for data in read_segments(os.getpid())]
    return next(tree for tree in trees if (tree["header"]["epoch"], tree["header"]["client_id"]) == own)


def test_what_a_client_has_written_is_shown(client) -> None:
    nic = client.nic("mlx5_9", 0xABC, 5_000_000)
    info = RequestInfo(41, 7, 123, 456, demands=(DemandInfo(1 << 20, layer=3, nic=nic),))
    slot, (request,) = client.batch_begin_with(99, 32, (info,), 1000, 2000)
    client.batch_layer(slot, 5)
    tree = segment_of(client)
    assert tree["header"]["magic"] == _native.ABI_MAGIC and tree["header"]["classes"] == client.classes
    assert tree["nic"] == {str(nic): {"name": "mlx5_9", "guid": 0xABC, "rate_bytes_per_s": 5_000_000}}
    batch = tree["batch"][str(slot)]
    assert (batch["batch_id"], batch["layers"], batch["layer_current"], batch["requests"]) == (99, 32, 5, 1)
    announced = tree["request"][str(request)]
    assert (announced["request_id"], announced["deadline_ns"], announced["batch"]) == (41, 123, slot)
    (demand,) = tree["demand"].values()
    assert (demand["bytes"], demand["layer"], demand["stage"], demand["peer"]) == (1 << 20, 3, Stage.P2D, [0, 0])
    assert "submit_slot" not in tree and not any("reserved" in name for name in tree["header"])
    lines = dict(segment_lines(tree))
    assert lines[f"batch[{slot}].layer_current"] == "5" and lines[f"nic[{nic}].name"] == "mlx5_9"
    assert lines["gate[0].credit"].count(" ") == 1


def test_rings_are_shown_where_asked_for(client) -> None:
    nic = client.nic("a", 0, 1000)
    client.submit(1000, stage=Stage.P2D, nic=nic, request_id=77)
    tree = segment_of(client, rings=True)
    messages = [slot["message"] for ring in tree["submit_slot"].values() for slot in ring.values()]
    assert [m["bytes"] for m in messages if m["request_id"] == 77] == [1000]


def test_the_command(client) -> None:
    done = CliRunner().invoke(main, ["debug", "segment", str(os.getpid())])
    assert done.exit_code == 0 and f"header.client_id: {client.client_id}" in done.output.splitlines()
    assert '"segment_bytes":' in CliRunner().invoke(main, ["debug", "segment", str(os.getpid()), "--json"]).output
    nothing = CliRunner().invoke(main, ["debug", "segment", "1"])
    assert nothing.exit_code == 1 and nothing.output.startswith("mfsctl: process 1") and nothing.output.count("\n") == 1


def changed(client, name: str, value: int, size: int) -> bytes:
    data = bytearray(next(d for d in read_segments(os.getpid())))
    data[_native.LAYOUT[name] : _native.LAYOUT[name] + size] = value.to_bytes(size, "little")
    return bytes(data)


def test_what_cannot_be_read_is_said_in_one_line(client) -> None:
    with pytest.raises(SegmentError, match=rf"of ABI 7\.{lib.MFS_ABI_MINOR}, but this mfsctl of 1\.\d: use the mfsctl"):
        decode_segment(changed(client, "header.major", 7, 2))
    with pytest.raises(SegmentError, match="no segment: magic 0x0, expected 0x"):
        decode_segment(changed(client, "header.magic", 0, 8))
    with pytest.raises(SegmentError, match="the segment has 64 bytes, but its header alone takes 256"):
        decode_segment(bytes(64))
    with pytest.raises(SegmentError, match="there is no process"):
        read_segments(2**22 + 1)


def test_an_older_daemons_segment_ends_earlier(client) -> None:
    short = changed(client, "header.minor", 0, 2)[: _native.LAYOUT["request"]]
    tree = decode_segment(short)
    assert tree["header"]["minor"] == 0 and tree["request"] == tree["posted_shard"] == {}


def test_only_segments_are_taken_from_the_maps() -> None:
    maps = "7f00-7f80 rw-s 00000000 00:01 9   /memfd:mfs-segment (deleted)\n7f80-7f90 rw-p 00000000 00:00 0 \n"
    maps += "8000-8010 r--p 00000000 08:01 7   /usr/lib/libmfs.so\n9000-9100 rw-s 00001000 00:01 9 /memfd:mfs-segment\n"
    assert mapped_segments(maps) == [Mapping(0x7F00, 0x80)]

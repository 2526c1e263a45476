"""Lanes over Mooncake's TCP transport: each class on connections of its own, marked in both directions on the wire."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mooncake_adapter.metadata import Metadata
from mooncake_adapter.mooncake import directory, marking, scheduling
from mooncake_adapter.mooncake import lanes as lanes_module
from mooncake_adapter.mooncake.directory import Directory, LanePorts
from mooncake_adapter.warn_once import WarnOnce
from tests.support.capture import Capture, capture
from tests.support.mooncake_peer import Peer, memory
from tests.support.scripted_session import DSCP, ScriptedSession
from tests.support.waiting import eventually
from tests.unit.adapters.conftest import Side
from tests.unit.adapters.test_engine import content


@pytest.fixture(scope="module")
def adapted_peer() -> Iterator[Peer]:
    with Peer(adapted=True) as peer:
        yield peer


def send(side: Side, peer: Peer, wire_class: int, seed: int = 1) -> None:
    side.session.class_of = lambda transfer: wire_class
    side.area[:65536] = content(seed, 65536)
    assert side.engine.transfer_sync_write(peer.name, side.address, peer.address, 65536) == 0
    assert peer.read(0, 65536) == content(seed, 65536)


def classes_of_the_bytes(wire: Capture) -> set[int]:
    """TOS of the connections of this process that carried most of a transfer."""
    ours = {port for tcp in marking._tcp_sockets() for port in tcp.getsockname()[1:2]}
    return {tos for (tos, a, b), carried in wire.carried.items() if carried > 32768 and {a, b} & ours}


def routes(side: Side) -> set[int]:
    return {wire_class for _, wire_class in side.engine._mfs_lanes._routes}


def test_each_class_has_connections_of_its_own_marked_both_ways(side: Side, adapted_peer: Peer) -> None:
    for wire_class in (6, 0, 3):
        send(side, adapted_peer, wire_class)  # opens the lane behind our back
        eventually(lambda wanted=wire_class: wanted in routes(side), f"a lane of class {wire_class}")
    for wire_class in (6, 0, 3):
        with capture() as wire:
            send(side, adapted_peer, wire_class, seed=wire_class + 2)
            tos = DSCP[wire_class] << 2
            eventually(partial(wire.both_ways, tos, tos), f"class {wire_class} both ways")
            assert classes_of_the_bytes(wire) == {tos}, "all bytes of the transfer carry its class"


def test_reads_come_back_in_their_class(side: Side, adapted_peer: Peer) -> None:
    send(side, adapted_peer, 1)
    eventually(lambda: 1 in routes(side))
    adapted_peer.ask("write", 0, content(9, 65536))
    with capture() as wire:
        assert side.engine.transfer_sync_read(adapted_peer.name, side.address, adapted_peer.address, 65536) == 0
        assert eventually(lambda: classes_of_the_bytes(wire)) == {DSCP[1] << 2}
    assert side.area[:65536] == content(9, 65536)


def test_memory_registered_later_is_known_in_every_lane(side: Side, adapted_peer: Peer) -> None:
    send(side, adapted_peer, 2)
    eventually(lambda: 2 in routes(side))
    area, address = memory(1 << 20)
    area[:4096] = content(4, 4096)
    assert side.engine.register_memory(address, 1 << 20) == 0
    assert side.engine.transfer_sync_write(adapted_peer.name, address, adapted_peer.address, 4096) == 0
    assert adapted_peer.read(0, 4096) == content(4, 4096)
    assert side.engine.unregister_memory(address) == 0


def test_a_peer_without_an_adapter_is_sent_to_as_ever(side: Side, stock_peer: Peer) -> None:
    for _ in range(3):
        send(side, stock_peer, 0)
    assert not any(peer == stock_peer.name for peer, _ in side.engine._mfs_lanes._routes)


def test_a_peer_that_does_not_answer_is_asked_for_once_at_a_time(
    side: Side, stock_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = side.engine._mfs_lanes
    monkeypatch.setattr(lanes_module, "AGAIN_S", 0.0)
    monkeypatch.setattr(directory, "TIMEOUT_S", 60.0)
    send(side, stock_peer, 2)
    eventually(lambda: 2 in lanes._open)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = f"127.0.0.1:{silent.getsockname()[1] - directory.PORT_OFFSET}"
        assert lanes.route(peer, 2, stock_peer.address) is None
        with silent.accept()[0]:
            for _ in range(5):
                assert lanes.route(peer, 2, stock_peer.address) is None
                lanes._answer(7)
                lanes.failed(peer)
            assert lanes._wanted.qsize() <= 1, "the lane of class 7 alone"
    assert eventually(lambda: lanes._asked[peer, 2] < time.monotonic()), "it may be asked again"


def led_astray(side: Side, peer: Peer) -> Any:
    """The lanes, when that of class 4 leads to a port at which nothing listens."""
    send(side, peer, 4)
    lanes = side.engine._mfs_lanes
    eventually(lambda: (peer.name, 4) in lanes._routes)
    engine, _ = lanes._routes[peer.name, 4]
    lanes._routes = {**lanes._routes, (peer.name, 4): (engine, "127.0.0.1:1")}
    return lanes


def test_a_lane_to_a_process_that_has_ended_falls_back(side: Side) -> None:
    """The peer's lanes are gone and the peer is back on its port: the program's own engine decides."""
    with Peer(adapted=True) as peer:
        lanes = led_astray(side, peer)
        send(side, peer, 4, seed=8)
        assert (peer.name, 4) not in lanes._routes


def test_what_fails_in_a_lane_after_mooncakes_time_out_is_not_tried_again(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer(adapted=True) as peer:
        led_astray(side, peer)
        monkeypatch.setattr(scheduling, "transfer_timeout_s", lambda: -1.0)
        side.area[:65536] = content(8, 65536)
        call = ([side.address], [peer.address], [65536])
        assert side.engine.batch_transfer_sync_write(peer.name, *call) != 0
        assert side.engine.batch_transfer_async_write(peer.name, *call) == 0
        assert peer.read(0, 65536) == content(1, 65536)


def test_asynchronous_calls_take_the_lane_of_their_permit(side: Side, adapted_peer: Peer) -> None:
    send(side, adapted_peer, 5)
    eventually(lambda: (adapted_peer.name, 5) in side.engine._mfs_lanes._routes)
    side.sources.ranges.add(side.address, 4096, Metadata(1))
    side.area[:4096] = content(11, 4096)
    call = ([side.address], [adapted_peer.address], [4096])
    batch = side.engine.batch_transfer_async_write(adapted_peer.name, *call)
    assert side.engine.get_batch_transfer_status([batch]) == 0
    assert adapted_peer.read(0, 4096) == content(11, 4096)


# ---- the directory ---------------------------------------------------------------------------------------------------


def unlisted() -> int:
    """The port of an engine whose directory has a port that is free."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = int(probe.getsockname()[1])
    return free - directory.PORT_OFFSET if free > directory.PORT_OFFSET else free + directory.PORT_OFFSET


@pytest.fixture
def listed() -> Iterator[int]:
    engine = unlisted()
    table = {3: LanePorts(15001, 15002)}
    server = Directory("127.0.0.1", engine, table.get)
    yield engine
    server.close()


def test_the_directory_answers_for_its_engine_only(listed: int) -> None:
    assert directory.ask("127.0.0.1", listed, 3) == LanePorts(15001, 15002)
    assert directory.ask("127.0.0.1", listed, 4) is None


def test_a_directory_whose_port_is_taken_answers_once_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "RETRY_S", 0.01)
    engine = unlisted()
    with socket.create_server(("127.0.0.1", directory.port_of(engine))):
        server = Directory("127.0.0.1", engine, {3: LanePorts(15001)}.get)
        assert server.taken
    eventually(lambda: not server.taken, "the port")
    assert directory.ask("127.0.0.1", engine, 3) == LanePorts(15001)
    server.close()


def test_a_directory_is_closed_while_its_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "RETRY_S", 0.01)
    engine = unlisted()
    before = {thread for thread in threading.enumerate() if thread.name == "mfs-lanes"}
    with socket.create_server(("127.0.0.1", directory.port_of(engine))):
        server = Directory("127.0.0.1", engine, {3: LanePorts(15001)}.get)
        (waits,) = {thread for thread in threading.enumerate() if thread.name == "mfs-lanes"} - before
        server.close()
        waits.join(timeout=60)
        assert not waits.is_alive()
    with pytest.raises(OSError, match="refused"):
        directory.ask("127.0.0.1", engine, 3)


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"\xff" * 4096, b'{"mfs_lanes": "x"}\n', b""])
def test_the_directory_survives_strangers(line: bytes, listed: int) -> None:
    with socket.create_connection(("127.0.0.1", directory.port_of(listed))) as connection:
        connection.sendall(line)
    assert directory.ask("127.0.0.1", listed, 3) == LanePorts(15001, 15002)


def test_peers_names() -> None:
    assert directory.split("[fe80::1]:15000") == ("fe80::1", 15000)
    assert directory.join("fe80::1", 15000) == "[fe80::1]:15000"
    assert directory.split(directory.join("10.0.0.1", 15000)) == ("10.0.0.1", 15000)
    with pytest.raises(ValueError, match="HOST:PORT"):
        directory.split("segment")


def test_a_default_time_out_leaves_the_sockets_of_others_blocking() -> None:
    before = socket.getdefaulttimeout()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as out:
        socket.setdefaulttimeout(30.0)
        try:
            assert marking.mark_listening({listener.getsockname()[1]}, 34) == 1
        finally:
            socket.setdefaulttimeout(before)
        assert os.get_blocking(listener.fileno()) and os.get_blocking(out.fileno())


def test_a_socket_that_is_closed_meanwhile_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = marking._tcp_sockets

    def closed_meanwhile() -> Iterator[socket.socket]:
        gone = socket.create_server(("127.0.0.1", 0))
        os.close(gone.fileno())
        yield gone
        gone.detach()
        yield from sockets()

    monkeypatch.setattr(marking, "_tcp_sockets", closed_meanwhile)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port in marking.listening_ports()
        assert marking.mark_listening({port}, 34) == 1


@pytest.mark.parametrize(
    ("name", "host"),
    [
        *(("fd00::1234", "fd00::1234"), ("::1", "::1"), ("fd00::ab", "fd00::ab"), ("[fd00::1]", "fd00::1")),
        *(("[fd00::1]:15000", "fd00::1"), ("10.0.0.1:15000", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("12345", "12345")),
    ],
)
def test_lanes_are_at_the_address_of_their_engine(name: str, host: str) -> None:
    engine = threading.Event()  # anything that is not kept alive by its lanes
    stock = SimpleNamespace(initialize=lambda *_: 0, get_rpc_port=lambda _: unlisted())
    session, once = cast(Any, ScriptedSession()), WarnOnce()
    lanes = lanes_module.Lanes(cast(Any, stock), engine, session, 6, once)
    assert lanes.initialize(engine, "initialize", (name, lanes_module.P2P, "tcp", ""), tcp=True) == 0
    assert lanes._setting is not None and lanes._setting.host == host


def test_an_accepted_connection_has_the_mark_of_its_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert marking.mark_listening({port}, 34) == 1
        with socket.create_connection(("127.0.0.1", port)) as out:
            accepted, _ = listener.accept()
            assert accepted.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 34 << 2
            assert marking.mark_connected(port, {"127.0.0.1"}, 10) == 1
            assert out.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == 10 << 2
            accepted.close()


def test_the_directory_outlives_a_process_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    accept, failures = socket.socket.accept, [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED]

    def scarce(listener: socket.socket) -> Any:
        if failures:
            raise OSError(failures.pop(), "as the kernel says")
        return accept(listener)

    monkeypatch.setattr(directory, "PAUSE_S", 0.001, raising=False)
    monkeypatch.setattr(socket.socket, "accept", scarce)
    with contextlib.closing(Directory("127.0.0.1", engine := unlisted(), lambda wire_class: LanePorts(1))) as server:
        assert directory.ask("127.0.0.1", engine, 3) == LanePorts(1)
    server._thread.join()
    assert failures == []

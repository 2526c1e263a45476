"""The adapted engine is the stock one to its caller, and asks before it sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import mooncake.engine
import pytest

from mfsd.transfer import Transfer
from mooncake_adapter.metadata import Metadata
from mooncake_adapter.mooncake import permits, scheduling
from mooncake_adapter.mooncake.calls import SHAPES
from mooncake_adapter.mooncake.pieces import PIECE_BYTES
from tests.support.mooncake_peer import Peer, memory, started
from tests.support.waiting import eventually
from tests.unit.adapters.conftest import Side

STOCK = mooncake.engine.TransferEngine
KIB = 1024
HALF = 32 << 20


def content(seed: int, size_bytes: int) -> bytes:
    block = bytes((seed * 37 + i * 11 + i // 256) & 0xFF for i in range(4096))
    return (block * (size_bytes // 4096 + 1))[:size_bytes]


@pytest.fixture(scope="module")
def stock() -> tuple[Any, Any, int]:
    area, address = memory()
    return started(STOCK(), address), area, address


def test_every_public_name_and_text_of_the_wheels_class_is_there(side: Side) -> None:
    adapted = type(side.engine)
    public = {name for name in dir(STOCK) if not name.startswith("_")}
    assert {name for name in dir(adapted) if not name.startswith("_")} == public
    for name in public:
        assert getattr(adapted, name).__doc__ == getattr(STOCK, name).__doc__
    assert (adapted.__name__, adapted.__module__, adapted.__doc__) == (STOCK.__name__, STOCK.__module__, STOCK.__doc__)
    assert isinstance(side.engine, STOCK)


def test_every_method_that_moves_bytes_is_known() -> None:
    """A new wheel with a new way to move bytes fails here."""
    moving = {name for name in dir(STOCK) if "transfer" in name and "status" not in name}
    assert moving == set(SHAPES)


def final(engine: Any, batch: int) -> int:
    return eventually(lambda: engine.transfer_check_status(batch))


def calls(address: int, peer: str, remote: int) -> list[tuple[str, Callable[[Any], Any]]]:
    """Calls with right and with odd arguments; what they answer or raise must be the wheel's own."""
    op = mooncake.engine.TransferOpcode
    a, r, n = address, remote, 4096
    return [
        ("write", lambda e: e.transfer_sync_write(peer, a, r, n)),
        ("read", lambda e: e.transfer_sync_read(peer, a, r, n)),
        ("sync", lambda e: e.transfer_sync(peer, a, r, n, op.Write)),
        ("keywords", lambda e: e.transfer_sync_write(target_hostname=peer, buffer=a, peer_buffer_address=r, length=n)),
        ("hint", lambda e: e.transfer_sync_write(peer, a, r, n, transport_hint="tcp")),
        ("batch", lambda e: e.batch_transfer_sync_write(peer, [a, a + n], [r, r + n], [n, n])),
        ("batch opcode", lambda e: e.batch_transfer_sync(peer, [a], [r], [n], op.Read)),
        ("async", lambda e: e.get_batch_transfer_status([e.batch_transfer_async_write(peer, [a], [r], [n])])),
        ("async read", lambda e: e.get_batch_transfer_status([e.batch_transfer_async_read(peer, [a], [r], [n])])),
        (
            "async opcode",
            lambda e: e.get_batch_transfer_status([e.batch_transfer_async(peer, [a], [r], [n], op.Read)]),
        ),
        ("submit", lambda e: final(e, e.transfer_submit_write(peer, a, r, n))),
        ("nothing", lambda e: e.batch_transfer_sync_write(peer, [], [], [])),
        ("zero", lambda e: e.transfer_sync_write(peer, a, r, 0)),
        ("lists differ", lambda e: e.batch_transfer_sync_write(peer, [a], [r, r], [n])),
        ("no such peer", lambda e: e.transfer_sync_write("127.0.0.1:1", a, r, n)),
        ("async, no such peer", lambda e: e.batch_transfer_async_write("127.0.0.1:1", [a], [r], [n])),
        ("bad address", lambda e: e.transfer_sync_write(peer, 1234, r, n)),
        ("too few", lambda e: e.transfer_sync_write(peer)),
        ("too many", lambda e: e.transfer_sync_write(peer, a, r, n, "", 7)),
        ("text as length", lambda e: e.transfer_sync_write(peer, a, r, "n")),
        ("negative", lambda e: e.transfer_sync_write(peer, a, r, -1)),
        ("unknown keyword", lambda e: e.transfer_sync_write(peer, a, r, n, colour=1)),
        ("none as peer", lambda e: e.batch_transfer_sync_read(None, [a], [r], [n])),
        ("number as list", lambda e: e.batch_transfer_sync_read(peer, a, [r], [n])),
        ("text as batch", lambda e: e.transfer_check_status("x")),
        ("number as batches", lambda e: e.get_batch_transfer_status(1)),
        ("memory keywords", lambda e: e.register_memory(buffer_addr=a, capacity="x")),
        ("too few for initialize", lambda e: e.initialize("127.0.0.1")),
    ]


@pytest.mark.parametrize("index", range(28))
def test_answers_and_errors_are_the_wheels_own(
    index: int, side: Side, stock: tuple[Any, Any, int], stock_peer: Peer
) -> None:
    outcomes = []
    for engine, address in ((stock[0], stock[2]), (side.engine, side.address)):
        _, call = calls(address, stock_peer.name, stock_peer.address)[index]
        try:
            outcomes.append(call(engine))
        except Exception as error:
            outcomes.append((type(error), str(error).partition("Invoked with")[0]))
    assert outcomes[0] == outcomes[1]
    assert all(task.life[-1] == "complete" for task in side.session.tasks)


def test_the_table_of_calls_is_whole() -> None:
    assert len(calls(0, "", 0)) == 28


@pytest.mark.parametrize("length", [1, 4096, 65537, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_bytes_arrive_whatever_the_size(length: int, side: Side, stock_peer: Peer) -> None:
    side.area[:length] = content(length, length)
    assert side.engine.transfer_sync_write(stock_peer.name, side.address, stock_peer.address, length) == 0
    assert stock_peer.read(0, length) == content(length, length)
    assert side.engine.transfer_sync_read(stock_peer.name, side.address + HALF, stock_peer.address, length) == 0
    assert side.area[HALF : HALF + length] == content(length, length)
    assert sum(task.transfer.size_bytes for task in side.session.tasks) == 2 * length
    assert max(task.transfer.size_bytes for task in side.session.tasks) <= PIECE_BYTES


@pytest.mark.parametrize("request_id", [0, 7])
@pytest.mark.parametrize("operation", ["sync", "async"])
def test_every_piece_says_what_is_left_of_its_request(
    request_id: int, operation: str, side: Side, stock_peer: Peer
) -> None:
    """Twice: nothing is left of a call that has ended, nor of one that fails."""
    length = PIECE_BYTES + 4096
    call = ([side.address, side.address + HALF], [stock_peer.address] * 2, [length, 8192])
    refused = ([1234], [stock_peer.address], [length])
    with side.sources.transfer(Metadata(request_id)):
        for arguments, works in ((call, True), (refused, False), (call, True)):
            if operation == "sync":
                assert (side.engine.batch_transfer_sync_write(stock_peer.name, *arguments) == 0) == works
            else:
                number = side.engine.batch_transfer_async_write(stock_peer.name, *arguments)
                assert (bool(number) and side.engine.get_batch_transfer_status([number]) == 0) == works
    sizes = [(task.transfer.size_bytes, task.transfer.left_bytes) for task in side.session.tasks]
    whole = [(PIECE_BYTES, length + 8192), (4096 + 8192, 4096 + 8192)]
    assert sizes[:2] == sizes[-2:] == whole


def test_stage_by_rule_when_nothing_is_reported(side: Side, stock_peer: Peer) -> None:
    side.engine.transfer_sync_write(stock_peer.name, side.address, stock_peer.address, 4096)
    side.engine.transfer_sync_read(stock_peer.name, side.address, stock_peer.address, 4096)
    assert [task.transfer.stage for task in side.session.tasks] == [3, 1]
    assert [task.transfer.incoming for task in side.session.tasks] == [False, True]
    assert {task.transfer.peer for task in side.session.tasks} == {"127.0.0.1"}


def test_metadata_by_context(side: Side, stock_peer: Peer) -> None:
    deadline_ns = time.monotonic_ns() + 10**9
    batch = side.session.batch(1)
    with side.sources.transfer(Metadata(7, 1, 12, deadline_ns, batch)):
        side.engine.transfer_sync_write(stock_peer.name, side.address, stock_peer.address, 4096)
    side.engine.transfer_sync_write(stock_peer.name, side.address, stock_peer.address, 4096)
    announced, unknown = (task.transfer for task in side.session.tasks)
    assert announced == Transfer(
        4096, stage=1, request_id=7, layer=12, deadline_ns=deadline_ns, batch=batch, nic=0, peer="127.0.0.1"
    )
    assert unknown.request_id == 0


def test_a_call_that_mixes_requests_is_split_by_pointer_ranges(side: Side, stock_peer: Peer) -> None:
    first, second = Metadata(1, 3, 0, 0), Metadata(2, 3, 5, 0)
    side.sources.ranges.add(side.address, 64 * KIB, first)
    side.sources.ranges.add_many([(side.address + 64 * KIB, 32 * KIB), (side.address + 128 * KIB, 32 * KIB)], second)
    side.area[: 256 * KIB] = content(9, 256 * KIB)
    offsets = [0, 64 * KIB, 32 * KIB, 128 * KIB, 192 * KIB]
    arguments = (
        [side.address + offset for offset in offsets],
        [stock_peer.address + offset for offset in offsets],
        [32 * KIB] * len(offsets),
    )
    assert side.engine.batch_transfer_sync_write(stock_peer.name, *arguments) == 0
    reported = [(t.transfer.request_id, t.transfer.layer, t.transfer.size_bytes) for t in side.session.tasks]
    assert reported == [(1, 0, 64 * KIB), (2, 5, 64 * KIB), (0, 0, 32 * KIB)]
    for offset in offsets:
        assert stock_peer.read(offset, 32 * KIB) == content(9, 256 * KIB)[offset : offset + 32 * KIB]


def test_nothing_is_issued_before_its_permit(side: Side, stock_peer: Peer) -> None:
    stock_peer.ask("write", 0, bytes(4096))
    side.area[:4096] = content(3, 4096)
    side.session.hold = lambda transfer: True
    answers: list[int] = []
    call = (stock_peer.name, side.address, stock_peer.address, 4096)
    thread = threading.Thread(target=lambda: answers.append(side.engine.transfer_sync_write(*call)))
    thread.start()
    task = eventually(lambda: side.session.tasks[0] if side.session.tasks else None)
    assert stock_peer.read(0, 4096) == bytes(4096)
    assert thread.is_alive()
    task.permitted.set()
    thread.join()
    assert answers == [0]
    assert stock_peer.read(0, 4096) == content(3, 4096)
    assert task.life == ["wait", "complete"]


def test_an_urgent_request_of_a_mixed_call_passes_a_held_one(side: Side, stock_peer: Peer) -> None:
    stock_peer.ask("write", 0, bytes(8192))
    side.area[:8192] = content(4, 8192)
    side.sources.ranges.add(side.address, 4096, Metadata(1))
    side.sources.ranges.add(side.address + 4096, 4096, Metadata(2))
    side.session.hold = lambda transfer: transfer.request_id == 1
    call = ([side.address, side.address + 4096], [stock_peer.address, stock_peer.address + 4096], [4096, 4096])
    thread = threading.Thread(target=lambda: side.engine.batch_transfer_sync_write(stock_peer.name, *call))
    thread.start()
    eventually(lambda: stock_peer.read(4096, 4096) == content(4, 8192)[4096:])
    assert stock_peer.read(0, 4096) == bytes(4096)
    side.session.tasks[0].permitted.set()
    thread.join()
    assert stock_peer.read(0, 8192) == content(4, 8192)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("2", 2), ("999999", 999_999), ("", 30), ("0", 30), ("-1", 30)),
        *(("2s", 30), ("\u00b2", 30), ("1000000", 30), ("9" * 5000, 30)),
    ],
)
def test_a_time_out_of_mooncake_that_is_none_is_the_default(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float
) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", text)
    assert permits.transfer_timeout_s() == seconds
    monkeypatch.setenv("MC_SLICE_TIMEOUT", text)
    assert permits.transfer_timeout_s() == seconds
    monkeypatch.setenv("MC_SLICE_TIMEOUT", "1")
    assert permits.transfer_timeout_s() == 1


@pytest.mark.parametrize("how", ["sync", "async"])
def test_all_pieces_of_a_call_share_a_quarter_of_mooncakes_time_out(
    side: Side, stock_peer: Peer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A daemon that permits nothing delays a call by that much, however many pieces it has; all bytes arrive."""
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "2")
    pieces, size = 40, 4096
    stock_peer.ask("write", 0, bytes(pieces * size))
    side.area[: pieces * size] = content(6, pieces * size)
    for i in range(pieces):
        side.sources.ranges.add(side.address + i * size, size, Metadata(i + 1))
    side.session.hold = lambda transfer: True
    offsets = range(0, pieces * size, size)
    call = ([side.address + o for o in offsets], [stock_peer.address + o for o in offsets], [size] * pieces)
    if how == "sync":
        assert side.engine.batch_transfer_sync_write(stock_peer.name, *call) == 0
    else:
        batch = side.engine.batch_transfer_async_write(stock_peer.name, *call)
        assert side.engine.get_batch_transfer_status([batch]) == 0
    assert stock_peer.read(0, pieces * size) == content(6, pieces * size)
    waits_s = [wait_s for task in side.session.tasks for wait_s in task.waits_s]
    assert len(side.session.tasks) == pieces
    assert 0.0 < max(waits_s) <= 0.5
    if how == "sync":
        assert sum(waits_s) <= 0.5, "the first wait uses it up"


def test_a_call_that_mooncake_would_have_given_up_issues_nothing_more(
    side: Side, stock_peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock_peer.ask("write", 0, bytes(8192))
    side.area[:8192] = content(7, 8192)
    for i in range(2):
        side.sources.ranges.add(side.address + i * 4096, 4096, Metadata(i + 1))
    monkeypatch.setattr(scheduling, "transfer_timeout_s", lambda: -1.0)
    call = ([side.address, side.address + 4096], [stock_peer.address, stock_peer.address + 4096], [4096, 4096])
    assert side.engine.batch_transfer_sync_write(stock_peer.name, *call) < 0
    assert stock_peer.read(0, 8192) == bytes(8192)


def test_an_asynchronous_call_never_waits_for_its_permit(side: Side, stock_peer: Peer) -> None:
    stock_peer.ask("write", 0, bytes(4096))
    side.area[:4096] = content(5, 4096)
    side.session.hold = lambda transfer: True
    batch = side.engine.batch_transfer_async_write(stock_peer.name, [side.address], [stock_peer.address], [4096])
    assert batch > 0
    assert side.engine.transfer_check_status(batch) == 0
    assert stock_peer.read(0, 4096) == bytes(4096)
    side.session.tasks[0].permitted.set()
    assert side.engine.get_batch_transfer_status([batch]) == 0
    assert stock_peer.read(0, 4096) == content(5, 4096)
    assert side.session.tasks[0].life[-1] == "complete"


def test_status_is_final_once(side: Side, stock_peer: Peer) -> None:
    batch = side.engine.batch_transfer_async_write(stock_peer.name, [side.address], [stock_peer.address], [4096])
    assert eventually(lambda: side.engine.transfer_check_status(batch)) == 1
    assert [task.life.count("complete") for task in side.session.tasks] == [1]


def test_a_failed_transfer_gives_its_permit_back(side: Side) -> None:
    assert side.engine.transfer_sync_write("127.0.0.1:1", side.address, 4096, 4096) == -1
    assert side.session.tasks[0].life[-1] == "complete"


def test_unscheduled_means_untouched(side: Side, stock_peer: Peer) -> None:
    side.session.scheduled = False
    assert side.engine.transfer_sync_write(stock_peer.name, side.address, stock_peer.address, 4096) == 0
    assert side.session.tasks == []


def test_a_broken_session_is_reported_once_and_transfers_go_on(
    side: Side, stock_peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("the segment is gone")

    side.session.submit_transfer = broken  # type: ignore[method-assign,assignment]
    for _ in range(3):
        assert side.engine.transfer_sync_write(stock_peer.name, side.address, stock_peer.address, 4096) == 0
    assert len([record for record in caplog.records if "the segment is gone" in record.getMessage()]) == 1


def test_threads_share_an_engine(side: Side, stock_peer: Peer) -> None:
    answers: list[int] = []

    def send(index: int) -> None:
        offset = index * 65536
        for _ in range(20):
            call = (stock_peer.name, side.address + offset, stock_peer.address + offset, 65536)
            answers.append(side.engine.transfer_sync_write(*call))

    side.area[: 8 * 65536] = content(6, 8 * 65536)
    threads = [threading.Thread(target=send, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [0] * 160
    assert stock_peer.read(0, 8 * 65536) == content(6, 8 * 65536)
    assert all(task.life == ["wait", "complete"] for task in side.session.tasks)

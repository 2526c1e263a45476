"""NIXL's transfers of one message go through native code where all is as usual, and through Python where anything is
not: the same to the program and to the daemon."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mfsd._native import Arbiter, Mode, Stage
from mfsd.client import Session
from mfsd.transfer import Transfer as Message
from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.nixl import agent as adapter
from mooncake_adapter.session import Holder
from mooncake_adapter.warn_once import WarnOnce
from tests.support import nixl_stand_in as nixl
from tests.support.arbiter import Server
from tests.support.waiting import eventually

SIZE = 1000
WINDOW = 131_072
"""The least window of the arbiter: one message of this size fills a slow NIC."""
SLOW = 1000
"""Bytes a second of a NIC on which what fills the window is not overdue before minutes have passed."""
NEVER_S = 1e6
ROWS = [(1 << 40, SIZE, 0)]
Roots = ("mooncake_adapter", "mfsd")


class Side:
    """A program with an adapted agent, and the daemon of its node."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode = Mode.ENFORCE) -> None:
        self.arbiter = Arbiter(stale_after_ns=1000 * 10**9, max_hold_ns=1000 * 10**9)
        self.arbiter.start()
        self.server = Server(folder / "s", self.arbiter)
        self.session = Session.open(socket_path=str(folder / "s"), mode=mode)
        self.once = WarnOnce()
        self.sources = MetadataSources(self.once)
        monkeypatch.setattr(adapter, "nic_of_ucx", lambda session: session.nic("a", rate_bytes_per_s=SLOW))
        kind: Any = adapter.adapted(nixl.nixl_agent, Holder(lambda: self.session), self.sources, self.once)
        self.agent = kind("own", nixl.nixl_agent_config())
        self.binding: nixl.Binding = self.agent.agent
        self.lists = [
            self.agent.prep_xfer_dlist(peer, self.agent.get_xfer_descs(ROWS, "DRAM"), "DRAM") for peer in ("", "peer")
        ]

    def handle(self, operation: str = "WRITE", rows: int = 1) -> Any:
        order = np.zeros(rows, dtype=np.int32)
        return self.agent.make_prepped_xfer(operation, self.lists[0], order, self.lists[1], order, b"made", ["UCX"])

    def large(self, size_bytes: int) -> Any:
        """A handle of one descriptor."""
        sides = [self.agent.get_xfer_descs([(1 << 40, size_bytes, 0)], "DRAM") for _ in range(2)]
        return self.agent.initialize_xfer("WRITE", *sides, "peer")

    def lent(self) -> None:
        """From now on the permit is there at once."""
        for incoming in (False, True):
            self._lent(Message(SIZE, Stage.P2D, peer="peer", incoming=incoming))

    def _lent(self, message: Message) -> None:
        def taken() -> bool:
            asked: Any = self.session.permit_transfer(message)  # who has used a direction lately has some
            asked.complete()
            permit: Any = self.session.take_transfer(message)
            if permit is not None:
                permit.complete()
            return permit is not None

        eventually(taken, "credit")

    def posted(self, handle: Any, *arguments: object) -> str:
        """Posts it; where the permit is not there at once, as soon as it is. Credit may have gone back meanwhile."""
        state, end_s = str(self.agent.transfer(handle, *arguments)), time.monotonic() + 100
        while handle.posting is not None and handle.posting.waits:
            assert time.monotonic() < end_s, "no permit"
            state = str(self.agent.check_xfer_state(handle))
        return state

    def finish(self, handle: Any) -> str:
        return eventually(lambda: _ended(self.agent.check_xfer_state(handle)), "the end of a transfer")

    def stats(self) -> Any:
        return self.arbiter.client_stats(min(self.server.segments))

    def under_way(self) -> int:
        return sum(self.arbiter.nic_stats(0)["in_flight_bytes"])

    def waiting(self) -> int:
        return sum(self.arbiter.nic_stats(0)["held_bytes"])

    def hang_up(self) -> None:
        self.arbiter.close()
        self.server.close()

    def close(self) -> None:
        self.session.close()
        self.hang_up()


def _ended(state: str) -> str | None:
    return None if state == "PROC" else state


@pytest.fixture
def side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Side]:
    """Alone: the adapter's thread helps with nothing."""
    made = Side(tmp_path, monkeypatch)
    made.agent._mfs.scheduling._later._thread = threading.current_thread()  # as if it ran
    yield made
    made.close()


@pytest.fixture
def helped(side: Side) -> Side:
    """With the adapter's thread."""
    side.agent._mfs.scheduling._later._thread = None
    return side


@pytest.fixture
def lent(side: Side) -> Side:
    """The permit is there at once, or soon."""
    side.lent()
    return side


def functions(step: Callable[[], object]) -> list[str]:
    """The functions of the adapter's and the client's, in Python, that it runs."""
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: object) -> None:
        if event == "call" and str(frame.f_globals.get("__name__")).startswith(Roots):
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return seen


def test_the_usual_transfer_runs_no_python_of_the_adapters(lent: Side) -> None:
    def whole(operation: str) -> None:
        handle = lent.handle(operation)
        assert lent.posted(handle) == "PROC"
        assert lent.agent.check_xfer_state(handle) == "DONE"
        assert lent.agent.check_xfer_state(handle) == "DONE"
        lent.agent.release_xfer_handle(handle)

    whole("WRITE")  # what holds for the peer is known from now on
    assert functions(lambda: whole("WRITE")) == []
    with lent.sources.transfer(Metadata(7, layer=2, deadline_ns=11)):
        assert functions(lambda: whole("READ")) == []


def test_it_is_all_that_nixl_is_asked(side: Side) -> None:
    handle = side.handle()
    assert side.posted(handle, b"posted") == "PROC"
    assert side.agent.check_xfer_state(handle) == "DONE"
    side.agent.release_xfer_handle(handle)
    make, *others = side.binding.calls
    order = make[3]
    assert make == ("make", "write", 100, order, 104, order, b"made", [11], False)
    assert others == [("post", 1, b"posted"), ("ask", 1), ("release", 1)]
    handle.release()
    del handle
    assert len(side.binding.named("release")) == 1


def test_the_daemon_counts_the_same(lent: Side) -> None:
    before = lent.stats()
    with lent.sources.transfer(Metadata(7, int(Stage.BACKGROUND))):
        background = lent.handle()
    reading = lent.handle("READ")
    for handle in (background, reading):
        lent.posted(handle)
    assert lent.stats()["posted_bytes"][Stage.BACKGROUND] - before["posted_bytes"][Stage.BACKGROUND] == SIZE
    assert lent.stats()["posted_bytes"][Stage.P2D] - before["posted_bytes"][Stage.P2D] == SIZE
    assert lent.stats()["completed_bytes"] == before["completed_bytes"]
    for handle in (background, reading):
        assert lent.agent.check_xfer_state(handle) == "DONE"
    assert lent.stats()["completed_bytes"] == lent.stats()["posted_bytes"]
    eventually(lambda: lent.under_way() == 0)
    assert eventually(lambda: lent.stats()["completes"] == before["completes"] + 2)


def test_what_has_ended_when_it_is_posted_is_done(side: Side) -> None:
    side.binding.posts = lambda handle: nixl.SUCCESS
    handle = side.handle()
    assert side.posted(handle) == "DONE"
    assert side.agent.check_xfer_state(handle) == "DONE"
    assert side.binding.named("ask") == []
    eventually(lambda: side.under_way() == 0)


def test_a_handle_is_posted_again_when_it_has_ended_and_not_before(side: Side) -> None:
    handle = side.handle()
    for _ in range(3):
        assert side.posted(handle) == "PROC"
        assert side.agent.check_xfer_state(handle) == "DONE"
    assert side.posted(handle) == "PROC"
    with pytest.raises(nixl.nixlRepostActiveError):
        side.agent.transfer(handle)
    assert len(side.binding.named("post")) == 4
    assert side.agent.check_xfer_state(handle) == "DONE"
    assert side.posted(handle) == "PROC", "also after Python had it"
    assert functions(lambda: side.agent.check_xfer_state(handle)) == []
    handle.release()


def test_a_handle_made_of_lists_goes_the_native_way_too(side: Side) -> None:
    handle = side.large(SIZE)
    assert side.posted(handle) == "PROC"
    assert functions(lambda: side.agent.check_xfer_state(handle)) == []
    assert side.posted(handle) == "PROC"
    handle.release()
    assert side.binding.named("release") == [("release", 1)]
    eventually(lambda: side.under_way() == 0)


# ---- what fails ------------------------------------------------------------------------------------------------------


def given_back(side: Side, cancels: int) -> None:
    eventually(lambda: side.stats()["cancels"] == cancels and side.under_way() == 0, "the permit")


def raises(error: Exception) -> Callable[[int], object]:
    def answer(handle: int) -> object:
        raise error

    return answer


@pytest.mark.parametrize("answer", [lambda handle: nixl.FAILURE, raises(nixl.nixlBackendError("no"))])
def test_what_nixl_does_not_take_is_given_back_as_not_sent(lent: Side, answer: Any) -> None:
    before = lent.stats()["cancels"]
    lent.binding.posts = answer
    handle = lent.handle()
    for call in (lent.posted, lent.agent.check_xfer_state):
        assert outcome(call, handle) in ("ERR", "no")
    given_back(lent, before + 1)
    lent.binding.posts = lambda handle: nixl.IN_PROGRESS
    assert lent.posted(handle) == "PROC"
    assert lent.agent.check_xfer_state(handle) == "DONE"
    handle.release()
    assert len(lent.binding.named("release")) == 1


def outcome(call: Any, handle: Any) -> str:
    try:
        return str(call(handle))
    except nixl.nixlBackendError as error:
        return str(error)


@pytest.mark.parametrize(
    ("answer", "expected"), [(lambda handle: nixl.FAILURE, "ERR"), (raises(nixl.nixlBackendError("no")), "no")]
)
def test_what_fails_under_way_is_asked_about_once(side: Side, answer: Any, expected: str) -> None:
    """A second answer of NIXL's may be that it has arrived: it has nothing left to wait for."""
    before = side.stats()["cancels"]
    handle = side.handle()
    assert side.posted(handle) == "PROC"
    side.binding.asked = answer
    assert outcome(side.agent.check_xfer_state, handle) == expected
    side.binding.asked = lambda handle: nixl.SUCCESS
    assert outcome(side.agent.check_xfer_state, handle) == expected
    assert len(side.binding.named("ask")) == 1
    given_back(side, before + 1)


def test_an_end_of_the_handle_that_nixl_refuses_is_raised_and_tried_again(side: Side) -> None:
    handle = side.handle()
    side.binding.releases = raises(nixl.nixlBackendError("active"))
    with pytest.raises(nixl.nixlBackendError):
        side.agent.release_xfer_handle(handle)
    side.binding.releases = lambda handle: None
    side.agent.release_xfer_handle(handle)
    assert len(side.binding.named("release")) == 2
    for one in side.lists:
        side.agent.release_dlist_handle(one)
    assert side.binding.named("release list") == [("release list", 100), ("release list", 104)]


def test_the_errors_of_making_one_are_nixls_own(side: Side) -> None:
    order = [0]
    with pytest.raises(KeyError, match="ADD"):
        side.agent.make_prepped_xfer("ADD", side.lists[0], order, side.lists[1], order)
    with pytest.raises(KeyError, match="OBJ"):
        side.agent.make_prepped_xfer("WRITE", side.lists[0], order, side.lists[1], order, b"", ["OBJ"])
    assert side.binding.calls == []


# ---- handles that end early ------------------------------------------------------------------------------------------


def test_a_handle_that_is_released_under_way_gives_its_permit_back(side: Side) -> None:
    handle = side.handle()
    side.posted(handle)
    assert eventually(side.under_way) == SIZE
    side.agent.release_xfer_handle(handle)
    assert side.binding.named("release") == [("release", 1)]
    eventually(lambda: side.under_way() == 0)
    assert side.stats()["completed_bytes"] == side.stats()["posted_bytes"]


def test_lists_live_as_long_as_their_transfers(side: Side) -> None:
    first, second = side.handle(), side.handle()
    for one in side.lists:
        side.agent.release_dlist_handle(one)
    first.release()
    assert side.binding.named("release list") == []
    side.posted(second)
    second.release()  # by Python
    assert side.binding.named("release list") == [("release list", 100), ("release list", 104)]


@pytest.mark.parametrize("started", [False, True])
def test_a_handle_that_the_program_loses_is_released(helped: Side, started: bool) -> None:
    released = threading.Event()
    helped.binding.releases = lambda handle: released.set()
    helped.binding.asked = lambda handle: nixl.IN_PROGRESS
    handle = helped.handle()
    if started:
        assert helped.posted(handle) == "PROC"
    del handle
    assert released.is_set() is not started, "not before it has ended"
    helped.binding.asked = lambda handle: nixl.SUCCESS
    eventually(released.is_set)
    eventually(lambda: helped.under_way() == 0)


def test_a_permit_is_given_back_though_the_program_asks_no_more(helped: Side) -> None:
    handle = helped.handle()
    helped.posted(handle)
    eventually(lambda: helped.under_way() == 0 and handle.transfer.state.value == "DONE")
    assert helped.agent.check_xfer_state(handle) == "DONE"
    assert helped.posted(handle) == "PROC"
    assert helped.finish(handle) == "DONE"


def thread_has(posting: Any) -> None:
    eventually(lambda: not posting.native and not posting.waits, "the adapter's thread")


@pytest.mark.parametrize("taken_over", [False, True])
def test_the_thread_ends_with_its_agent(helped: Side, taken_over: bool) -> None:
    handle = helped.handle()
    helped.posted(handle)
    if taken_over:
        thread_has(handle.posting)
    assert helped.finish(handle) == "DONE"
    thread: threading.Thread = helped.agent._mfs.scheduling._later._thread
    assert thread.is_alive()
    del handle, helped.agent
    thread.join(100)
    assert not thread.is_alive()


# ---- where the permit is not there at once ---------------------------------------------------------------------------


@pytest.fixture
def full(side: Side) -> Iterator[SimpleNamespace]:
    """Nothing more is permitted before `room` is called."""
    task = side.session.submit(WINDOW, stage=Stage.P2D, peer="peer")
    eventually(task.ready)
    eventually(lambda: side.session.take_transfer(Message(SIZE, Stage.P2D, peer="peer")) is None, "no credit")
    yield SimpleNamespace(side=side, room=task.complete)
    task.complete()


def test_nothing_is_posted_before_its_permit(full: SimpleNamespace) -> None:
    side = full.side
    handle = side.handle()
    assert side.agent.transfer(handle, b"posted") == "PROC"
    assert handle.posting.waits
    eventually(lambda: side.waiting() == SIZE)
    assert side.agent.check_xfer_state(handle) == "PROC"
    with pytest.raises(nixl.nixlRepostActiveError):
        side.agent.transfer(handle)
    assert side.binding.named("post") == []


def test_it_is_posted_by_the_program_that_asks(full: SimpleNamespace) -> None:
    side = full.side
    handle = side.handle()
    assert side.agent.transfer(handle, b"posted") == "PROC"
    full.room()
    seen: list[str] = []

    def asked() -> str:
        seen[:] = functions(lambda: side.agent.check_xfer_state(handle))
        return str(side.agent.check_xfer_state(handle))

    eventually(lambda: asked() == "DONE")
    assert seen == [], "with the permit, too"
    assert side.binding.named("post") == [("post", 1, b"posted")]
    assert side.stats()["posted_bytes"] == side.stats()["completed_bytes"]
    eventually(lambda: side.under_way() == 0)


def test_it_is_posted_though_the_program_asks_no_more(full: SimpleNamespace) -> None:
    side = full.side
    side.agent._mfs.scheduling._later._thread = None
    handle = side.handle()
    assert side.agent.transfer(handle, b"posted") == "PROC"
    eventually(lambda: side.waiting() == SIZE)
    full.room()
    eventually(lambda: side.binding.named("post") == [("post", 1, b"posted")])
    eventually(lambda: side.under_way() == 0)
    assert side.agent.check_xfer_state(handle) == "DONE"


def test_a_handle_that_is_released_while_it_waits_is_never_posted(full: SimpleNamespace) -> None:
    side = full.side
    handle = side.handle()
    side.agent.transfer(handle)
    eventually(lambda: side.waiting() == SIZE)
    side.agent.release_xfer_handle(handle)
    eventually(lambda: side.waiting() == 0)
    full.room()
    side.lent()
    after = side.handle()
    assert side.agent.transfer(after) == "PROC"
    assert side.finish(after) == "DONE"
    assert [call[1] for call in side.binding.named("post")] == [2]
    assert side.stats()["posted_bytes"] == side.stats()["completed_bytes"]


def test_a_daemon_that_ends_lets_what_waits_go(full: SimpleNamespace) -> None:
    side = full.side
    handle = side.handle()
    side.agent.transfer(handle)
    eventually(lambda: side.waiting() == SIZE)
    side.hang_up()
    assert side.finish(handle) == "DONE"
    assert len(side.binding.named("post")) == 1


def test_a_hold_is_as_long_as_python_says(full: SimpleNamespace) -> None:
    """Its time began when native code asked."""
    side = full.side
    side.sources.lease_s = NEVER_S
    handle = side.handle()
    side.agent.transfer(handle)
    kept = handle.transfer
    assert kept.state.value == "PROC" and kept.parts[0].state.value == "WAITING"
    kept.hold_max_s = 0.0
    assert side.finish(handle) == "DONE", "without a permit"
    assert len(side.binding.named("post")) == 1


# ---- what is left to Python ------------------------------------------------------------------------------------------


def long_way(side: Side, handle: Any) -> bool:
    """Whether Python starts it; it ends well."""
    started = "Scheduling.start" in functions(lambda: side.agent.transfer(handle))
    assert side.finish(handle) == "DONE"
    return started


def test_memory_that_has_an_owner_is_asked(side: Side) -> None:
    side.sources.ranges.add(1 << 40, SIZE, Metadata(9, int(Stage.BACKGROUND)))
    seen: list[Any] = []
    assert "Agent.pieces" in functions(lambda: seen.append(side.handle()))
    posted = side.stats()["posted_bytes"][Stage.BACKGROUND]
    assert not long_way(side, seen[0]), "made by Python, and started natively all the same"
    assert side.stats()["posted_bytes"][Stage.BACKGROUND] == posted + SIZE


def test_what_is_cut_goes_the_long_way(side: Side) -> None:
    side.agent._mfs.piece_bytes = SIZE
    assert long_way(side, side.large(3 * SIZE))
    assert side.binding.made == 4, "one as a whole, and three pieces"


@pytest.mark.parametrize(
    "metadata",
    [Metadata(-1), Metadata(2**64), Metadata(1, 8), Metadata(1, layer=-1), Metadata(1, deadline_ns=2**63), (1, 2)],
)
def test_what_cannot_be_is_named_by_python(side: Side, metadata: Any) -> None:
    side.sources.call.set(metadata)
    native = side.binding.made
    if len(metadata) == 2:
        with pytest.raises((AttributeError, ValueError)):
            side.handle()
        return
    handle = side.handle()
    assert side.binding.made == native + 1
    assert handle.posting is None
    assert long_way(side, handle)


def test_a_class_that_has_a_lane_is_started_by_python_with_the_permit(
    side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = side.agent._mfs.lanes
    monkeypatch.setattr(lanes, "route", lambda peer, wire_class: "UCX_MFS0")
    monkeypatch.setattr(lanes, "is_connected", lambda peer, lane: True)
    lanes.handles["UCX_MFS0"] = 77
    submits = side.stats()["submits"]
    handle = side.handle()
    lanes.changed()
    assert side.posted(handle) == "PROC"
    assert side.binding.calls[-2][0] == "make" and side.binding.calls[-2][-2] == [77]
    assert side.binding.calls[-1] == ("post", 2, b"")
    assert handle.transfer.cached == {"UCX_MFS0": 2}
    assert side.finish(handle) == "DONE"
    assert eventually(lambda: side.stats()["submits"] - submits) == 1
    handle.release()
    assert side.binding.named("release") == [("release", 2), ("release", 1)]


def test_lanes_that_change_are_asked_for_again(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = side.agent._mfs.lanes
    side.posted(side.handle())
    asked: list[str] = []
    monkeypatch.setattr(lanes, "route", lambda peer, wire_class: asked.append(peer))
    side.posted(side.handle())
    assert asked == []
    for change in (lambda: lanes.forget("peer"), lambda: lanes.met("peer", b""), lambda: lanes.drop("UCX_MFS0", "no")):
        asked.clear()
        change()
        side.posted(side.handle())
        assert set(asked) == {"peer"}


def test_each_message_is_written_of_where_that_is_asked_for(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    side.posted(side.handle())
    with caplog.at_level(logging.DEBUG, "mfs.adapter"):
        side.agent._mfs_path.changed()  # or a second later
        assert long_way(side, side.handle())
    assert f"message bytes={SIZE}" in caplog.text


def test_without_a_daemon_the_program_does_it_all(side: Side) -> None:
    side.arbiter.mode(Mode.OBSERVE)
    observed = side.handle()
    assert side.posted(observed) == "PROC"
    assert observed.transfer.direct
    side.arbiter.mode(Mode.ENFORCE)
    assert side.agent.check_xfer_state(observed) == "DONE"
    made = side.handle()
    side.hang_up()
    eventually(lambda: not side.session.scheduled)
    assert side.posted(made) == "PROC"
    assert made.transfer.direct and made.posting is not None
    assert side.agent.check_xfer_state(made) == "DONE"
    made.release()


def test_a_session_that_only_observes_has_no_native_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(tmp_path, monkeypatch, Mode.OBSERVE)
    handle = side.handle()
    assert side.agent._mfs_path is None and handle.posting is None
    assert side.agent.transfer(handle) == "PROC"
    assert side.agent.check_xfer_state(handle) == "DONE"
    side.close()


def test_a_daemon_that_ends_under_way_changes_nothing(side: Side) -> None:
    handle = side.handle()
    side.posted(handle)
    side.hang_up()
    assert side.agent.check_xfer_state(handle) == "DONE"
    handle.release()


def test_a_forked_child_has_no_session(side: Side) -> None:
    handle = side.handle()
    side.posted(handle)
    side.session._forked()  # what happens in a child
    assert side.agent.check_xfer_state(handle) == "DONE"
    assert side.posted(handle) == "PROC"
    assert handle.transfer.direct


# ---- threads ---------------------------------------------------------------------------------------------------------


def answers_late(side: Side, answer: object) -> tuple[threading.Event, threading.Event]:
    """When NIXL is asked, and when it may answer."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(handle: int) -> object:
        inside.set()
        assert go_on.wait(100)
        return answer

    side.binding.asked = slow
    return inside, go_on


def test_of_two_threads_that_ask_one_asks_nixl_and_neither_waits(side: Side) -> None:
    inside, go_on = answers_late(side, nixl.SUCCESS)
    handle = side.handle()
    side.posted(handle)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(side.agent.check_xfer_state(handle)))
    thread.start()
    assert inside.wait(100)
    assert side.agent.check_xfer_state(handle) == "PROC"
    go_on.set()
    thread.join()
    assert answers == ["DONE"] and len(side.binding.named("ask")) == 1
    assert side.agent.check_xfer_state(handle) == "DONE"
    eventually(lambda: side.under_way() == 0)


def test_a_release_waits_for_what_another_thread_asks(side: Side) -> None:
    inside, go_on = answers_late(side, nixl.IN_PROGRESS)
    handle = side.handle()
    side.posted(handle)
    asker = threading.Thread(target=side.agent.check_xfer_state, args=(handle,))
    asker.start()
    assert inside.wait(100)
    releaser = threading.Thread(target=handle.release)
    releaser.start()
    assert side.binding.named("release") == []
    go_on.set()
    asker.join()
    releaser.join()
    assert side.binding.named("release") == [("release", 1)]
    eventually(lambda: side.under_way() == 0)


def test_many_threads_lose_nothing(helped: Side) -> None:
    """Each transfer ends once, also where the adapter's thread asks."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                handle = helped.handle()
                helped.posted(handle)
                assert helped.finish(handle) == "DONE"
                helped.agent.release_xfer_handle(handle)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(helped.binding.named("post")) == len(helped.binding.named("release")) == 800
    eventually(lambda: helped.under_way() == 0 and helped.waiting() == 0)
    assert helped.stats()["posted_bytes"] == helped.stats()["completed_bytes"]
    assert len(helped.agent._mfs.scheduling._later.unasked) == 0


# ---- telemetry -------------------------------------------------------------------------------------------------------


def test_nixls_telemetry_is_that_of_the_transfer_and_leaves_it_native(side: Side) -> None:
    handle = side.handle()
    side.posted(handle)
    assert side.agent.get_xfer_telemetry(handle) == ("telemetry", 1)
    assert functions(lambda: side.agent.check_xfer_state(handle)) == []
    assert side.agent.get_xfer_telemetry(handle) == ("telemetry", 1)
    assert cast(Any, handle).posting.native

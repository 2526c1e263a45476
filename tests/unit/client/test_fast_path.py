"""A call of one buffer goes its whole way in native code, and whatever is unusual about it the long way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from mfsd._native import Mode, Stage, one_buffer
from mfsd.client import Request
from tests.support.waiting import eventually

WINDOW = 131_072
"""The least window of the arbiter: one message of this size fills a slow NIC."""
SLOW = 1000
"""Bytes a second of a NIC on which what fills the window is not overdue before minutes have passed."""
SIZE = 1000
OWN = "engine itself"
Course = tuple[int, bool, bool, dict[int, Any], str]


class Library:
    """A library's engine with one method before which the fast path stands; what happened to it, in order."""

    def __init__(self, session: Any, nic: int, give_up_ns: int = 4 * 10**12) -> None:
        self.session = session
        self.server: Any = None
        self.calls: list[tuple[Any, ...]] = []
        self.long_way: list[tuple[Any, ...]] = []
        self.asked: list[str] = []
        self.routed: list[tuple[str, int, int]] = []
        self.failures: list[str] = []
        self.answers: dict[str, int] = {}
        self.during: Any = lambda: None
        self.context: ContextVar[Any] = ContextVar("reported", default=None)
        self.owned: list[Any] = [[], {}]
        self.lanes: dict[int, Any] = dict.fromkeys(range(8))
        self.course: Course | None = (nic, False, False, self.lanes, "10.0.0.9")
        self._mfs_fast_path = session.fast_path(
            context=self.context,
            owned=self.owned,
            course=self._course,
            route=self._route,
            failed=self.failures.append,
            size_max_bytes=WINDOW,
            timeout_ns=10**12,
            give_up_ns=give_up_ns,
            course_ns=10**15,
        )

    def _course(self, peer: str) -> Course | None:
        self.asked.append(peer)
        return self.course

    def _route(self, peer: str, wire_class: int, peer_address: int) -> Any:
        self.routed.append((peer, wire_class, peer_address))

    def original(self, peer: Any, *arguments: Any) -> int:
        where = OWN if isinstance(self, Library) else self
        library = self if isinstance(self, Library) else self.library
        library.calls.append((where, peer, *arguments))
        library.during()
        return library.answers.get(peer, 0)

    def otherwise(self, *arguments: Any, **keywords: Any) -> int:
        self.long_way.append((*arguments, *keywords.items()))
        return -7

    write = one_buffer(original, otherwise, False)
    read = one_buffer(original, otherwise, True)


class Lane:
    def __init__(self, library: Library) -> None:
        self.library = library


@pytest.fixture
def server(serve: Any) -> Any:
    return serve()


@pytest.fixture
def library(server: Any, session: Any) -> Library:
    s = session()
    made = Library(s, s.nic("a", rate_bytes_per_s=SLOW))
    made.server = server
    return made


def stats(server: Any) -> Any:
    """Of the library's session, which attached first."""
    return server.arbiter.client_stats(min(server.segments))


def test_a_plain_call_is_permitted_made_and_completed(server: Any, library: Library) -> None:
    assert library.write("b:1", 5, 6, SIZE) == 0
    assert library.read("b:1", 5, 6, SIZE) == 0
    assert library.calls == [(OWN, "b:1", 5, 6, SIZE)] * 2
    assert library.long_way == []
    eventually(lambda: stats(server)["completes"] == 2)
    assert stats(server)["submits"] == stats(server)["grants"] == 2
    posted = stats(server)["posted_bytes"]
    assert (posted[Stage.P2D], posted[Stage.REUSE]) == (SIZE, SIZE)
    assert stats(server)["completed_bytes"] == posted


@pytest.mark.parametrize("answer", [0, -1, None])
def test_a_call_is_made_once_whatever_it_answers(library: Library, answer: Any) -> None:
    library.answers["b:1"] = answer
    assert library.write("b:1", 5, 6, SIZE) is answer
    assert library.calls == [(OWN, "b:1", 5, 6, SIZE)]
    assert library.long_way == []


def test_what_is_reported_goes_along(server: Any, library: Library) -> None:
    """Three layers ahead of its batch a reuse fetch has a lower class than one that is needed now."""
    classes: list[int] = []
    library.lanes.clear()
    library._mfs_fast_path.changed()
    with library.session.batch(5, layers=4, requests=[Request(9)]) as batch:
        for layer in (0, 3):
            library.context.set((9, int(Stage.REUSE), layer, 0, batch))
            assert library.write("b:1", 5, 6, SIZE) == 0
            classes.append(library.routed[-1][1])
    library.context.set((0, int(Stage.BACKGROUND), 0, 0, None))
    assert library.write("b:1", 5, 6, SIZE) == 0
    assert classes[0] < classes[1] < library.routed[-1][1] == library.session.classes - 1
    assert stats(server)["posted_bytes"][Stage.BACKGROUND] == SIZE


def test_a_batch_that_has_ended_is_reported_once_and_the_call_goes_on(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    with library.session.batch(5, layers=4, requests=[Request(9)]) as batch:
        pass
    library.context.set((9, None, 2, 0, batch))
    for _ in range(3):
        assert library.write("b:1", 5, 6, SIZE) == 0
    assert len(library.calls) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "it has ended" in caplog.text


@contextmanager
def second_waits(library: Library) -> Iterator[None]:
    """Two writes, from 5 and 7. Inside the block the first fills the window and the second waits; after it both have
    ended."""
    first_runs, first_may_end = threading.Event(), threading.Event()

    def hold() -> None:
        library.during = lambda: None
        first_runs.set()
        first_may_end.wait(100)

    library.during = hold
    first = threading.Thread(target=library.write, args=("b:1", 5, 6, WINDOW))
    first.start()
    assert first_runs.wait(100)
    second = threading.Thread(target=library.write, args=("b:1", 7, 8, WINDOW))
    second.start()
    eventually(lambda: sum(library.server.arbiter.nic_stats(0)["held_bytes"]) == WINDOW, "the second one waits")
    yield
    first_may_end.set()
    first.join()
    second.join()


def test_nothing_is_sent_before_its_permit(library: Library) -> None:
    with second_waits(library):
        assert len(library.calls) == 1
    assert [call[2] for call in library.calls] == [5, 7]


def test_what_the_method_raises_is_raised_and_the_permit_given_back(server: Any, library: Library) -> None:
    def fail() -> None:
        raise ValueError("no")

    library.during = fail
    with pytest.raises(ValueError, match="no"):
        library.write("b:1", 5, 6, SIZE)
    eventually(lambda: stats(server)["completes"] == 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("b:1", 5, 6),
        ("b:1", 5, 6, SIZE, ""),
        (b"b:1", 5, 6, SIZE),
        ("b:1", 5, 6, "7"),
        ("b:1", True, 6, SIZE),
        ("b:1", 5, 6, 0),
        ("b:1", 5, 6, -1),
        ("b:1", 5, 6, WINDOW + 1),
        ("b:1", 5, 6, 2**64),
    ],
)
def test_odd_arguments_go_the_long_way(library: Library, arguments: tuple[Any, ...]) -> None:
    assert library.write(*arguments) == -7
    assert (library.calls, library.long_way) == ([], [arguments])


def test_keywords_owners_and_peers_without_a_course_go_the_long_way(server: Any, library: Library) -> None:
    assert library.write("b:1", 5, 6, length=SIZE) == -7
    library.owned[1][0] = "another"
    assert library.write("b:1", 5, 6, SIZE) == -7
    library.owned[1].clear()
    library.course = None
    assert library.write("b:1", 5, 6, SIZE) == -7
    library.course = (99, False, False, {}, "")  # a NIC that was not named
    assert library.write("b:1", 5, 6, SIZE) == -7
    assert library.calls == []
    assert stats(server)["submits"] == 0


def test_where_nothing_is_scheduled_the_long_way_is_gone(server: Any, library: Library, session: Any) -> None:
    assert session(mode=Mode.OBSERVE).fast_path() is None
    server.arbiter.mode(Mode.OBSERVE)
    assert library.write("b:1", 5, 6, SIZE) == -7
    server.arbiter.mode(Mode.ENFORCE)
    assert library.write("b:1", 5, 6, SIZE) == 0
    server.arbiter.close()
    server.close()
    assert library.write("b:1", 5, 6, SIZE) == -7


def test_a_lane_of_the_permits_class_is_taken(library: Library) -> None:
    lane = Lane(library)
    library.lanes.update(dict.fromkeys(range(8), (lane, "lane of b:1")))
    assert library.write("b:1", 5, 6, SIZE) == 0
    assert library.calls == [(lane, "lane of b:1", 5, 6, SIZE)]


def test_a_transfer_that_fails_in_a_lane_is_tried_once_more_by_the_engine_itself(library: Library) -> None:
    lane = Lane(library)
    library.lanes.update(dict.fromkeys(range(8), (lane, "lane of b:1")))
    library.answers = {"lane of b:1": -1, "b:1": -3}
    assert library.write("b:1", 5, 6, SIZE) == -3
    assert [call[:2] for call in library.calls] == [(lane, "lane of b:1"), (OWN, "b:1")]
    assert library.failures == ["b:1"]


def test_a_transfer_that_fails_in_a_lane_after_the_time_out_is_not_tried_again(library: Library) -> None:
    late = Library(library.session, 0, give_up_ns=0)
    lane = Lane(late)
    late.lanes.update(dict.fromkeys(range(8), (lane, "lane of b:1")))
    late.answers = {"lane of b:1": -1}
    assert late.write("b:1", 5, 6, SIZE) == -1
    assert [call[:2] for call in late.calls] == [(lane, "lane of b:1")]
    assert (late.failures, late.long_way) == (["b:1"], [])


def test_the_lane_of_a_class_that_the_course_does_not_know_is_asked_for(library: Library) -> None:
    library.lanes.clear()
    assert library.write("b:1", 5, 6, SIZE) == 0
    ((peer, _, address),) = library.routed
    assert (peer, address) == ("b:1", 6)
    assert library.calls == [(OWN, "b:1", 5, 6, SIZE)]


def test_a_lane_that_has_gone_during_the_wait_is_not_taken(library: Library) -> None:
    lane = Lane(library)
    library.lanes.update(dict.fromkeys(range(8), (lane, "lane of b:1")))
    with second_waits(library):
        library._mfs_fast_path.changed()
    assert [call[:2] for call in library.calls] == [(lane, "lane of b:1"), (OWN, "b:1")]
    assert library.routed[0][0] == "b:1"


def test_a_course_is_asked_for_once_until_it_changes(library: Library) -> None:
    for peer in ("b:1", "b:1", "c:1", "b:1"):
        assert library.write(peer, 5, 6, SIZE) == 0
    assert library.asked == ["b:1", "c:1"]
    library._mfs_fast_path.changed()
    for peer in ("b:1", "c:1", "b:1"):
        assert library.write(peer, 5, 6, SIZE) == 0
    assert library.asked == ["b:1", "c:1", "b:1", "c:1"]

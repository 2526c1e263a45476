"""What goes past MFS: a port's counters less what programs posted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd._native import NicCounted
from mfsd.fabric.port_counters import PortCounters
from mfsd.fabric.port_moved import Moved
from mfsd.node.bypass import BypassAccount
from mfsd.node.port_watch import PortWatch

RATE = 1_000_000_000
TICK_NS = 50_000_000
TICK_BYTES = RATE // 20


def counted(out: int, into: int = 0, outstanding: int = 0, classes: tuple[int, ...] = (0,) * 8) -> NicCounted:
    return NicCounted((out, into), 0, outstanding, (classes, (0,) * 8))


def account(*steps: tuple[Moved, NicCounted], priorities: tuple[int, ...] = ()) -> BypassAccount:
    found = BypassAccount()
    found.add(Moved(0), counted(0), RATE)
    for moved, given_ in steps:
        found.add(moved, given_, RATE, priorities)
    return found


def port(out: int | None, into: int | None = 0, *by_priority: int) -> Moved:
    return Moved(TICK_NS, (out, into), (by_priority, ()))


def test_what_no_program_posted_is_bypass_at_its_rate() -> None:
    found = account(*((port(TICK_BYTES // 2, TICK_BYTES), counted(0)) for _ in range(40)))
    assert found.rates_bytes_per_s == (pytest.approx(RATE / 2, rel=0.05), pytest.approx(RATE, rel=0.05))
    assert sum(found.bytes[0].values()) == pytest.approx(TICK_BYTES * 20, rel=0.05)
    assert found.load_bytes_per_s[1] == found.load_bytes_per_s[0], "what comes in beyond that peers write"


def test_what_ends_is_forgotten() -> None:
    steps = [(port(TICK_BYTES), counted(0))] * 10 + [(port(0), counted(0))] * 60
    assert account(*steps).rates_bytes_per_s == (0, 0)


@given(st.lists(st.tuples(st.integers(0, TICK_BYTES), st.floats(0.0, 1.0)), max_size=30))
def test_what_is_posted_is_never_bypass_however_late_it_goes(posts: list[tuple[int, float]]) -> None:
    posted, waiting, steps = 0, 0, []
    for size, share in posts:
        posted, waiting = posted + size, waiting + size
        gone = int(waiting * share)
        waiting -= gone
        # on the wire with its headers; complete only a moment later
        steps.append((port(gone + gone // 20, gone // 100), counted(posted, outstanding=waiting + gone)))
    assert account(*steps).bytes == ({}, {})


@given(st.integers(1, 20), st.integers(TICK_BYTES // 4, TICK_BYTES))
def test_bypass_beside_what_is_posted_is_found(ticks: int, bypass: int) -> None:
    steps = [(port(bypass + 10_000_000, 0), counted(10_000_000 * (tick + 1), outstanding=0)) for tick in range(ticks)]
    found = sum(account(*steps).bytes[0].values())
    assert 0.9 * ticks * (bypass - 10_000_000 / 16) <= found <= ticks * bypass


def test_what_was_posted_and_never_went_hides_no_more_than_is_outstanding() -> None:
    lost = [(port(0), counted(RATE, outstanding=0))]
    found = account(*lost, *[(port(TICK_BYTES), counted(RATE))] * 10)
    assert sum(found.bytes[0].values()) == TICK_BYTES * 10


def test_a_reading_that_is_not_believed_changes_nothing() -> None:
    assert account((port(None, None), counted(0)), (port(None, 0), counted(5))).bytes == ({}, {})


def test_priorities_have_what_they_carried_beyond_their_classes() -> None:
    moved = port(TICK_BYTES, 0, 0, 0, 0, TICK_BYTES // 4, 3 * TICK_BYTES // 4, 0, 0, 0)
    classes = (0, TICK_BYTES // 4, *[0] * 6)
    known = account((moved, counted(TICK_BYTES // 4, classes=classes)), priorities=(4, 3, 3, 3, 3, 3, 3, 1))
    assert known.bytes[0].keys() == {"4"}
    assert account((moved, counted(TICK_BYTES // 4))).bytes[0].keys() == {"unknown"}
    assert account((moved, counted(0))).bytes[0].keys() == {"3", "4"}


class OneNic:
    def __init__(self) -> None:
        self.known: dict[int, str] = {}
        self.loads: list[tuple[int, int]] = []

    def names(self) -> dict[int, str]:
        return self.known

    def configured(self, name: str) -> int:
        return RATE

    def watched(self, name: str) -> int:
        self.known[0] = name
        return 0

    def counted(self, nic: int) -> NicCounted:
        return counted(0)

    def bypass(self, nic: int, sent: int, received: int, valid_until_ns: int) -> None:
        self.loads.append((sent, received))


def write(root: Path, sent_words: int, received_pauses: int) -> None:
    for name, value in {
        "counters/port_xmit_data": sent_words,
        "counters/port_rcv_data": 0,
        **{f"hw_counters/tx_prio{n}_bytes": sent_words // 2 for n in range(8)},
        **{f"hw_counters/rx_prio{n}_bytes": 0 for n in range(8)},
        "hw_counters/rx_prio3_pause": received_pauses,
        "hw_counters/tx_prio3_pause": 0,
    }.items():
        path = root / "mlx5_0/ports/1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def test_a_port_that_no_program_named_is_watched_and_its_pauses_are_counted(tmp_path: Path) -> None:
    nic = OneNic()
    watch = PortWatch(nic, nic, lambda: (), TICK_NS, tmp_path, count(0, TICK_NS).__next__)
    assert watch.read() == ({}, {})
    for step in range(10):
        write(tmp_path, step * 20_000_000, 100 + step * 3)
        watch.take(*watch.read())
    found = watch.status("mlx5_0")
    assert nic.known == {0: "mlx5_0"}
    assert found is not None and (found.pauses, found.incoming_pauses) == (0, 27)
    assert found.bypass_bytes_per_s > 0 and nic.loads[-1][0] == found.bypass_bytes_per_s
    assert set(found.bypass_bytes) == {str(n) for n in range(8)}
    assert watch.status("mlx5_1") is None


def test_an_idle_port_does_not_ask_the_arbiter(tmp_path: Path) -> None:
    nic = OneNic()
    watch = PortWatch(nic, nic, lambda: (), TICK_NS, tmp_path, count(0, TICK_NS).__next__)
    write(tmp_path, 5, 0)
    for _ in range(5):
        watch.take(*watch.read())
    assert nic.known == {} and nic.loads == []


def test_counters_that_make_no_sense_are_said_once_until_they_make_sense_again(tmp_path: Path) -> None:
    nic = OneNic()
    lines: list[tuple[str, dict[str, object]]] = []

    class Lines:
        def warning(self, event: str, **values: object) -> None:
            lines.append((event, values))

    watch = PortWatch(nic, nic, lambda: (), TICK_NS, tmp_path, count(0, TICK_NS).__next__, log=Lines())
    for words in (100, 2**60, 2**61, 2**62, 2**62 + 100, 2**62 + 200, 7):
        write(tmp_path, words, 0)
        watch.take(*watch.read())
    assert [(event, values["nic"], values["counter"]) for event, values in lines] == [
        ("port-counter-unbelievable", "mlx5_0", "sent")
    ] * 2
    assert nic.loads == [], "and nothing is planned by them"


def test_the_loop_is_woken_for_changes_alone(tmp_path: Path) -> None:
    clock = Clock()
    taken: list[int | None] = []

    class Watch(PortWatch):
        def take(self, rates: Mapping[str, int], readings: Mapping[str, PortCounters]) -> None:
            taken.append(readings["mlx5_0"].bytes[0])
            super().take(rates, readings)

    async def served() -> None:
        nic = OneNic()
        running = asyncio.ensure_future(Watch(nic, nic, lambda: (), 1_000_000, tmp_path, clock).run())
        await until(lambda: clock.readings >= 20)
        assert taken == [8]
        write(tmp_path, 4, 0)
        await until(lambda: taken[-1] == 16)
        running.cancel()

    write(tmp_path, 2, 0)
    asyncio.run(served())


class Clock:
    """Says how often it was asked: once for each reading."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.readings * TICK_NS


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)

"""Counters of ports: which files and statistics are read, and which differences are believed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.fabric.counter_names import KNOWN
from mfsd.fabric.driver_statistics import EthtoolStatistics
from mfsd.fabric.port_counters import SCAN_NS, PortCounters, PortReader
from mfsd.fabric.port_moved import BURST_BYTES, WRAPS, difference, moved

RATE = 12_500_000_000
MLX5 = {
    **{f"tx_prio{n}_bytes": 1000 + n for n in range(8)},
    **{f"rx_prio{n}_bytes": 2000 + n for n in range(8)},
    **{f"tx_prio{n}_pause": n for n in range(8)},
    "rx_prio3_pause": 7,
    "rx_global_pause": 1,
    "rx_out_of_buffer": 9,
}
BNXT = {**{f"{d}_bytes_pri{n}": 10 for d in ("tx", "rx") for n in range(8)}, "rx_pfc_ena_frames_pri3": 4}
IONIC = {"octets_tx_ok": 500, "octets_rx_ok": 600, "frames_rx_pause": 2}
ICE = {"tx_bytes.nic": 70, "rx_bytes.nic": 80, "rx_priority_3_xoff.nic": 5}


def device(root: Path, **files: str) -> Path:
    """A device `nic0` with these files, `/` written as `__`; its interface is eth0."""
    for name, text in {"device__net__eth0": "", **files}.items():
        path = root / "nic0" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def read(root: Path, statistics: Mapping[str, int] | None = None) -> PortCounters:
    def of(interface: str) -> Mapping[str, int]:
        assert interface == "eth0"
        if statistics is None:
            raise OSError("no statistics")
        return statistics

    return PortReader("nic0", root, of, clock_ns=lambda: 5).read()


WORDS = {"ports__1__counters__port_xmit_data": "25\n", "ports__1__counters__port_rcv_data": "50\n"}


def test_sysfs_counts_words_of_four_bytes(tmp_path: Path) -> None:
    assert read(device(tmp_path, **WORDS)) == PortCounters(5, (100, 200))


@pytest.mark.parametrize(
    ("statistics", "wanted"),
    [
        (MLX5, PortCounters(5, (8028, 16028), (tuple(range(1000, 1008)), tuple(range(2000, 2008))), (28, 8))),
        (BNXT, PortCounters(5, (80, 80), ((10,) * 8, (10,) * 8), (None, 4))),
        (IONIC, PortCounters(5, (500, 600), pauses=(None, 2))),
        (ICE, PortCounters(5, (70, 80), pauses=(None, 5))),
    ],
)
def test_each_driver_has_its_names(tmp_path: Path, statistics: Mapping[str, int], wanted: PortCounters) -> None:
    assert read(device(tmp_path), statistics) == wanted


def test_rdma_alone_counts_where_priorities_are_unknown(tmp_path: Path) -> None:
    assert read(device(tmp_path, **WORDS), IONIC) == PortCounters(5, (100, 200), pauses=(None, 2))


def test_hw_counters_have_the_same_form(tmp_path: Path) -> None:
    files = {f"ports__1__hw_counters__{name}": f"{value:020}\n" for name, value in MLX5.items()}
    assert read(device(tmp_path, **WORDS, **files)).bytes == (8028, 16028)


def test_several_ports_are_one_device(tmp_path: Path) -> None:
    second = {name.replace("__1__", "__2__"): text for name, text in WORDS.items()}
    assert read(device(tmp_path, **WORDS, **second)).bytes == (200, 400)


def test_what_is_missing_or_no_number_is_unknown(tmp_path: Path) -> None:
    assert read(tmp_path) == PortCounters(5, (None, None))
    device(tmp_path, ports__1__counters__port_xmit_data="N/A (no PMA)\n", ports__1__hw_counters__lifespan="x")
    assert read(tmp_path) == PortCounters(5, (None, None))


def test_a_device_that_comes_back_is_found_again(tmp_path: Path) -> None:
    """As after a reset of its driver: the files that were open read nothing any more."""
    clock = itertools.count(0, SCAN_NS // 2)
    reader = PortReader("nic0", device(tmp_path, **WORDS), lambda _: {}, clock_ns=clock.__next__)
    assert reader.read().bytes == (100, 200)
    (tmp_path / "nic0/ports").rename(tmp_path / "gone")
    device(tmp_path, ports__1__counters__port_xmit_data="1", ports__1__counters__port_rcv_data="2")
    readings = [reader.read().bytes for _ in range(2)]
    assert readings[-1] == (4, 8)


def test_looking_again_leaves_no_file_open(tmp_path: Path) -> None:
    clock = itertools.count(0, SCAN_NS)
    files = {f"ports__1__hw_counters__{name}": f"{value}" for name, value in MLX5.items()}
    reader = PortReader("nic0", device(tmp_path, **WORDS, **files), lambda _: {}, clock_ns=clock.__next__)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(20):
        reader.read()
    assert len(os.listdir("/proc/self/fd")) - before == len(WORDS) + len(KNOWN & MLX5.keys())  # noqa: PTH208
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_kernels_statistics_of_an_interface() -> None:
    statistics = EthtoolStatistics()
    with pytest.raises(OSError, match="no statistics"):
        statistics("no-such-if")
    with pytest.raises(OSError, match="no statistics"):
        statistics("lo")


@given(st.integers(0, 2**66), st.integers(0, 10**9))
def test_growth_is_believed_up_to_what_a_link_carries(before: int, grown: int) -> None:
    assert difference(before, before + grown, most=10**9) == grown
    assert difference(before, before + 10**9 + 1 + grown, most=10**9) is None


@given(st.sampled_from(WRAPS), st.integers(1, 10**8), st.integers(0, 10**8))
def test_a_wrap_is_no_loss(wrap: int, left: int, after: int) -> None:
    assert difference(wrap - left, after, most=10**9) == left + after


@given(st.integers(10**6, 2**31), st.integers(0, 10**5))
def test_a_reset_is_not_believed(before: int, now: int) -> None:
    assert difference(before, now, most=10**9) is None


@given(st.lists(st.tuples(st.integers(0, 2**70), st.integers(-5, 2**70)), min_size=2, max_size=6))
def test_any_readings_give_what_a_link_can_carry(values: list[tuple[int, int]]) -> None:
    readings = [PortCounters(at * 50_000_000, pair) for at, pair in enumerate(values)]
    for before, now in itertools.pairwise(readings):
        for one in moved(before, now, RATE).bytes:
            assert one is None or 0 <= one <= RATE * 0.05 * 4 + BURST_BYTES


def test_one_priority_that_wraps_is_no_reset_of_the_sum() -> None:
    high, low = (2**32 - 10, *[5] * 7), (20, *[6] * 7)
    before = PortCounters(0, (sum(high), 0), (high, (0,) * 8))
    now = PortCounters(10**8, (sum(low), 0), (low, (0,) * 8))
    assert moved(before, now, RATE).bytes == (37, 0)
    assert moved(before, now, RATE).priority_bytes[0] == (30, *[1] * 7)


def test_what_a_port_no_longer_counts_is_unknown() -> None:
    before = PortCounters(0, (100, 100), ((10,) * 8, (10,) * 8), (1, 1))
    assert moved(before, PortCounters(10, (None, 120)), RATE).bytes == (None, 20)
    assert moved(before, PortCounters(10, (100, 120)), RATE).pauses == (None, None)
    assert moved(before, PortCounters(0, (100, 120)), RATE).bytes == (None, None)

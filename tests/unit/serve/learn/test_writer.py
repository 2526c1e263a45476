"""Rows are appended to a file that can be learned from, whatever happens to the disk."""

from __future__ import annotations

import queue
import resource
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from mfsd.serve.learn import writer as writers
from mfsd.serve.learn.rows import RequestRow, read_rows
from mfsd.serve.learn.writer import RowWriter


def row(number: int, timestamp: float = 1.0, role: str = "") -> RequestRow:
    return RequestRow(session_id="s", timestamp=timestamp, input_length=number, output_length=1, role=role)


def written(path: Path, rows: Iterable[RequestRow], size_max_bytes: int = 1 << 20) -> list[str]:
    """Writes the rows as one gateway does from its start to its end; returns its warnings."""
    warnings: list[str] = []
    writer = RowWriter(path, warnings.append, size_max_bytes)
    for one in rows:
        writer.add(one)
    writer.close()
    return warnings


def numbers(path: Path) -> list[int]:
    return [found.input_length for found in read_rows(path)]


def test_rows_are_read_as_they_were_and_a_restart_appends(tmp_path: Path) -> None:
    path = tmp_path / "new" / "requests.jsonl"
    assert written(path, [row(1, 5.0), row(2, 6.0, "planner")]) == []
    assert read_rows(path) == [row(1, 5.0), row(2, 6.0, "planner")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written(path, [row(3, 7.0)])
    assert numbers(path) == [1, 2, 3]


def test_it_writes_as_it_runs_and_again_after_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "WRITE_S", 0.001)
    path, warned = tmp_path / "requests.jsonl", threading.Event()
    path.mkdir()
    writer = RowWriter(path, lambda _: warned.set())
    writer.add(row(1))
    assert warned.wait(60)
    path.rmdir()
    writer.add(row(2))
    writer.close()
    assert numbers(path) == [2]


def test_a_clock_that_is_set_back_keeps_the_file_in_order(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    written(path, [row(1, 9.0), row(2, 3.0), row(3, 9.5)])
    written(path, [row(4, 1.0)])
    assert [found.timestamp for found in read_rows(path)] == [9.0, 9.0, 9.5, 9.5]


def test_no_more_than_two_files_of_the_largest_size_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    for number in range(40):
        written(path, [row(number)], size_max_bytes=1000)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["requests.jsonl", "requests.jsonl.1"]
    kept = numbers(tmp_path / "requests.jsonl.1") + numbers(path)
    assert kept == list(range(40))[-len(kept) :] and 10 < len(kept) < 30
    assert all(file.stat().st_size < 1200 for file in tmp_path.iterdir())


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    written(path, [row(1)])
    path.rename(tmp_path / "moved")
    written(path, [row(2)])
    assert (numbers(tmp_path / "moved"), numbers(path)) == ([1], [2])


@pytest.mark.parametrize("whole", [0, 3])
def test_a_row_that_a_crash_has_cut_is_cut_off(tmp_path: Path, whole: int) -> None:
    path = tmp_path / "requests.jsonl"
    lines = [msgspec.json.encode(row(number)) + b"\n" for number in range(whole)]
    path.write_bytes(b"".join(lines) + msgspec.json.encode(row(99))[:-5])
    assert written(path, [row(7)]) == []
    assert numbers(path) == [*range(whole), 7]


@pytest.mark.parametrize("content", [b"a text\n", b"no line at all", b'{"x":1}\n{"session_id":', b"\0" * 10_000])
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(content)
    (warning,) = written(path, [row(1)])
    assert str(path) in warning and "does not hold recorded requests" in warning and path.read_bytes() == content


def test_a_full_disk_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "WRITE_S", 0.001)
    warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
    writer = RowWriter(Path("/dev/full"), warnings.put)
    writer.add(row(1))
    assert warnings.get(timeout=60).startswith("/dev/full: No space left on device; ")
    writer.add(row(2))
    writer.close()
    assert warnings.empty()


@pytest.fixture
def small_files() -> Iterator[int]:
    """Lets this process write files of so many bytes only."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = 1 << 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    yield most
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rows_that_fit_only_in_part_are_left_out(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "requests.jsonl"
    warnings: list[str] = []
    line = msgspec.json.encode(row(1)) + b"\n"
    path.write_bytes(line * (small_files // len(line)))
    size = path.stat().st_size
    writer = RowWriter(path, warnings.append, 2 * small_files)
    for _ in range(2):
        writer.add(row(2))
    writer.close()
    assert len(warnings) == 1 and path.stat().st_size == size
    assert set(numbers(path)) == {1}


def test_rows_beyond_what_may_wait_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "WAITING_MAX", 5)
    monkeypatch.setattr(writers, "WRITE_S", 3600.0)
    path = tmp_path / "requests.jsonl"
    written(path, map(row, range(20)))
    assert numbers(path) == [15, 16, 17, 18, 19]

"""What a node's daemon reads of the status files of engines: as they publish it, and nothing that harms it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mfsd.policy.request_tiers import FIRST_COME, TIERS_MAX, NodeTiers
from mfsd.serve import tier_reader
from mfsd.serve.publish import Publisher
from mfsd.serve.tier_reader import FRESH_S, TierReader
from tests.unit.serve.test_publish import Clock, served

GONE = 2**22 + 1
"""No process has this number."""
DAY_S = 86_400.0


class Reading:
    """A reader of some folders, and what it has named."""

    def __init__(self, *folders: Path) -> None:
        self.named: list[tuple[str, str]] = []
        self.reader = TierReader(lambda: list(folders), lambda path, why: self.named.append((path.name, why)))

    def __call__(self) -> NodeTiers:
        return self.reader.read()


def status(pid: int = 0, policy: str = "fit", **more: Any) -> dict[str, Any]:
    """The least that is read of an engine's status."""
    tiers = {"chat": {"met": 3, "late": 1, "waiting": 2}}
    found = {"format": 1, "pid": pid or os.getpid(), "config": {"policy": policy}, "gave_up": False, "tiers": tiers}
    return found | more


def put(folder: Path, name: str, fields: dict[str, Any] | bytes, age_s: float = 0.0) -> Path:
    path = folder / f"{name}.json"
    path.write_bytes(fields if isinstance(fields, bytes) else json.dumps(fields).encode())
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_what_an_engine_publishes_is_what_is_read(tmp_path: Path) -> None:
    publisher = Publisher(served(Clock()), lambda kind, text: None, tmp_path)
    read = Reading(tmp_path)
    found = read()
    assert (found.engines, found.unreadable, sorted(found.tiers)) == (1, 0, ["chat", "default"])
    chat, default = found.tiers["chat"], found.tiers["default"]
    assert (chat.met, chat.late, chat.waiting, chat.running, chat.engines) == (1, 0, 0, 1, 1)
    assert (default.met, default.waiting, default.running, default.policies) == (0, 1, 0, {"fit": 1})
    publisher.close()
    assert read() == NodeTiers(), "it goes with its engine"
    assert not read.named


def test_what_is_set_aside_is_counted_by_tier(tmp_path: Path) -> None:
    engine = served(Clock())
    (first, second) = (entry.number for entry in engine.entries.values())
    assert engine.latest is not None
    plan = msgspec.structs.replace(engine.latest.plan, scheduled=(), paused=(first,), relegated=(second,))
    engine.latest = engine.latest._replace(plan=plan)
    publisher = Publisher(engine, lambda kind, text: None, tmp_path)
    tiers = Reading(tmp_path)().tiers
    assert (tiers["chat"].paused, tiers["chat"].relegated) == (1, 0)
    assert (tiers["default"].paused, tiers["default"].relegated, tiers["default"].lost) == (0, 1, 0)
    publisher.close()


def test_engines_of_all_folders_add_up(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        put(folder, "one", status(policy="edf" if number else "fit"))
    put(folders[0], "two", status(gave_up=True))
    found = Reading(*folders, tmp_path / "missing")()
    assert (found.engines, found.unreadable) == (3, 0)
    assert (found.tiers["chat"].met, found.tiers["chat"].waiting) == (9, 6)
    assert found.tiers["chat"].policies == {"fit": 1, "edf": 1, FIRST_COME: 1}


def test_broken_files_are_counted_named_once_and_harm_no_other(tmp_path: Path) -> None:
    good = put(tmp_path, "good", status())
    put(tmp_path, "nonsense", b"{")
    put(tmp_path, "later", status(format=99))
    put(tmp_path, "negative", status(tiers={"chat": {"met": -1}}))
    put(tmp_path, "huge", status(tiers={"chat": {"met": 2**63}}))
    put(tmp_path, "policy", status(policy="a b\n"))
    put(tmp_path, "unprintable", status(tiers={"a\nb": {}}))
    put(tmp_path, "long", status(tiers={"x" * 1000: {}}))
    put(tmp_path, "many", status(tiers={str(n): {} for n in range(TIERS_MAX + 1)}))
    put(tmp_path, "nested", b'{"format": 1, "requests": ' + b"[" * 100_000)
    (tmp_path / "link.json").symlink_to(good)
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    read = Reading(tmp_path)
    for _ in range(3):
        found = read()
        assert (found.engines, found.unreadable) == (1, 12)
        assert found.tiers["chat"].met == 3
    assert len(read.named) == 12 and "good.json" not in dict(read.named)
    assert "format 99, this mfsd reads 1" in dict(read.named)["later.json"]
    assert all(why.isprintable() and len(why) < 300 for _, why in read.named)


def test_a_file_that_is_repaired_counts(tmp_path: Path) -> None:
    put(tmp_path, "one", b"{")
    read = Reading(tmp_path)
    assert read().unreadable == 1
    put(tmp_path, "one", status())
    assert read() == read() and (read().engines, read().unreadable) == (1, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_than_its_folder_is_not_believed(tmp_path: Path) -> None:
    os.chown(put(tmp_path, "one", status()), 65534, 65534)
    read = Reading(tmp_path)
    assert (read().engines, read().unreadable) == (0, 1)
    assert read.named == [("one.json", "it belongs to another user than its folder")]


def test_a_folder_that_is_a_link_or_a_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    put(tmp_path / "real", "one", status())
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    read = Reading(tmp_path / "link", tmp_path / "file")
    assert (read().engines, read().unreadable) == (0, 2)
    assert [name for name, _ in read.named] == ["link", "file"]


def test_what_is_large_or_much_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_reader, "FILE_MAX_BYTES", 2_000)
    put(tmp_path, "a", status())
    put(tmp_path, "b", status(requests=["x" * 2_000]))
    read = Reading(tmp_path)
    assert (read().engines, read().unreadable) == (1, 1)
    assert "at most 2000 are read" in dict(read.named)["b.json"]
    monkeypatch.setattr(tier_reader, "FILES_MAX", 1)
    read = Reading(tmp_path)
    assert (read().engines, read().unreadable) == (1, 1)
    assert read.named == [(tmp_path.name, "2 status files: the first 1 are read")]


def test_what_did_not_fit_into_one_pass_is_read_in_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps(status()))
    monkeypatch.setattr(tier_reader, "READ_MAX_BYTES", size + size // 2)
    put(tmp_path, "a", status())
    put(tmp_path, "b", status())
    read = Reading(tmp_path)
    assert [(found.engines, found.unreadable) for found in (read(), read())] == [(1, 1), (2, 0)]


def test_a_node_has_no_more_tiers_than_it_may(tmp_path: Path) -> None:
    put(tmp_path, "a", status(tiers={str(n): {} for n in range(TIERS_MAX)}))
    put(tmp_path, "b", status(tiers={"one more": {}}))
    read = Reading(tmp_path)
    found = read()
    assert (found.engines, found.unreadable, len(found.tiers)) == (1, 1, TIERS_MAX)


def test_files_of_engines_that_are_gone_are_left_out_and_are_no_fault(tmp_path: Path) -> None:
    put(tmp_path, "gone", status(GONE), age_s=2 * FRESH_S)
    put(tmp_path, "reused", status(os.getpid()), age_s=DAY_S)  # this process is younger than the file
    put(tmp_path, "tomorrow", status(GONE), age_s=-DAY_S)
    read = Reading(tmp_path)
    assert read() == NodeTiers() and not read.named


def test_an_idle_engine_and_one_with_a_number_of_its_own_live(tmp_path: Path) -> None:
    put(tmp_path, "idle", status(os.getpid()), age_s=2 * FRESH_S)
    put(tmp_path, "in-a-container", status(GONE))
    assert Reading(tmp_path)().engines == 2


def test_the_number_of_another_containers_engine_is_not_looked_up_here(tmp_path: Path) -> None:
    """It is this very process' number, and the file is old: an engine that was killed would count for ever."""
    elsewhere = status(os.getpid(), pid_namespace=1)
    put(tmp_path, "killed", elsewhere, age_s=2 * FRESH_S)
    put(tmp_path, "serves", elsewhere)
    assert Reading(tmp_path)().engines == 1


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    """Its content is another one in the same place, of the same size and time: only who reads it would know."""
    path = put(tmp_path, "one", status())
    read, before = Reading(tmp_path), path.stat()
    first = read()
    with path.open("r+b") as file:
        file.write(b"#")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read() == first and first.engines == 1
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert read().unreadable == 1

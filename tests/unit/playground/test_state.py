"""The folder of a user's playground: whose it is, who may have it, and what is left of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mfsd.playground.state import Node, PlaygroundError, State, folder_of_user, own_folder, publish, running

RUNS = State(1, "", [Node("node1", "10.99.0.1", "mfs0", "/run/node1.sock")], [], False)


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short one: sockets lie in it."""
    folder = tempfile.mkdtemp(dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    yield Path(folder)
    shutil.rmtree(folder)


def test_one_that_runs_is_found() -> None:
    with own_folder() as folder:
        RUNS.folder = str(folder)
        publish(RUNS)
        assert running() == RUNS
    with pytest.raises(PlaygroundError, match="no playground of yours runs"):
        running()


def open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


def linked(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


@pytest.mark.parametrize("change", [open_to_all, linked])
def test_what_others_could_have_written_is_not_believed(change: Callable[[Path], None]) -> None:
    with own_folder() as folder:
        RUNS.folder = str(folder)
        publish(RUNS)
        change(folder)
        with pytest.raises(PlaygroundError, match="not a folder of your own alone"):
            running()
        with pytest.raises(PlaygroundError, match="not a folder of your own alone"), own_folder():
            pass


@pytest.mark.parametrize("text", [b'{"pid": 1, "folder": 3}', b"", b"{", b"\xff"])
def test_a_description_of_another_form_is_one_line(text: bytes) -> None:
    with own_folder() as folder:
        (folder / "playground.json").write_bytes(text)
        with pytest.raises(PlaygroundError, match=r"playground\.json: .*; start the playground again") as caught:
            running()
        assert "\n" not in str(caught.value)


def test_nothing_is_left_where_the_playground_fails() -> None:
    with pytest.raises(PlaygroundError, match="no"), own_folder() as folder:
        (folder / "etcd").mkdir()
        raise PlaygroundError("no")
    assert not folder_of_user().exists()


def test_two_at_once_are_refused() -> None:
    with own_folder(), pytest.raises(PlaygroundError, match="already runs"), own_folder():
        pass


@pytest.mark.parametrize("again", [False, True])
def test_one_that_ends_meanwhile_leaves_no_lock_that_no_other_finds(
    monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Between the opening of the lock and its taking. again: a third has begun by then."""
    lock = fcntl.flock
    calls: list[int] = []

    def ended_before(descriptor: int, operation: int) -> None:
        if not calls:
            shutil.rmtree(folder_of_user())
            if again:
                folder_of_user().mkdir(mode=0o700)
                (folder_of_user() / "lock").touch()
        calls.append(descriptor)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", ended_before)
    with own_folder() as folder:
        assert len(calls) == 2
        assert os.path.samestat(os.fstat(calls[-1]), (folder / "lock").stat())

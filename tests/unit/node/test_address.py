"""One daemon a path; a dead one's sockets are taken over; nothing is left behind."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd.node.address import Address, AddressError, control_beside
from tests.support.forked import Forked


def address_at(path: Path) -> Address:
    return Address(path, control_beside(path))


def test_a_relative_path_is_asked_where_it_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mfsd makes its path absolute; mfsctl and MFS_SOCKET may name it from the folder it lies in."""
    monkeypatch.chdir(tmp_path)
    assert control_beside(Path("m.sock")) == control_beside(Path("m.sock").absolute())
    assert control_beside(Path("run/m.sock")) == tmp_path / "run-control" / "m.sock"


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run" / "m.sock"
    first = address_at(path)
    with pytest.raises(AddressError, match=rf"another mfsd \(pid {os.getpid()}\) serves it; stop that one or choose"):
        address_at(path)
    first.release()
    address_at(path).release()
    assert list(tmp_path.iterdir()) == [path.parent], "containers that mount it see the next daemon's socket in it"
    assert list(path.parent.iterdir()) == []


def test_a_program_that_sees_the_attach_folder_alone_cannot_take_the_lock(tmp_path: Path) -> None:
    """flock needs no more than a descriptor for reading, which a read-only mount gives."""
    path = tmp_path / "run" / "m.sock"
    address = address_at(path)
    listener = address.listen(socket.SOCK_SEQPACKET, path, 0o600, None)
    control = address.listen(socket.SOCK_STREAM, address.control, 0o600, None)
    assert [entry.name for entry in path.parent.iterdir()] == ["m.sock"]
    assert {entry.name for entry in (tmp_path / "run-control").iterdir()} == {"m.sock", "m.sock.lock"}
    listener.close()
    control.close()
    address.release()


def test_what_a_dead_owner_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "run" / "m.sock"
    script = (
        "import os, socket, sys; from pathlib import Path; from mfsd.node.address import Address, control_beside\n"
        "path = Path(sys.argv[1])\n"
        "Address(path, control_beside(path)).listen(socket.SOCK_SEQPACKET, path, 0o600, None)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == -9
    assert path.is_socket()
    address = address_at(path)
    listener = address.listen(socket.SOCK_SEQPACKET, path, 0o640, None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    listener.close()
    address.release()
    assert [entry for folder in tmp_path.iterdir() for entry in folder.iterdir()] == []


def test_a_living_daemon_with_another_control_socket_keeps_its_attach_socket(tmp_path: Path) -> None:
    path = tmp_path / "run" / "m.sock"
    first, second = address_at(path), Address(path, tmp_path / "elsewhere" / "m.sock")
    listener = first.listen(socket.SOCK_SEQPACKET, path, 0o600, None)
    with pytest.raises(AddressError, match=r"m\.sock: another mfsd serves it, with another control socket; stop that"):
        second.listen(socket.SOCK_SEQPACKET, path, 0o600, None)
    second.release()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
    listener.close()
    first.release()


def test_a_full_backlog_is_a_sign_of_life(tmp_path: Path) -> None:
    path = tmp_path / "run" / "m.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
            waiting.connect(str(path))
            address = address_at(path)
            with pytest.raises(AddressError, match="another mfsd serves it"):
                address.listen(socket.SOCK_SEQPACKET, path, 0o600, None)
    address.release()


def test_a_socket_that_another_has_put_in_place_of_ours_stays(tmp_path: Path) -> None:
    path = tmp_path / "run" / "m.sock"
    address = address_at(path)
    listener = address.listen(socket.SOCK_SEQPACKET, path, 0o600, None)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(path))
        address.release()
        assert path.is_socket()
    listener.close()


def test_folders_can_be_entered_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run" / "m.sock"
    mask = os.umask(0o077)
    try:
        address = address_at(path)
    finally:
        os.umask(mask)
    folders = (tmp_path / "deep", path.parent, address.control.parent)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o755] * 3
    address.release()


def test_a_file_in_the_way_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "run" / "m.sock"
    path.parent.mkdir()
    path.write_text("precious")
    address = address_at(path)
    with pytest.raises(AddressError, match="exists and is not a socket; remove it or choose another place"):
        address.listen(socket.SOCK_STREAM, path, 0o600, None)
    address.release()
    assert path.read_text() == "precious"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AddressError, match=r"cannot be created: .* choose another place with --socket"):
        address_at(tmp_path / "file" / "m.sock")
    with pytest.raises(AddressError, match=r"cannot be created: .* or socket.control"):
        Address(tmp_path / "run" / "m.sock", tmp_path / "file" / "m.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_the_folder_of_another_users_daemon_says_where_else_to_serve(folder: Path) -> None:
    (folder / "run").mkdir(mode=0o755)
    (folder / "mine").mkdir()
    os.chown(folder / "mine", 65_534, -1)

    def serve() -> str:
        address = Address(folder / "run/m.sock", folder / "mine/m.sock")
        try:
            address.listen(socket.SOCK_STREAM, address.path, 0o660, None)
        except AddressError as error:
            return str(error)
        return ""

    with Forked(serve, uid=65_534) as user:
        assert "run/m.sock: cannot listen: Permission denied; " in user.result
        assert "choose another place with --socket" in user.result


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder to another user")
def test_a_control_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run-control").mkdir()
    os.chown(tmp_path / "run-control", 4711, -1)
    with pytest.raises(AddressError, match=r"run-control: belongs to uid 4711"):
        address_at(tmp_path / "run" / "m.sock")


def test_a_lock_file_that_was_removed_while_we_waited_does_not_count(tmp_path: Path) -> None:
    """The lock of the old inode is worthless: the owner of the new file would not see it."""
    path = tmp_path / "run" / "m.sock"
    first = address_at(path)
    (tmp_path / "run-control" / "m.sock.lock").unlink()
    second = address_at(path)
    with pytest.raises(AddressError):
        address_at(path)
    second.release()
    first.release()

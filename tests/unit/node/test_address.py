"""One daemon a path; a dead one's socket is taken over; nothing is left behind."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mfsd.node.address import Address, AddressError


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run" / "m.sock"
    first = Address(path)
    with pytest.raises(AddressError, match=rf"another mfsd \(pid {os.getpid()}\) serves it; stop that one or choose"):
        Address(path)
    first.release()
    Address(path).release()
    assert list(path.parent.iterdir()) == []


def test_what_a_dead_owner_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    script = (
        "import os, socket, sys; from pathlib import Path; from mfsd.node.address import Address\n"
        "Address(Path(sys.argv[1])).listen(socket.SOCK_SEQPACKET, '', 0o600, None)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == -9
    assert path.is_socket()
    address = Address(path)
    listener = address.listen(socket.SOCK_SEQPACKET, "", 0o640, None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    listener.close()
    address.release()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    path.write_text("precious")
    address = Address(path)
    with pytest.raises(AddressError, match="exists and is not a socket; remove it or choose another place"):
        address.listen(socket.SOCK_STREAM, "", 0o600, None)
    address.release()
    assert path.read_text() == "precious"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AddressError, match=r"cannot be created: .* choose another place with --socket"):
        Address(tmp_path / "file" / "m.sock")


def test_a_lock_file_that_was_removed_while_we_waited_does_not_count(tmp_path: Path) -> None:
    """The lock of the old inode is worthless: the owner of the new file would not see it."""
    path = tmp_path / "m.sock"
    first = Address(path)
    (tmp_path / "m.sock.lock").unlink()
    second = Address(path)
    with pytest.raises(AddressError):
        Address(path)
    second.release()
    first.release()

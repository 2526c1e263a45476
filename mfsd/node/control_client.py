"""The client half of :mod:`mfsd.node.control`: asks the daemon. Blocking, for command lines."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from mfsd.node.address import control_beside
from mfsd.node.control import LINE_BYTES_MAX, ErrorReply, ProtocolError, Reply, Request, decode_reply, encode

DEFAULT_SOCKET = Path("/run/mfs/mfsd.sock")


class Unreachable(Exception):
    """No daemon answers. ``str()`` names the socket and the remedy."""


class Forbidden(Unreachable):
    """This user may not open the control socket, whether a daemon is there or not."""


class Refused(Exception):
    """The daemon answered with an error."""

    def __init__(self, reply: ErrorReply) -> None:
        self.code = reply.code
        super().__init__(reply.message)


def default_socket() -> Path:
    """``$MFS_SOCKET``, as for programs under the shim, else the system's default."""
    return Path(os.environ.get("MFS_SOCKET") or DEFAULT_SOCKET)


def default_control() -> Path:
    """``$MFS_CONTROL``, for a daemon with `socket.control`; else that of the daemon that programs find."""
    named = os.environ.get("MFS_CONTROL")
    return Path(named) if named else control_beside(default_socket())


def ask(control: Path, request: Request, timeout_s: float = 5.0) -> Reply:
    """Sends one request to the daemon at this control socket and returns its answer. Raises Unreachable or Refused."""
    with Conversation(control, request, timeout_s) as conversation:
        return conversation.reply()


class Conversation:
    """A connection on which one request has been sent."""

    def __init__(self, control: Path, request: Request, timeout_s: float = 5.0) -> None:
        """Connects and sends. Raises Unreachable."""
        self._control, self._timeout_s = control, timeout_s
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(timeout_s)
        with contextlib.ExitStack() as undo:
            undo.callback(self._connection.close)
            with _explained(control, timeout_s):
                self._connection.connect(str(control))
                self._connection.sendall(encode(request))
            undo.pop_all()
        self._lines = self._connection.makefile("rb")

    def reply(self) -> Reply:
        """Returns the next reply. Raises Unreachable or Refused."""
        with _explained(self._control, self._timeout_s):
            line = self._lines.readline(LINE_BYTES_MAX)
            if not line.endswith(b"\n"):
                raise _cut_off(self._control, len(line))
            reply = decode_reply(line)
        if isinstance(reply, ErrorReply):
            raise Refused(reply)
        return reply

    def wait_patiently(self) -> None:
        """Lets further replies take any time: a daemon that stood still goes on."""
        self._connection.settimeout(None)

    def give_up(self) -> None:
        """Makes a caller that waits for a reply get Unreachable. May be called from another thread."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        """Says that no more requests follow. May be called from another thread."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._connection.close()


def _cut_off(control: Path, size_bytes: int) -> Unreachable:
    if size_bytes == LINE_BYTES_MAX:
        return Unreachable(f"mfsd at {control} answers with more than {LINE_BYTES_MAX >> 20} MiB, which are not read")
    return Unreachable(
        f"mfsd at {control} closed the connection before it had answered: it stops, or has too many connections of "
        "users that ask; ask again"
    )


@contextlib.contextmanager
def _explained(control: Path, timeout_s: float) -> Iterator[None]:
    """Turns errors of the socket into Unreachable."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise Unreachable(
            f"no mfsd at {control}: start it (systemctl start mfsd), or name its socket with --socket or MFS_SOCKET; "
            "if mfsd.toml sets socket.control, that one with --control or MFS_CONTROL"
        ) from error
    except PermissionError as error:
        raise Forbidden(f"{control}: permission denied: run as root or as a member of the socket's group") from error
    except (TimeoutError, BlockingIOError) as error:
        raise Unreachable(
            f"mfsd at {control} does not answer within {timeout_s:g} s: it hangs or is stopped"
        ) from error
    except ProtocolError as error:
        raise Unreachable(f"{control}: {error}: is this another version of mfsd?") from error
    except OSError as error:
        if error.errno == errno.EPROTOTYPE:
            raise Unreachable(
                f"{control}: programs attach here; mfsctl asks at socket.control of mfsd.toml, which is "
                f"{control_beside(control)} unless set: name that with --control, or this one with --socket"
            ) from error
        raise Unreachable(f"{control}: {error.strerror or error}") from error

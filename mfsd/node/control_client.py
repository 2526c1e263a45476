"""Asks the daemon: the client half of :mod:`mfsd.node.control`, blocking, for command lines."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from mfsd.node.control import LINE_BYTES_MAX, ErrorReply, ProtocolError, Reply, Request, decode_reply, encode

DEFAULT_SOCKET = Path("/run/mfs/mfsd.sock")
CONTROL_SUFFIX = ".ctl"


class Unreachable(Exception):
    """No daemon answers. ``str()`` says where it was looked for and what to do."""


class Refused(Exception):
    """The daemon answered with an error."""

    def __init__(self, reply: ErrorReply) -> None:
        self.code = reply.code
        super().__init__(reply.message)


def default_socket() -> Path:
    """``$MFS_SOCKET``, as programs under the shim use it, or the system's place."""
    return Path(os.environ.get("MFS_SOCKET") or DEFAULT_SOCKET)


def ask(path: Path, request: Request, timeout_s: float = 5.0) -> Reply:
    """Sends one request to the daemon that serves ``path`` and waits for its answer. Unreachable or
    Refused."""
    address = f"{path}{CONTROL_SUFFIX}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(address)
            connection.sendall(encode(request))
            with connection.makefile("rb") as lines:
                reply = decode_reply(lines.readline(LINE_BYTES_MAX))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise Unreachable(
            f"no mfsd at {path}: start it (systemctl start mfsd), or name its socket with --socket or MFS_SOCKET"
        ) from error
    except PermissionError as error:
        raise Unreachable(f"{address}: permission denied: run as root or as a member of the socket's group") from error
    except (TimeoutError, BlockingIOError) as error:
        raise Unreachable(f"mfsd at {path} does not answer within {timeout_s:g} s: it hangs or is stopped") from error
    except ProtocolError as error:
        raise Unreachable(f"{address}: {error}: is this another version of mfsd?") from error
    except OSError as error:
        raise Unreachable(f"{address}: {error.strerror or error}") from error
    if isinstance(reply, ErrorReply):
        raise Refused(reply)
    return reply

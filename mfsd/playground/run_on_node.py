"""Runs a program on a node of a playground that runs already."""

from __future__ import annotations

import os
import signal
import subprocess

from mfsd.playground.cluster import with_device
from mfsd.playground.network import on_node
from mfsd.playground.sandbox import die_with_parent, enter
from mfsd.playground.state import Node, PlaygroundError, State


def run_on(state: State, node: Node, command: list[str]) -> int:
    """The exit status of the command, as shells tell it. It finds the node's RDMA device, and the daemon by MFS_SOCKET.
    PlaygroundError when the playground cannot be entered."""
    try:
        enter(state.pid)
    except OSError as error:
        raise PlaygroundError(
            f"cannot enter the playground ({error.strerror or error}); is it yours, and does it still run?"
        ) from None
    environment = {**os.environ, "MFS_SOCKET": node.socket, "XDG_RUNTIME_DIR": "/run/user"}
    child = subprocess.Popen(
        on_node(node.name, [*with_device(node), *command]), env=environment, preexec_fn=die_with_parent
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the program, too
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _: child.send_signal(got))
    code = child.wait()
    return 128 - code if code < 0 else code

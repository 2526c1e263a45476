"""Runs a program on a node of a running playground."""

from __future__ import annotations

import os
import signal
import subprocess

from mfsd.playground.cluster import with_device
from mfsd.playground.network import on_node
from mfsd.playground.sandbox import die_with_parent, enter
from mfsd.playground.state import Node, PlaygroundError, State

AWAITED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP}


def run_on(state: State, node: Node, command: list[str]) -> int:
    """Runs the command on the node and returns its exit status as a shell would. The command finds the node's RDMA
    device, and the daemon by MFS_SOCKET. PlaygroundError if the playground cannot be entered."""
    try:
        enter(state.pid)
    except OSError as error:
        raise PlaygroundError(
            f"cannot enter the playground ({error.strerror or error}); check that it is yours and still runs"
        ) from None
    environment = {**os.environ, "MFS_SOCKET": node.socket, "XDG_RUNTIME_DIR": "/run/user"}
    return run(on_node(node.name, [*with_device(node), *command]), environment)


def run(command: list[str], environment: dict[str, str]) -> int:
    """Runs the command and returns its exit status as a shell would. Signals that would end this process are passed on
    to the command.

    This waits for the signals and has no handlers. Python runs a handler between two instructions: the handler of a
    signal that arrives just before a wait for the child would run after the wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    child = subprocess.Popen(command, env=environment, preexec_fn=_begin)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal also sends it to the program
    while (code := child.poll()) is None:
        number = signal.sigwait(AWAITED)
        if number != signal.SIGCHLD:
            child.send_signal(number)
    return 128 - code if code < 0 else code


def _begin() -> None:
    """Prepares the child before it runs the command."""
    die_with_parent()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)

"""The part of the playground outside the sandbox: its folder, its loopback ports, and its start and end."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from mfsd.children import python_module
from mfsd.playground.cluster import Cluster, Options, doors_inside, layout
from mfsd.playground.sandbox import SandboxError, run_sandboxed
from mfsd.playground.state import PlaygroundError, State, own_folder, publish

EXIT_FAILED = 1


def run(options: Options, ready: Callable[[State], None], say: Callable[[str], None]) -> int:
    """Runs a playground until it is interrupted; returns the exit status. `ready` is called once all is up, `say` with
    lines about what happens. PlaygroundError if it cannot start here."""
    with ExitStack() as stack:
        folder = stack.enter_context(own_folder())
        ports = stack.enter_context(_doors(folder, options.coordinators))
        state = layout(options, folder, list(zip(ports[::2], ports[1::2], strict=True)))

        def started(pid: int) -> None:
            state.pid = pid

        def inside() -> int:
            cluster = Cluster(options, state, say)
            try:
                cluster.start()
                publish(state)
                ready(state)
                cluster.watch()
            except (PlaygroundError, OSError, subprocess.SubprocessError) as error:
                say(str(error))
                return EXIT_FAILED
            finally:
                cluster.stop()
            return 0

        try:
            return run_sandboxed(inside, started)
        except SandboxError as error:
            raise PlaygroundError(f"cannot make nodes: {error}") from error


@contextmanager
def _doors(folder: Path, coordinators: int) -> Iterator[list[int]]:
    """Listens on loopback for each coordinator and its page. Yields the ports, in the order of `doors_inside`."""
    with ExitStack() as stack:
        command, ports, descriptors = python_module("mfsd.playground.relay"), [], []
        for path, _ in doors_inside(folder, coordinators):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            ports.append(listener.getsockname()[1])
            descriptors.append(listener.fileno())
            command += [str(listener.fileno()), str(path)]
        # A new session: Ctrl-C then ends the sandbox first, and the relay ends with this process.
        relay = subprocess.Popen(command, pass_fds=descriptors, start_new_session=True)
        try:
            yield ports
        finally:
            relay.terminate()
            relay.wait()


def as_json(state: State) -> bytes:
    """Returns the state as one JSON object, for programs."""
    return msgspec.json.encode(state)

"""TCP ports for programs that need one by option."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket

FIRST, COUNT = 20_000, 12_000
"""Below those that the kernel gives to connections and listeners by itself (32768 and above)."""

_ports = itertools.count(random.randrange(COUNT))


def free_port() -> int:
    """One that is free here, that this process was not given before, and that no process gets by chance before the
    program listens on it: also in another network namespace, where it cannot be tried.

    A port of the kernel's choice (bind to 0) is none of that: ended connections of others keep such ports for a minute.
    """
    for number in itertools.islice(_ports, COUNT):
        port = FIRST + number % COUNT
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"no free TCP port in {FIRST}..{FIRST + COUNT - 1}")

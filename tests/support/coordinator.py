"""A coordinator in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.ports import free_port
from tests.conftest import wait_for_listener

Running = tuple[subprocess.Popen[str], str]
"""The process and its address."""


@contextmanager
def running_coordinator() -> Iterator[Running]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "mfsd.cli.daemon", "--coordinator", "--listen", f"127.0.0.1:{port}"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_listener(port, process)
        yield process, f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()

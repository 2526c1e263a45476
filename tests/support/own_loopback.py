"""A separate network for a test. Its loopback has only packets of the test's own processes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mfsd.playground.network import ip

CLONE_NEWNET = 0x40000000


@contextmanager
def own_loopback() -> Iterator[None]:
    """Moves this thread, and the processes and threads that it starts in the block, into a network namespace that has
    only loopback, so that nothing can be fetched there. Skips the test if this user may not make one."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            pytest.skip(f"a network namespace of its own: {os.strerror(ctypes.get_errno())}")
        try:
            ip("link", "set", "dev", "lo", "up")
            yield
        finally:
            assert libc.setns(before, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(before)

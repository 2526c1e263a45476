"""A network of a test's own: its loopback has the packets of what the test starts and no others."""

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
    """This thread, and processes and threads that it starts meanwhile, are in a network namespace with nothing in it
    but loopback: nothing can be fetched there. Skips the test where this user may make none."""
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

"""Where a DSCP is changed: how far the routers are asked. tests/integration/test_fabric_probe.py has routers."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from mfsd.fabric.probe import Reflector, find_change
from tests.support.own_loopback import own_loopback

NEVER_S = 1000.0
"""Longer than a test may take."""


@pytest.fixture
def reflector() -> Iterator[Reflector]:
    with own_loopback():  # its port is free for UDP and TCP
        made = Reflector("127.0.0.1", 0)
        thread = threading.Thread(target=made.run, daemon=True)
        thread.start()
        yield made
        made.stop()
        thread.join(100)
        made.close()


def test_no_router_is_asked_behind_the_peer(reflector: Reflector) -> None:
    """None would answer, and each was waited for."""
    where = find_change(("127.0.0.1", reflector.port), 26, timeout_s=NEVER_S)
    assert where == "behind the last router that answers, or at the peer"

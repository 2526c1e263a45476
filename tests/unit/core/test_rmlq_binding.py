"""Rmlq passes destinations on as they are."""

from __future__ import annotations

import pytest

from mfsd._native import Rmlq

REUSE = 1


def test_a_closed_destination_is_passed_over_until_it_opens() -> None:
    queue = Rmlq(10**9)
    first, second = (queue.submit(0, 1, stage=REUSE, destination=place) for place in (8191, 4))
    queue.close_destination(8191)
    assert (queue.waiting(), queue.waiting_at(8191), queue.waiting_at(4)) == (2, 1, 1)
    picked = queue.pick(0)
    assert picked is not None
    assert (picked.handle, picked.destination) == (second, 4)
    assert queue.pick(0) is None
    assert queue.place(first).destination == 8191
    queue.open_destination(8191)
    picked = queue.pick(0)
    assert picked is not None
    assert picked.handle == first


def test_a_destination_that_there_cannot_be_is_named() -> None:
    queue = Rmlq(10**9)
    for call in (
        lambda: queue.submit(0, 1, stage=REUSE, destination=8192),
        lambda: queue.close_destination(8192),
        lambda: queue.open_destination(8192),
        lambda: queue.waiting_at(8192),
    ):
        with pytest.raises(ValueError, match="destination: 8192, use one below 8192"):
            call()

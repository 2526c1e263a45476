"""The link's search for a leader, where what coordinators say is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mfsd.node.link_interface import Identity, LinkSettings
from mfsd.node.link_state import LinkState
from mfsd.node.link_stream import REDIRECTS_AT_ONCE, SILENCE_MAX_S, LinkStream, _Redirect, _silence_s
from tests.support.cluster import Lines, Recorder, in_loop


class Enough(Exception):
    pass


@in_loop
async def test_coordinators_that_name_each_other_are_not_asked_without_a_pause() -> None:
    settings = LinkSettings(addresses=("a:1",))
    state = LinkState(Identity("n", "test", 1), {}, settings.ttl_ns)
    stream: Any = LinkStream(settings, state, Recorder(), Lines(), asyncio.Event(), lambda: 1)
    asked: list[str] = []
    paused_s: list[float] = []

    async def attempt(address: str) -> None:
        asked.append(address)
        if len(asked) > 10:
            raise Enough
        raise _Redirect("b:1" if address == "a:1" else "a:1")

    real: Callable[[float], Any] = asyncio.sleep

    async def sleep(time_s: float) -> None:
        paused_s.append(time_s)
        await real(0)

    stream._attempt = attempt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "sleep", sleep)
        with pytest.raises(Enough):
            await stream._follow()
    assert asked[:3] == ["a:1", "b:1", "a:1"]
    assert not any(paused_s[:REDIRECTS_AT_ONCE]), "a real leader is followed at once"
    assert all(paused_s[REDIRECTS_AT_ONCE:])


@in_loop
async def test_an_update_waits_only_after_another() -> None:
    settings = LinkSettings(addresses=("a:1",))
    state = LinkState(Identity("n", "test", 1), {}, settings.ttl_ns)
    wake = asyncio.Event()
    stream: Any = LinkStream(settings, state, Recorder(), Lines(), wake, lambda: 1)
    stream.wake_soon(60.0)
    assert wake.is_set(), "nothing has been reported for longer than that"
    wake.clear()
    stream._reported_s = asyncio.get_running_loop().time()
    for interval_s in (60.0, 30.0, 40.0):
        stream.wake_soon(interval_s)
    assert not wake.is_set()
    assert stream._waking.when() == stream._reported_s + 30.0, "the soonest counts"
    stream.wake_soon(0.0)
    assert wake.is_set() and stream._waking is None, "and takes the others with it"


def test_a_heartbeat_beyond_reason_does_not_make_the_link_wait_for_ever() -> None:
    assert _silence_s(10_000_000_000) == SILENCE_MAX_S, "the slowest that can be configured"
    assert _silence_s(2**64 - 1) == SILENCE_MAX_S

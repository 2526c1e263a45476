"""One client's request while it goes on: it can be ended from outside, with an error as the end of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from mfsd.serve.gateway.answer import INTERNAL, Answer, Receive, Refused, Scope

DISCONNECT: Final = "mfs.disconnect"
"""Of a request's scope: its `Disconnect`, where the web server has one. A task that asks it for messages costs more."""


class Disconnect:
    """Tells once that the client has left."""

    __slots__ = ("_then", "has_happened")

    def __init__(self) -> None:
        self.has_happened = False
        self._then: Callable[[], object] = _nothing

    def then(self, call: Callable[[], object]) -> None:
        """At once where it has; in place of what was to be called before."""
        self._then = call
        if self.has_happened:
            call()

    def happened(self) -> None:
        self.has_happened = True
        self._then()


def _nothing() -> None: ...


class Ongoing:
    """Made in the task that serves the request."""

    __slots__ = ("_task", "refused")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self.refused: Refused | None = None
        """Why it was ended; the task gets CancelledError, and answers that."""

    def end(self, refused: Refused) -> None:
        if self.refused is None:
            self.refused = refused
            self._task.cancel()


async def until_left(
    every: set[Ongoing], answer: Answer, scope: Scope, receive: Receive, serve: Callable[[Ongoing], Awaitable[str]]
) -> str:
    """The outcome of `serve`, also where the client leaves or the request is ended from outside. An error of the
    gateway itself is answered and raised. every: has the request while it goes on."""
    left = False
    task = asyncio.current_task()
    assert task is not None

    def leaves() -> None:
        nonlocal left
        left = True
        task.cancel()

    unwatch = _watch(scope, receive, leaves)
    ongoing = Ongoing()
    every.add(ongoing)
    try:
        return await serve(ongoing)
    except asyncio.CancelledError:
        if left:
            return "withdrawn"
        if ongoing.refused is None:
            raise
        unwatch()  # a client that leaves now ends nothing but this answer
        await answer.failed(ongoing.refused)
        return "failed"
    except Exception:
        await answer.failed(INTERNAL)
        raise
    finally:
        unwatch()
        every.discard(ongoing)


def _watch(scope: Scope, receive: Receive, leaves: Callable[[], None]) -> Callable[[], object]:
    """Calls it when the client leaves, until what is returned is called."""
    disconnect: Disconnect | None = scope.get(DISCONNECT)
    if disconnect is not None:
        disconnect.then(leaves)
        return lambda: disconnect.then(_nothing)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leaves()

    return asyncio.create_task(watch()).cancel

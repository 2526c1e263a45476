"""A client's request in progress. It can be ended from outside, with an error as the end of its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from mfsd.serve.gateway.answer import INTERNAL, Answer, Receive, Refused, Scope

DISCONNECT: Final = "mfs.disconnect"
"""Key of the `Disconnect` in a request's scope, if the web server supports it. It costs less than a task that waits for
messages."""


class Disconnect:
    """Calls a function once when the client has left."""

    __slots__ = ("_then", "has_happened")

    def __init__(self) -> None:
        self.has_happened = False
        self._then: Callable[[], object] = _nothing

    def then(self, call: Callable[[], object]) -> None:
        """Sets the function, in place of an earlier one. It is called at once if the client has already left."""
        self._then = call
        if self.has_happened:
            call()

    def happened(self) -> None:
        self.has_happened = True
        self._then()


def _nothing() -> None: ...


class Ongoing:
    """A request in progress. Make it in the task that serves the request."""

    __slots__ = ("_task", "refused")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self.refused: Refused | None = None
        """Why it was ended. The task gets CancelledError and answers with this."""

    def end(self, refused: Refused) -> None:
        if self.refused is None:
            self.refused = refused
            self._task.cancel()


async def until_left(
    every: set[Ongoing], answer: Answer, scope: Scope, receive: Receive, serve: Callable[[Ongoing], Awaitable[str]]
) -> str:
    """Runs `serve` and returns its outcome, also if the client leaves or the request is ended from outside. An error of
    the gateway itself is answered and then raised. every: contains the request while it is in progress."""
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
        unwatch()  # a client that leaves from now on ends only this answer
        await answer.failed(ongoing.refused)
        return "failed"
    except Exception:
        await answer.failed(INTERNAL)
        raise
    finally:
        unwatch()
        every.discard(ongoing)


def _watch(scope: Scope, receive: Receive, leaves: Callable[[], None]) -> Callable[[], object]:
    """Calls `leaves` when the client leaves. Returns a function that stops this."""
    disconnect: Disconnect | None = scope.get(DISCONNECT)
    if disconnect is not None:
        disconnect.then(leaves)
        return lambda: disconnect.then(_nothing)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leaves()

    return asyncio.create_task(watch()).cancel

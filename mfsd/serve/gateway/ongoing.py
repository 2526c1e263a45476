"""One client's request while it goes on: it can be ended from outside, with an error as the end of its answer."""

from __future__ import annotations

import asyncio

from mfsd.serve.gateway.answer import Refused


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

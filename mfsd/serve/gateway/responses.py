"""Which replica keeps an answer of /v1/responses.

Engines keep theirs in their own memory, so that only the same one can serve a request that goes on from it
(`previous_response_id`)."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, Final

PATH: Final = "/v1/responses"
RESPONSES_MAX: Final = 65_536
HEAD_BYTES: Final = 65_536
"""An answer names itself in its first event, or among the first of its fields."""
ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,128})"')


class Responses:
    """Of the latest answers; what is older is routed as any other request."""

    def __init__(self, most: int = RESPONSES_MAX) -> None:
        self._most = most
        self._replica: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replica)

    def learn(self, answer: bytes, replica: str) -> bool:
        """Whether the answer, or its beginning, has its name in it."""
        found = ID.search(answer[:HEAD_BYTES])
        if found is None:
            return False
        name = found[1].decode(errors="replace")
        self._replica[name] = replica
        self._replica.move_to_end(name)
        if len(self._replica) > self._most:
            self._replica.popitem(last=False)
        return True

    def keeper(self, body: dict[str, Any]) -> str | None:
        """The replica that has what the request goes on from; None: nothing, or nothing known."""
        name = body.get("previous_response_id")
        if not isinstance(name, str) or name not in self._replica:
            return None
        self._replica.move_to_end(name)
        return self._replica[name]

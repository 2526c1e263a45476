"""Remembers which replica keeps an answer of /v1/responses.

Engines keep answers in their own memory, so only the same engine can serve a request that continues from one
(`previous_response_id`)."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any, Final

import msgspec

PATH: Final = "/v1/responses"
RESPONSES_MAX: Final = 65_536
ID_LENGTH_MAX: Final = 256


class _Answer(msgspec.Struct):
    id: str = ""


class _Event(msgspec.Struct):
    response: _Answer = msgspec.field(default_factory=_Answer)


_NONE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ANSWER: Final = msgspec.json.Decoder(_Answer)
_EVENT: Final = msgspec.json.Decoder(_Event)


class Responses:
    """The replicas of the latest answers. Requests that continue from an older one are routed as any other."""

    def __init__(self, most: int = RESPONSES_MAX) -> None:
        self._most = most
        self._replica: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replica)

    def learn(self, answer: bytes, replica: str) -> None:
        """Learns from a whole answer, if it has an id."""
        with contextlib.suppress(*_NONE):
            self._keep(_ANSWER.decode(answer).id, replica)

    def learn_stream(self, events: bytes, replica: str) -> bool:
        """Learns from the first event of a stream, which has the answer so far. Returns False if only comments have
        come, with which engines keep connections open."""
        data = next((line for line in events.splitlines() if line.startswith(b"data:")), None)
        if data is None:
            return False
        with contextlib.suppress(*_NONE):
            self._keep(_EVENT.decode(data.removeprefix(b"data:")).response.id, replica)
        return True

    def _keep(self, name: str, replica: str) -> None:
        if not 0 < len(name) <= ID_LENGTH_MAX:
            return
        self._replica[name] = replica
        self._replica.move_to_end(name)
        if len(self._replica) > self._most:
            self._replica.popitem(last=False)

    def keeper(self, body: dict[str, Any]) -> str | None:
        """Returns the replica with the answer that the request continues from; None if it continues from none or the
        replica is unknown."""
        name = body.get("previous_response_id")
        return self.keeper_of(name) if isinstance(name, str) else None

    def keeper_of(self, name: str) -> str | None:
        """Returns the replica that keeps the answer of this name; None if unknown."""
        if name not in self._replica:
            return None
        self._replica.move_to_end(name)
        return self._replica[name]

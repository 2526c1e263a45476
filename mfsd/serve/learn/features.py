"""Features of a call when it arrives: its place in the workflow, its prompt, and the calls before it."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from mfsd.serve.learn.rows import RequestRow

FEATURES: Final = (
    "role", "position", "invocation", "tools", "prompt_tokens", "new_tokens", "after_tool", "previous_tool_call",
    "previous_output_tokens",
)  # fmt: skip
"""Names of the features. A model that was learned with others is refused."""
CATEGORICAL: Final = ("role",)
TOOL_PROBABILITY: Final = "tool_probability"
"""The additional feature of the regressors of lengths: the result of the classifier."""
SESSIONS_MAX: Final = 65_536


def features_hash() -> str:
    return hashlib.sha256("\n".join((*FEATURES, TOOL_PROBABILITY)).encode()).hexdigest()[:16]


class CallInfo(NamedTuple):
    """A call on arrival. A field of None is not known."""

    role: str = ""
    position: int = 0
    """Number of the call in its session, from 0."""
    invocation: int = 0
    """Number of the call among those of its role in the session, from 0."""
    tools: int = 0
    prompt_tokens: int = 1
    new_tokens: int = 1
    """Prompt tokens that the role's previous call did not have."""
    after_tool: bool | None = None
    previous_tool_call: bool | None = None
    """Of the role's previous call, as is the next field."""
    previous_output_tokens: int | None = None


def vector(call: CallInfo, roles: Sequence[str]) -> tuple[float, ...]:
    """Returns the values in the order of FEATURES. Unknown values and roles that were not learned are NaN (missing)."""
    return (
        float(roles.index(call.role)) if call.role in roles else math.nan,
        float(call.position),
        float(call.invocation),
        float(call.tools),
        float(call.prompt_tokens),
        float(call.new_tokens),
        _or_missing(call.after_tool),
        _or_missing(call.previous_tool_call),
        _or_missing(call.previous_output_tokens),
    )


def _or_missing(value: float | None) -> float:
    return math.nan if value is None else float(value)


class Sessions:
    """Turns requests, in order of time, into calls: counts positions and remembers the previous calls.

    It remembers so many sessions, and so many roles of all sessions together; those that ended a call the longest ago
    are forgotten and begin anew."""

    def __init__(self, most: int = SESSIONS_MAX) -> None:
        self._most = most
        self._positions: OrderedDict[int | str, int] = OrderedDict()
        self._before: OrderedDict[tuple[int | str, str], tuple[int, RequestRow]] = OrderedDict()

    def __len__(self) -> int:
        return max(len(self._positions), len(self._before))

    def call(self, row: RequestRow) -> CallInfo:
        """Returns the call of a row, without the row's own answer. `ended` makes the answer known to later calls."""
        position = self._positions.get(row.session_id, 0)
        count, before = self._before.get((row.session_id, row.role), (0, None))
        seen = before.input_length + before.output_length if before else 0
        return CallInfo(
            role=row.role,
            position=position,
            invocation=count,
            tools=row.tools,
            prompt_tokens=row.input_length,
            new_tokens=max(0, row.input_length - seen),
            after_tool=row.after_tool,
            previous_tool_call=before.tool_call if before else None,
            previous_output_tokens=before.output_length if before else None,
        )

    def ended(self, row: RequestRow) -> None:
        self._positions[row.session_id] = self._positions.pop(row.session_id, 0) + 1
        count, _ = self._before.pop((row.session_id, row.role), (0, row))
        self._before[row.session_id, row.role] = (count + 1, row)
        for table in (self._positions, self._before):
            if len(table) > self._most:
                table.popitem(last=False)


def calls_of(rows: Iterable[RequestRow]) -> list[CallInfo]:
    sessions = Sessions()
    found = []
    for row in rows:
        found.append(sessions.call(row))
        sessions.ended(row)
    return found

"""What is known about a request when it arrives, and what it will cost (H-MAS 3.2, Eq 5).

There are three sources, and the first with an answer counts: the request itself, the history of its tenant and
application, a prior. Unreadable data makes the request unknown. An unknown request gets the statistics of all requests
and is never specialised: no guess from its application decides about it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from enum import Enum
from typing import Final, NamedTuple

KEYS_MAX: Final = 4096
NEW: Final = 0.05
"""Weight of the latest output in a mean."""


class Source(str, Enum):
    REQUEST = "request"
    HISTORY = "history"
    PRIOR = "prior"


class Perceived(NamedTuple):
    output_tokens: float
    source: Source
    known: bool
    """Whether its application may specialise the request."""


class Outputs:
    """Mean outputs by (tenant, application), and of all requests that ended. The oldest key is forgotten first."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._mean: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._all: float | None = None

    def ended(self, tenant: str, application: str, produced: int) -> None:
        self._all = float(produced) if self._all is None else self._all + NEW * (produced - self._all)
        if not application:
            return
        key = (tenant, application)
        mean = self._mean.pop(key, float(produced))
        if len(self._mean) >= self._keys_max:
            self._mean.popitem(last=False)
        self._mean[key] = mean + NEW * (produced - mean)

    def perceive(self, tenant: str, application: str, announced_tokens: float | None, prior_tokens: float) -> Perceived:
        """Predicts the output of a request.

        `announced_tokens` is what the request says about it: None if nothing, no number from 1 if it cannot be used.
        """
        if announced_tokens is None and application:
            mean = self._mean.get((tenant, application))
            if mean is not None:
                return Perceived(mean, Source.HISTORY, True)
        if announced_tokens is not None and 1 <= announced_tokens < math.inf:
            return Perceived(float(announced_tokens), Source.REQUEST, bool(application))
        everything = prior_tokens if self._all is None else self._all
        return Perceived(everything, Source.PRIOR, False)


class Cost(NamedTuple):
    """T_tot, D and S of Eq 5, in seconds."""

    total_s: float
    due_s: float
    """When the whole answer is due."""
    slack_s: float


def cost_of(
    arrival_s: float,
    prompt_tokens: int,
    output_tokens: float,
    ttft_s: float,
    tbt_s: float,
    prefill_s_per_token: float,
    decode_step_s: float,
    delay_s: float = 0.0,
) -> Cost:
    """T_tot = prefill + output x decode step; D = arrival + TTFT + TBT x output; S = D - V_sys - T_tot.

    V_sys is the engine's present time plus its delay; `delay_s` is both together.
    """
    total_s = prompt_tokens * prefill_s_per_token + output_tokens * decode_step_s
    due_s = arrival_s + ttft_s + tbt_s * output_tokens
    return Cost(total_s, due_s, due_s - delay_s - total_s)

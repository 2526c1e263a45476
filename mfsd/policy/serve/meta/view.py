"""What the meta controller sees: V_short and V_long (H-MAS 3.3). Both can be recorded as JSON and read back."""

from __future__ import annotations

from typing import Final

import msgspec

LOAD_MAX: Final = 1e6


class ShortView(msgspec.Struct, frozen=True, kw_only=True):
    """The short window, for the guards."""

    evaluated: int = 0
    """Requests whose first token came, or became late, in the window."""
    late_share: float = 0.0
    ttft_p99_s: float = 0.0


class LongView(msgspec.Struct, frozen=True, kw_only=True):
    """The long window, for decisions."""

    arrived: int = 0
    arrivals_per_s: float = 0.0
    unknown_share: float = 0.0
    service_mean_s: float = 0.0
    """Mean T_tot of requests that arrived."""
    service_cv: float = 0.0
    """Its standard deviation over its mean: how mixed lengths are."""
    evaluated: int = 0
    late_share: float = 0.0
    late_short: float = 0.0
    """Late share of requests up to the median T_tot."""
    late_long: float = 0.0
    late_tokens_share: float = 0.0
    """Share of the ended requests whose mean time between tokens was above their limit."""
    tenant_worst: float = 0.0
    """Largest late share of a tenant with enough requests. Of requests up to the median service time, as the next."""
    tenant_others: float = 0.0
    """Mean late share of the other tenants."""
    in_time_share: float = 0.0
    """Share in time, by first and by later tokens, of the requests that ended since the previous decision."""


class Views(msgspec.Struct, frozen=True, kw_only=True):
    short: ShortView = ShortView()
    long: LongView = LongView()
    queued_s: float = 0.0
    """Time to compute the waiting prompts."""
    tightest_s: float = 0.0
    """The least time limit for a first token among waiting requests. 0: none waits."""

    @property
    def load(self) -> float:
        """At most LOAD_MAX. A time limit next to zero must not make it infinite, which no record could hold."""
        return min(LOAD_MAX, self.queued_s / self.tightest_s) if self.tightest_s > 0 else 0.0

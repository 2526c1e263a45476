"""What tests of the simulator share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.sim import generators, point

SHORT_PAST = 100


@pytest.fixture
def short_past(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fewer requests before a run. They are not simulated and only fill caches, yet take nine tenths of a run of a
    dozen requests: for tests of what studies run and write, not of how much is reused."""
    monkeypatch.setattr(generators, "HISTORY", SHORT_PAST)
    point._prepared.cache_clear()  # it knows points by what they ask for alone
    yield
    point._prepared.cache_clear()

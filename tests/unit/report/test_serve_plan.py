"""`bench micro serve_plan`, briefly: every policy is measured, on a queue that gives it something to do."""

import pytest

from bench.micro import serve_plan
from mfsd.policy.serve import Policy


def test_every_policy_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_plan, "PLANS", 2)
    monkeypatch.setattr(serve_plan, "QUEUED", 30)
    results = serve_plan.run()
    assert set(results["plan_cpu_ms"]) == {policy.value for policy in Policy}
    assert all(0 < row["p50"] <= row["max"] for row in results["plan_cpu_ms"].values())

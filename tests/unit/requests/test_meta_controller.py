"""The meta controller over the simulator: it switches, loses nothing, and the same seed gives the same run."""

from __future__ import annotations

from functools import partial

import pytest

from bench.requests import drift, meta, point, policies, regimes, workloads
from bench.requests.point import Point
from bench.requests.settings import Settings
from bench.sim import serving
from bench.sim.serving import Call, ReplicaConfig
from mfsd.policy.serve import Policy, ServeConfig
from mfsd.policy.serve.meta import MetaConfig

METAS = [name for name in policies.DRIFT if name.startswith("meta-")]


@pytest.mark.parametrize("policy", METAS)
def test_a_run_depends_on_its_seed_alone(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    often = partial(
        MetaConfig, pool=(Policy.FCFS, Policy.WFQ, Policy.TWO_LANE), every_s=5.0, requests_min=5, bypass_share=1.0
    )
    monkeypatch.setattr(point, "MetaConfig", often)
    given = Point(
        what="drift",
        workload="shift",
        policy=policy,
        qps=6.0,
        seconds=36.0,
        seed=1,
        settings=Settings(phase_s=12.0, slo_scale=0.3),
    )
    first, again = ({**point.run(given), "cpu_s": 0, "plan_us": 0} for _ in range(2))
    assert first == again
    assert first["unfinished"] == 0 and first["requests"] > 180
    assert first["recovery"] is not None and first["switches"] > (policy == "meta-rules"), "others may stay"


def test_a_switch_in_the_simulator_loses_no_call() -> None:
    serve = ServeConfig(policy=Policy.FCFS, step_tokens=512, requests_max=8)
    config = MetaConfig(pool=(Policy.FCFS, Policy.SRPF), every_s=5.0, requests_min=5, bypass_share=1.0)
    calls = [
        Call(arrival_s=0.1 * n, prompt_tokens=6000 if n % 4 == 0 else 50, output_tokens=5, ttft_s=1.0, tier="t")
        for n in range(400)
    ]
    outcome = serving.simulate(
        ReplicaConfig(serve=serve, lanes=True), calls, control=meta.control(config, serve), control_every_s=1.0
    )
    assert outcome.unfinished == 0
    assert outcome.replicas[0].policies[:2] == ("fcfs", "srpf")


@pytest.mark.parametrize("name", drift.NAMES)
def test_slices_have_the_mean_rate_that_is_asked(name: str) -> None:
    made = workloads.generate("drift", name, Settings(), 10.0, 5, 600.0, None)
    calls = [call for call in made.work if isinstance(call, Call)]
    assert len(calls) / 600 == pytest.approx(10, rel=0.1)
    assert "generated" in made.source


def test_slices_change_what_they_say() -> None:
    burst = [c.arrival_s % 20 for c in _calls("burst")]
    assert sum(at < 4 for at in burst) / len(burst) == pytest.approx(0.6, abs=0.03)
    gradual = _calls("gradual")
    assert _output(gradual[-500:]) > 4 * _output(gradual[:500])
    shift = [sum(int(c.arrival_s / 200) == n for c in _calls("shift")) for n in range(3)]
    assert shift[1] > 1.6 * shift[0] and shift[1] > 1.2 * shift[2]


def _calls(name: str) -> list[Call]:
    made = workloads.generate("drift", name, Settings(), 10.0, 5, 600.0, None)
    return [call for call in made.work if isinstance(call, Call)]


def _output(calls: list[Call]) -> float:
    return sum(call.output_tokens for call in calls) / len(calls)


def test_a_regime_is_made_of_each_phase() -> None:
    found = regimes.regimes("rate", 3.0, 301, 30.0)
    assert len(found) == regimes.PHASES
    for features, best in found:
        assert all(0 <= value <= 1 for value in features)
        assert sorted(best) == sorted(policy.value for policy in MetaConfig().pool)

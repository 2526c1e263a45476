"""Batches as the request tier plans them, in the simulator."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from bench.sim import command, policies, serve
from bench.sim import point as points
from bench.sim.batching import FirstComeFirstServed
from bench.sim.cluster import Cluster, Config
from bench.sim.compare import Results
from bench.sim.engine import Simulation
from bench.sim.point import Point, prepare, run, under
from bench.sim.states import Batch
from mfsd.policy.serve import Policy, ServeConfig

BASE = Point(
    config=Config(model="dbrx", gpus=128, hot_fraction=0.5, kv_scale=4.0), rate=0.3, requests=60, warmup=20, seed=3
)
SMALL = ["--gpus", "128", "--requests", "12", "--warmup", "4", "--rate", "0.15", "--policy", "mfs"]


@pytest.mark.parametrize("fetch", ["loaded", "batch", "queued"])
@pytest.mark.parametrize(
    "changes", [{}, {"batch_tokens": 900}, {"burst": 4.0}, {"model": "dbrx,qwen3-coder", "gpus": 256}]
)
def test_first_come_first_served_is_the_same_to_the_bit(fetch: str, changes: dict[str, object]) -> None:
    """Asked through plan_step, it forms the batches that `FirstComeFirstServed` does."""
    config = msgspec.structs.replace(BASE.config, fetch=fetch, **changes)
    point = msgspec.structs.replace(BASE, config=config)
    ends = []
    for planned in (True, False):
        cluster, requests = prepare(point)
        scheduler = serve.scheduler("fcfs", cluster) if planned else FirstComeFirstServed()
        simulation = Simulation(cluster, requests, policies.find("mfs"), scheduler)
        simulation.run()
        ends.append([(s.finish_s, s.request.group) for s in simulation.states])
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", serve.SCHEDULERS)
@pytest.mark.parametrize("fetch", ["loaded", "batch"])
def test_every_scheduler_computes_every_token_and_is_repeatable(name: str, fetch: str) -> None:
    config = msgspec.structs.replace(BASE.config, fetch=fetch)
    point = msgspec.structs.replace(BASE, config=config, requests=40, scheduler=name)
    cluster, requests = prepare(point)
    simulation = Simulation(cluster, requests, policies.find("mfs"), serve.scheduler(name, cluster))
    simulation.run()
    assert all(s.finish_s > 0 and s.done_tokens == s.request.new_tokens for s in simulation.states)
    assert run(point)["ttft_s"] == run(point)["ttft_s"]


def test_schedulers_differ() -> None:
    """Otherwise nothing else here says anything."""
    results = {
        name: run(msgspec.structs.replace(BASE, scheduler=name))["ttft_s"]["mean"] for name in ("fcfs", "srpf", "fit")
    }
    assert len(set(results.values())) == 3


@pytest.mark.parametrize("model", ["dbrx", "llama3-8b-gpu", "llama3-70b"])
def test_the_profile_says_how_long_a_batch_alone_takes(model: str) -> None:
    """Within 15 % on the median of batches it never saw, half of them within; a pace that knew nothing would be at 100
    %."""
    cluster = Cluster(Config(model=model, gpus=256))
    pace, chance, errors = serve.profile(cluster), random.Random(5), []
    for _ in range(60):
        lengths = [(chance.randint(50, 1500), chance.randint(0, 4000)) for _ in range(chance.randint(1, 5))]
        truth = cluster.batch_s(lengths)
        errors.append(abs(pace.step_s(serve.load_of(cluster, lengths)) / truth - 1))
    assert sorted(errors)[30] < 0.15


def test_what_batches_took_is_learned() -> None:
    """Contention stretches batches: the estimate of a unit follows what its own took."""
    config = msgspec.structs.replace(BASE.config, kv_scale=16.0)
    cluster, requests = prepare(msgspec.structs.replace(BASE, config=config))
    planner = serve.Planner(cluster, ServeConfig(policy=Policy.FIT))
    simulation = Simulation(cluster, requests, policies.find("fs"), planner)
    simulation.run()
    fresh = serve.profile(cluster)
    assert planner._states and all(state.pace != fresh for state in planner._states.values())


def test_a_batch_holds_whom_the_plan_names() -> None:
    cluster, requests = prepare(BASE)
    planner = serve.Planner(cluster, ServeConfig(policy=Policy.FIT))
    simulation = Simulation(cluster, requests, policies.find("static"), planner)
    began: list[Batch] = []
    simulation.policy.batch_began = began.append  # type: ignore[method-assign, assignment]
    simulation.run()
    assert max(len(batch.chunks) for batch in began) > 1
    assert all(batch.tokens <= cluster.config.batch_tokens for batch in began)


def test_schedulers_are_compared_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert command.main([*SMALL, "--scheduler", "fcfs,fit", "--json", str(out)]) == 0
    results = json.loads(out.read_text())["results"]
    assert [r["scheduler"] for r in results] == ["fcfs", "fit"]
    assert "mfs fit rate" in capsys.readouterr().err
    assert command.main([*SMALL, "--scheduler", "lifo"]) == 2
    output = capsys.readouterr().err.strip()
    assert output == "bench sim: --scheduler lifo: use fcfs, edf, srpf, hybrid, fit"


def test_files_from_before_there_were_schedulers_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "r.json"
    assert command.main([*SMALL, "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    assert "scheduler" not in content["config"]
    del content["results"][0]["scheduler"]
    out.write_text(json.dumps(content))
    ran: list[Point] = []
    original = points.run
    monkeypatch.setattr(points, "run", lambda p: ran.append(p) or original(p))
    assert command.main([*SMALL, "--scheduler", "fcfs,edf", "--json", str(out)]) == 0
    assert [p.scheduler for p in ran] == ["edf"]

    study = tmp_path / "study.jsonl"
    point = msgspec.structs.replace(BASE, requests=5, warmup=0)
    row = Results(study).of(point)
    assert "scheduler" not in row["point"]
    assert Results(study).of(msgspec.structs.replace(point, scheduler="fit"))["point"]["scheduler"] == "fit"
    ran.clear()
    Results(study).of(point)
    assert not ran


def test_a_study_names_a_scheduler_behind_its_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (under(BASE, "mfs+fit").policy, under(BASE, "mfs+fit").scheduler) == ("mfs", "fit")
    assert under(BASE, "./a+b.py").policy == "./a+b.py" and under(BASE, "./a+b.py").scheduler == "fcfs"
    small = msgspec.structs.replace(BASE, requests=20, warmup=5)
    plain, fit = (Results(tmp_path / "s.jsonl").of_seeds(small, name, [3])[0] for name in ("mfs", "mfs+fit"))
    assert (plain["scheduler"], fit["scheduler"]) == ("fcfs", "fit")
    assert command.main(["study", str(tmp_path / "s.jsonl"), "--policy", "mfs+lifo"]) == 2
    assert "mfs+lifo" in capsys.readouterr().err

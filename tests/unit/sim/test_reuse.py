"""What goes by what the network owes, in the simulator: reuse that is computed again, decode workers by backlog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.sim import command, outlook, policies, serve
from bench.sim.cluster import Config, ConfigError
from bench.sim.compare import Results
from bench.sim.engine import Simulation
from bench.sim.point import Point, measure, prepare, run
from bench.sim.reuse import ReuseConfig

BASE = Point(
    config=Config(
        model="llama3-8b", gpus=128, hot_fraction=0.5, kv_scale=8.0, cache="first-owner", decode_choice="random"
    ),
    workload="mooncake-agent",
    rate=0.8,
    requests=40,
    warmup=20,
    seed=3,
)
SMALL = ["--model", "llama3-8b", "--workload", "mooncake-agent", "--gpus", "128", "--requests", "12", "--warmup", "4"]
SMALL += ["--rate", "0.8", "--hot-fraction", "0.5", "--kv-scale", "4", "--cache", "first-owner", "--policy", "mfs"]


def simulated(policy: str = "mfs", scheduler: str = "fcfs", base: Point = BASE, **reuse: Any) -> Simulation:
    cluster, requests = prepare(base)
    config = ReuseConfig(**reuse)
    simulation = Simulation(cluster, requests, policies.find(policy), serve.scheduler(scheduler, cluster), config)
    simulation.run()
    return simulation


def ends(simulation: Simulation) -> list[tuple[float, int, int]]:
    return [(s.finish_s, s.request.group, s.request.decode) for s in simulation.states]


@pytest.mark.parametrize("policy", ["mfs", "static", "nocont"])
def test_always_at_random_is_the_same_to_the_bit(policy: str) -> None:
    """Whatever is known of backlogs."""
    cluster, requests = prepare(BASE)
    before = Simulation(cluster, requests, policies.find(policy), serve.scheduler("fcfs", cluster))
    before.run()
    blind: tuple[dict[str, Any], ...] = (
        {},
        {"outlook": "coordinator", "age_s": 0.1},
        {"outlook": "none", "error": 4.0},
    )
    for given in blind:
        assert ends(simulated(policy, **given)) == ends(before)


@pytest.mark.parametrize("policy", ["mfs", "static", "nocont"])
@pytest.mark.parametrize(
    "reuse",
    [
        {"rule": "slo"},
        {"rule": "cost", "outlook": "coordinator", "age_s": 0.05, "placement": "backlog"},
        {"rule": "timeout:0.2"},
        {"rule": "slo", "recheck_s": 0.02, "outlook": "local"},
        {"rule": "cost", "parts": True},
    ],
)
def test_every_request_is_computed_and_shipped_whole(policy: str, reuse: dict[str, Any]) -> None:
    """What is not fetched is computed; no request keeps a place in the network that it does not use."""
    routed = {r.number: r for r in prepare(BASE)[1]}
    simulation = simulated(policy, "fit", **reuse)
    for state in simulation.states:
        now, before = state.request, routed[state.request.number]
        assert state.finish_s > 0 and state.done_tokens == now.new_tokens and state.reuse is None
        assert now.new_tokens + now.context_tokens == before.new_tokens + before.context_tokens
        assert now.new_tokens - before.new_tokens == before.remote_tokens - now.remote_tokens
        assert now.deadline_s == before.deadline_s
        of_all = state.cluster.kv_bytes * state.cluster.model.layers
        if reuse["rule"].startswith("timeout") and not now.remote_tokens:
            assert 0 <= state.fetched_bytes <= before.remote_tokens * of_all
        else:
            assert state.fetched_bytes == pytest.approx(now.remote_tokens * of_all)
    assert ends(simulated(policy, "fit", **reuse)) == ends(simulation)


def test_rules_compute_again_what_the_network_is_late_with() -> None:
    late = {
        rule: sum(s.finish_s > s.request.deadline_s for s in simulated(rule=rule).states)
        for rule in ("always", "slo", "cost", "timeout:0.05")
    }
    assert late["slo"] < late["always"] and late["cost"] < late["always"]
    counted = simulated(rule="cost").reuse
    assert counted is not None and counted.recomputed > 0 and counted.expired == 0
    gave_up = simulated(rule="timeout:0.05").reuse
    assert gave_up is not None and gave_up.expired > 0 and gave_up.recomputed == 0
    waits = simulated(rule="cost", recheck_s=0.001).reuse
    assert waits is not None and waits.waited > 0


CROWDED = msgspec.structs.replace(BASE, rate=2.0, workload="mooncake-conversation")
"""Units have queues, so that a part of the reuse comes before they could begin."""


def test_a_part_that_comes_in_time_is_fetched_and_the_rest_computed() -> None:
    routed = {r.number: r for r in prepare(CROWDED)[1]}
    simulation = simulated(base=CROWDED, rule="cost", parts=True)
    assert simulation.reuse is not None
    in_part = [
        s.request for s in simulation.states if 0 < s.request.remote_tokens < routed[s.request.number].remote_tokens
    ]
    assert len(in_part) == simulation.reuse.counts()["parts"] > 0
    for request in in_part:
        assert request.remote_tokens % 16 == 0 and request.owners == routed[request.number].owners
    whole = simulated(base=CROWDED, rule="cost").reuse
    assert whole is not None and whole.counts()["parts"] == 0


def test_what_had_come_when_a_load_took_too_long_is_kept() -> None:
    routed = {r.number: r for r in prepare(BASE)[1]}

    def again(**given: Any) -> list[int]:
        states = simulated("static", rule="timeout:0.2", **given).states
        return [s.request.new_tokens - routed[s.request.number].new_tokens for s in states]

    dropped, kept = again(), again(parts=True)
    assert 0 < sum(kept) < sum(dropped)
    left = [routed[n].remote_tokens for n in range(len(routed))]
    assert all(0 <= tokens <= most for tokens, most in zip(kept, left, strict=True))


def test_a_timeout_may_grow_with_the_tokens() -> None:
    def expired(rule: str) -> int:
        decisions = simulated(rule=rule).reuse
        assert decisions is not None
        return decisions.expired

    assert expired("timeout:0.05+0") == expired("timeout:0.05") > expired("timeout:0.05+10") >= 0


def test_rows_have_what_was_moved_for_lost_requests() -> None:
    """By hand, over the requests that were measured; who computes again fetches less."""
    simulation = simulated()
    states = simulation.states[BASE.warmup :]
    late = [s for s in states if s.finish_s > s.request.deadline_s]
    lost = measure(simulation, BASE.warmup)["lost"]
    assert lost["requests"] == len(late) > 0 and lost["pruned"] == sum(s.pruned for s in late)
    per_token = simulation.cluster.kv_bytes * simulation.cluster.model.layers
    assert lost["fetched_bytes"] == pytest.approx(sum(s.request.remote_tokens for s in late) * per_token)
    shipped = sum(s.request.new_tokens + s.request.context_tokens for s in late) * per_token
    assert lost["shipped_bytes"] == pytest.approx(shipped)
    assert measure(simulated(rule="slo"), BASE.warmup)["lost"]["fetched_bytes"] < lost["fetched_bytes"]


def test_what_a_router_is_told_differs_where_the_view_of_the_own_port_is_old() -> None:
    """Asking changes nothing of the run; the same is answered where everything is known at once."""
    exact = simulated(rule="slo").reuse
    old = simulated(rule="slo", outlook="coordinator", age_s=0.05).reuse
    assert exact is not None and exact.loads == exact.asked
    assert old is not None and len(old.loads) == len(old.asked) and old.loads != old.asked
    assert [took for _, took in old.loads] == [took for _, took in old.asked]


def test_a_view_of_the_backlog_is_what_counts() -> None:
    """Without contention nothing is computed again. By its own bytes alone next to nothing is; a view that is old lies
    between; an exaggeration computes more again."""

    def again(**given: Any) -> int:
        decisions = simulated(rule="slo", **given).reuse
        assert decisions is not None
        return decisions.recomputed

    exact = again()
    assert again(outlook="none") < exact
    assert again(outlook="coordinator", age_s=0.0) == exact
    assert again(outlook="coordinator", age_s=1e6) == again(outlook="local")
    assert again(error=0.01) == 0
    assert again(error_spread=3.0, outlook="none") > again(outlook="none")


def test_workers_are_chosen_by_what_they_are_owed() -> None:
    base = msgspec.structs.replace(BASE, config=msgspec.structs.replace(BASE.config, decode_nics=8, kv_scale=12.0))
    exact = ends(simulated(base=base, placement="backlog"))
    assert exact != ends(simulated(base=base))
    assert exact != ends(simulated(base=base, placement="backlog", outlook="coordinator", age_s=0.5))
    for blind in ("local", "none"):
        assert ends(simulated(base=base, placement="backlog", outlook=blind)) == ends(simulated(base=base))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    given = [
        "--reuse",
        "cost",
        "--reuse-parts",
        "--placement",
        "backlog",
        "--outlook",
        "coordinator",
        "--outlook-age-ms",
        "20",
    ]
    assert (
        command.main([*SMALL, *given, "--outlook-error", "2", "--outlook-error-spread", "1", "--json", str(out)]) == 0
    )
    content = json.loads(out.read_text())
    assert (
        content["config"]["reuse"]["parts"]
        and content["config"]["reuse"]["age_s"] == 0.02
        and "reuse" in content["results"][0]
    )
    assert command.main([*SMALL, "--json", str(out)]) == 2
    assert "reuse" in capsys.readouterr().err
    plain = tmp_path / "plain.json"
    assert command.main([*SMALL, "--json", str(plain)]) == 0
    assert "reuse" not in json.loads(plain.read_text())["config"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--reuse", "maybe"], "bench sim: --reuse maybe: use always, slo, cost or timeout:SECONDS"),
        (["--reuse", "timeout:x"], "bench sim: --reuse timeout:x: use a number of seconds above 0"),
        (["--reuse", "timeout:0"], "bench sim: --reuse timeout:0: use a number of seconds above 0"),
        (["--reuse", "timeout:1+"], "bench sim: --reuse timeout:1+: use a number of seconds above 0"),
        (["--reuse", "timeout:1+-1"], "bench sim: --reuse timeout:1+-1: use a number of seconds above 0"),
        (["--outlook-error", "0"], "bench sim: --outlook-error 0.0: use a number above 0"),
        (["--outlook-error-spread", "-1"], "bench sim: --outlook-error-spread -1.0: use 0 to 10"),
        (["--outlook-age-ms", "-1"], "bench sim: --outlook-age-ms -1: use at least 0"),
        (["--reuse", "slo", "--fetch", "batch"], "bench sim: --reuse slo --fetch batch: "),
        (["--reuse", "timeout:1", "--fabric-classes", "8"], "bench sim: --reuse timeout:1 --fabric-classes 8: "),
    ],
)
def test_what_cannot_be_asked(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*SMALL, *given]) == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith(said) and "\n" not in err


def test_files_of_the_study_keep_points_from_before(tmp_path: Path) -> None:
    results = Results(tmp_path / "points.jsonl")
    point = msgspec.structs.replace(BASE, requests=5, warmup=0)
    assert "reuse" not in results.of(point)["point"]
    other = results.of(msgspec.structs.replace(point, reuse=ReuseConfig(rule="slo")))
    assert other["point"]["reuse"]["rule"] == "slo"
    assert run(point)["ttft_s"] == results.of(point)["ttft_s"]


@pytest.mark.usefixtures("short_past")
def test_the_study_writes_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = outlook.Case("agents", "node-agent-12.5")
    rows = (outlook.Row("fetched"), outlook.Row("`slo`", "mfs+fit", ReuseConfig(rule="slo")))
    monkeypatch.setattr(outlook, "SECTIONS", {"small": outlook.Section("Small", (case,), rows, 3)})
    monkeypatch.setattr(outlook, "point_of", lambda results, case, requests: BASE)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{outlook.BEGIN}\n{outlook.END}\nafter\n")
    given = [str(tmp_path / "p.jsonl"), "--what", "small", "--seeds", "2", "--page", str(page)]
    assert outlook.main(given) == 0
    text = page.read_text()
    assert "### Small" in text and "| `slo` | " in text and text.startswith("before") and text.endswith("after\n")
    assert json.loads((tmp_path / "page-results.json").read_text())["sections"]["small"]["seeds"] == [411, 412]
    with pytest.raises(ConfigError, match="--what nothing"):
        outlook.main([*given[:1], "--what", "nothing"])


@pytest.mark.usefixtures("short_past")
def test_sections_that_are_not_run_keep_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = outlook.Case("agents", "node-agent-12.5")
    both = {
        name: outlook.Section(name.title(), (case,), (outlook.Row("fetched"), outlook.Row("`static`", "static")), 3)
        for name in ("first", "second")
    }
    monkeypatch.setattr(outlook, "SECTIONS", both)
    monkeypatch.setattr(outlook, "point_of", lambda results, case, requests: BASE)
    page, figures = tmp_path / "page.md", tmp_path / "page-results.json"
    page.write_text(f"{outlook.BEGIN}\n{outlook.END}\n")

    def written(what: str, seeds: int) -> dict[str, Any]:
        given = [str(tmp_path / "p.jsonl"), "--what", what, "--seeds", str(seeds), "--page", str(page)]
        assert outlook.main(given) == 0
        return dict(json.loads(figures.read_text())["sections"])

    assert list(written("second", 2)) == ["second"]
    kept = written("first", 1)
    assert list(kept) == ["first", "second"] and kept["second"]["seeds"] == [411, 412]
    assert "### First" in page.read_text() and "### Second" in page.read_text()
    assert written("first,second", 1)["second"]["seeds"] == [411]


@pytest.mark.usefixtures("short_past")
def test_rows_that_the_page_has_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless what they are held against has changed."""
    rows = [outlook.Row("fetched"), outlook.Row("`slo`", "mfs", ReuseConfig(rule="slo"))]
    page, figures = tmp_path / "page.md", tmp_path / "page-results.json"
    page.write_text(f"{outlook.BEGIN}\n{outlook.END}\n")

    def written(name: str, first: Point = BASE) -> list[tuple[str, Any]]:
        section = outlook.Section("Small", (outlook.Case("agents", "node-agent-12.5"),), tuple(rows), 2)
        monkeypatch.setattr(outlook, "SECTIONS", {"small": section})
        monkeypatch.setattr(outlook, "point_of", lambda results, case, requests: first)
        assert outlook.main([str(tmp_path / name), "--new", "--page", str(page)]) == 0
        ran = [json.loads(line)["point"] for line in (tmp_path / name).read_text().splitlines()]
        return [(point["policy"], point.get("reuse", {}).get("rule")) for point in ran]

    everything = written("1.jsonl")
    before = json.loads(figures.read_text())["sections"]["small"]["columns"][0]["rows"]
    assert everything == [("mfs", None)] * 2 + [("mfs", "slo")] * 2
    rows.append(outlook.Row("`static`", "static"))
    assert written("2.jsonl") == [("mfs", None)] * 2 + [("static", None)] * 2
    after = json.loads(figures.read_text())["sections"]["small"]["columns"][0]["rows"]
    assert after[:2] == before and len(after) == 3
    changed = msgspec.structs.replace(BASE, requests=30)
    assert len(written("3.jsonl", changed)) == 6

"""Agents: turns on a growing context with tools between them, and routers as parts of policies."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from bench.requests import agents, command, workloads
from bench.requests.settings import Settings
from bench.sim import serving
from bench.sim.serving import Program

WIDE = Settings(context_max=1_000_000, turns_max=1000, gap_max_s=86_400)


def programs_of(name: str, settings: Settings = WIDE, qps: float = 1.0) -> list[Program]:
    made = workloads.generate("agents", name, settings, qps, 3, 600.0, None)
    assert made.source.startswith("generated")
    return [item for item in made.work if isinstance(item, Program)]


@pytest.mark.parametrize("kind", [*agents.AGENTS])
def test_a_turn_reads_what_was_said_before_and_what_its_tool_says(kind: str) -> None:
    agent, gaps = agents.AGENTS[kind], defaultdict[str, list[float]](list)
    made = programs_of(kind)
    for program in made:
        first, *_ = program.calls
        assert first.gap_s == 0 and first.prefix_tokens == 0 and first.prompt_tokens > agent.system_tokens
        for before, call in zip(program.calls, program.calls[1:], strict=False):
            assert call.prefix_tokens == before.prompt_tokens + before.output_tokens < call.prompt_tokens
            gaps[before.then].append(call.gap_s)
        assert {(c.shared, c.shared_tokens) for c in program.calls} == {(kind, agent.system_tokens)}
        assert program.calls[-1].then == agents.PERSON
        assert [c.after for c in program.calls] == [(n - 1,) if n else () for n in range(len(program.calls))]
    assert statistics.fmean(len(p.calls) for p in made) == pytest.approx(agent.turns, rel=0.12)
    assert set(gaps) == set(agent.tools)
    for name, tool in agent.tools.items():
        assert statistics.median(gaps[name]) == pytest.approx(tool.gap_s, rel=0.2), name
        share = len(gaps[name]) / sum(map(len, gaps.values()))
        assert share == pytest.approx(tool.share / sum(t.share for t in agent.tools.values()), rel=0.2), name


def test_agents_end_at_their_longest_context_and_number_of_turns() -> None:
    few = programs_of("coding", Settings(turns_max=5))
    assert max(len(p.calls) for p in few) == 5
    short = programs_of("coding", Settings(context_max=6000))
    assert all(c.prompt_tokens <= 6000 for p in short for c in p.calls[1:])
    assert sum(c.gap_s for p in programs_of("coding", Settings(gap_scale=0.0)) for c in p.calls) == 0


def test_a_router_is_part_of_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An agent that stays finds its context; in turn, one replica of four has the part that it had itself."""
    out = tmp_path / "a.json"
    arguments = ["run", "--what", "agents", "--workload", "coding", "--qps", "0.2", "--seconds", "60"]
    assert command.main([*arguments, "--json", str(out)]) == 0
    rows = {row["policy"]: row for row in json.loads(out.read_text())["results"]}
    assert set(rows) == {"fcfs", "least-loaded", "sticky", "agentix"}
    for row in rows.values():
        assert set(row) >= {"latency_s", "per_token_s", "hit_rate", "turn_ttft_s"}
    assert rows["sticky"]["hit_rate"]["long"] > 0.8 > rows["fcfs"]["hit_rate"]["long"]
    assert rows["sticky"]["turn_ttft_s"]["mean"] < rows["fcfs"]["turn_ttft_s"]["mean"]
    assert "turns wait" in capsys.readouterr().err
    assert command.main([*arguments, "--policy", "sticky", "--set", "router=prefix"]) == 2
    assert "router=prefix" in (error := capsys.readouterr().err) and "sticky" in error and error.count("\n") == 1
    assert command.main([*arguments, "--traces", "/nowhere"]) == 2
    assert "--workload claudecode" in capsys.readouterr().err


def test_turns_are_the_calls_after_the_first() -> None:
    outcome = serving.Outcome(
        seed=1,
        records=[
            serving.Record(call=0, program=0, position=0, prompt_tokens=9, arrival_s=1.0, first_token_s=9.0),
            serving.Record(call=1, program=0, position=1, prompt_tokens=9, arrival_s=20.0, first_token_s=20.5),
            serving.Record(call=2, program=0, position=2, prompt_tokens=9, arrival_s=30.0),
        ],
        replicas=[],
        end_s=40.0,
    )
    assert serving.turn_ttft_s(outcome)["mean"] == pytest.approx(0.5)

"""Generated workloads have the distributions that they name, and depend on their seed alone."""

from __future__ import annotations

import json
import random
import statistics
from collections import Counter
from pathlib import Path

import pytest

from bench.requests import command, drift, workloads
from bench.requests import point as points
from bench.requests.lengths import TRACES, Lengths, published
from bench.requests.point import Point
from bench.requests.settings import Settings
from bench.sim.serving import Call, Program


def calls_of(what: str, name: str, settings: Settings | None = None, qps: float = 5.0, seed: int = 1) -> list[Call]:
    made = workloads.generate(what, name, settings or Settings(), qps, seed, 1200.0, None)
    return [c for item in made.work for c in (item.calls if isinstance(item, Program) else (item,))]


@pytest.mark.parametrize(("what", "name"), [(w, n) for w, kind in workloads.KINDS.items() for n in kind.workloads])
def test_a_seed_gives_the_same_work_and_another_one_other_work(what: str, name: str) -> None:
    def made(seed: int) -> object:
        return workloads.generate(what, name, Settings(), 0.5, seed, 100.0, None)

    assert made(1) == made(1)
    assert made(1) != made(2)


@pytest.mark.parametrize("name", [*TRACES])
def test_generated_lengths_have_the_published_quantiles(name: str) -> None:
    chance, lengths = random.Random(3), Lengths(name, None)
    drawn = [lengths.draw(chance) for _ in range(20_000)]
    for part in ("prompt", "output"):
        ordered = sorted(getattr(tokens, part) for tokens in drawn)
        for percent, value in published()[name][part].items():
            if 10 <= float(percent) <= 99:
                at = ordered[int(float(percent) / 100 * len(ordered))]
                assert at == pytest.approx(value, rel=0.1, abs=2), (part, percent)


def test_tiers_have_their_shares_deadlines_and_importance() -> None:
    settings = Settings(mix_interactive=70, mix_batch=15, mix_background=15, low_share=0.3, ttft_s=3.0)
    calls = calls_of("tiers", "azure-code", settings)
    counted = Counter(c.tier for c in calls)
    assert len(calls) == pytest.approx(6000, rel=0.05)
    assert counted["interactive"] / len(calls) == pytest.approx(0.7, abs=0.03)
    assert counted["batch"] / len(calls) == pytest.approx(0.15, abs=0.02)
    assert statistics.fmean(c.importance < 1 for c in calls) == pytest.approx(0.3, abs=0.03)
    of = {c.tier: c for c in calls}
    assert (of["interactive"].ttft_s, of["interactive"].tbt_s, of["interactive"].ttlt_s) == (3.0, 0.05, None)
    assert (of["batch"].ttft_s, of["batch"].tbt_s, of["batch"].ttlt_s) == (None, None, 600.0)
    assert of["background"].ttlt_s == 1800.0


def test_a_change_of_the_mix_leaves_arrivals_and_lengths_as_they_were() -> None:
    plain, other = calls_of("tiers", "sharegpt"), calls_of("tiers", "sharegpt", Settings(mix_interactive=9.0))
    assert [(c.arrival_s, c.prompt_tokens) for c in plain] == [(c.arrival_s, c.prompt_tokens) for c in other]
    assert [c.tier for c in plain] != [c.tier for c in other]


def test_requests_without_slo_are_taken_from_all_tiers_and_change_no_other() -> None:
    plain, some = (calls_of("tiers", "azure-code", Settings(no_slo_share=share)) for share in (0.0, 0.25))
    without = [c for c in some if c.tier == "no-slo"]
    assert len(without) / len(some) == pytest.approx(0.25, abs=0.03)
    assert all(c.ttft_s is None and c.tbt_s is None and c.ttlt_s is None for c in without)
    assert {a.tier for a, b in zip(plain, some, strict=True) if b.tier == "no-slo"} == {a.tier for a in plain}
    for a, b in zip(plain, some, strict=True):
        assert (a.arrival_s, a.prompt_tokens, a.importance) == (b.arrival_s, b.prompt_tokens, b.importance)
        assert b.tier in (a.tier, "no-slo")


def test_every_policy_serves_requests_without_slo() -> None:
    settings = Settings(no_slo_share=0.5, replicas=3, profiled=False)
    for policy in ("silo", "fit"):
        row = points.run(Point(policy=policy, qps=2.0, seconds=60.0, settings=settings))
        assert row["unfinished"] == 0 and row["violations"]["tiers"]["no-slo"] == 0.0
        assert row["tiers"]["no-slo"]["ttft_s"]["mean"] > 0


def test_a_swinging_rate_keeps_its_mean_and_its_ratio() -> None:
    calls = calls_of("tiers", "azure-code", Settings(swing=3.0, swing_s=300.0), qps=10.0)
    counted = Counter(int(c.arrival_s / 300) % 2 for c in calls)
    assert counted[1] / counted[0] == pytest.approx(3.0, rel=0.1)
    assert len(calls) == pytest.approx(12_000, rel=0.05)


def test_chats_grow_by_what_was_said_and_their_turns_have_a_heavy_tail() -> None:
    made = workloads.generate("programs", "chat", Settings(), 5.0, 1, 600.0, None)
    turns = []
    for program in made.work:
        assert isinstance(program, Program)
        turns.append(len(program.calls))
        for before, call in zip(program.calls, program.calls[1:], strict=False):
            assert call.prefix_tokens == before.prompt_tokens + before.output_tokens < call.prompt_tokens
            assert 0 < call.gap_s <= 60
        assert [c.after for c in program.calls] == [(n - 1,) if n else () for n in range(len(program.calls))]
    assert statistics.fmean(n >= 2 for n in turns) == pytest.approx(2**-1.1, abs=0.04)  # Pareto
    assert statistics.fmean(n >= 8 for n in turns) == pytest.approx(8**-1.1, abs=0.03)


def test_the_gap_scale_is_that_of_pauses() -> None:
    plain = sum(c.gap_s for c in calls_of("programs", "chat"))
    assert sum(c.gap_s for c in calls_of("programs", "chat", Settings(gap_scale=0.5))) == pytest.approx(
        plain / 2, rel=0.01
    )
    assert sum(c.gap_s for c in calls_of("programs", "claudecode", Settings(gap_scale=0.0), qps=0.05)) == 0


def test_a_round_of_a_tree_waits_for_the_one_before() -> None:
    made = workloads.generate("programs", "tree-search", Settings(fan_out=3), 1.0, 1, 60.0, None)
    for program in made.work:
        assert isinstance(program, Program)
        for number, call in enumerate(program.calls):
            first = number // 3 * 3
            assert call.after == tuple(range(first - 3, first) if first else ())
            assert call.prefix_tokens <= call.prompt_tokens


def test_the_judge_of_best_of_n_reads_all_candidates() -> None:
    made = workloads.generate("programs", "best-of-n", Settings(fan_out=5), 1.0, 1, 60.0, None)
    for program in made.work:
        assert isinstance(program, Program)
        *candidates, judge = program.calls
        assert len(candidates) == 5 and judge.after == (0, 1, 2, 3, 4)
        assert judge.prompt_tokens == candidates[0].prompt_tokens + sum(c.output_tokens for c in candidates)


def test_drift_follows_its_rates_and_its_mix() -> None:
    by_phase = Counter(int(c.arrival_s / 200) for c in calls_of("drift", "rate", qps=20.0))
    assert by_phase[1] / by_phase[0] == pytest.approx(1.4 / 0.6, rel=0.1)
    assert by_phase[2] / by_phase[0] == pytest.approx(1.0 / 0.6, rel=0.1)  # 1.8 and 0.2 take turns
    assert set(by_phase) == {0, 1, 2}
    on, off = Counter(), Counter()  # type: Counter[int], Counter[int]
    for call in calls_of("drift", "rate", qps=20.0):
        if call.arrival_s >= 400:
            (on if call.arrival_s % 20 < 10 else off)[2] += 1
    assert on[2] / off[2] == pytest.approx(9.0, rel=0.25)
    mixed = calls_of("drift", "mix", qps=20.0)
    for phase, tasks in enumerate(drift.PHASES):
        assert {c.tier for c in mixed if int(c.arrival_s / 200) == phase} == set(tasks)


def test_more_important_requests_of_a_task_have_stricter_deadlines() -> None:
    of = [c for c in calls_of("drift", "mix", qps=20.0) if c.tier == "qa"]
    assert all(4.0 * 0.8 - 1e-9 <= c.ttft_s <= 4.0 * 1.2 + 1e-9 for c in of if c.ttft_s is not None)
    strict = max(of, key=lambda c: c.importance)
    loose = min(of, key=lambda c: c.importance)
    assert strict.ttft_s is not None and loose.ttft_s is not None and strict.ttft_s < loose.ttft_s


def test_a_folder_of_traces_is_drawn_from(tmp_path: Path) -> None:
    rows = [{"input_length": 100 + n, "output_length": n + 1} for n in range(7)]
    (tmp_path / "azure2023_code.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = workloads.generate("tiers", "azure-code", Settings(prompt_scale=2.0), 2.0, 1, 60.0, tmp_path)
    assert made.source.startswith("rows of azure2023_code.jsonl")
    pairs = {(c.prompt_tokens, c.output_tokens) for c in made.work if isinstance(c, Call)}
    assert pairs <= {(2 * r["input_length"], r["output_length"]) for r in rows} and len(pairs) > 3


SESSION_ROW = {
    "session_id": "a",
    "turn": 1,
    "agent": 0,
    "input_length": 800,
    "output_length": 5,
    "ideal_hit_tokens": 0,
    "think_time": None,
}


def sessions_file(folder: Path, rows: list[dict[str, object]]) -> Path:
    path = folder / "agentic_claudecode.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_recorded_sessions_are_read_by_turn(tmp_path: Path) -> None:
    rows = [
        SESSION_ROW,
        {**SESSION_ROW, "agent": 1},
        {**SESSION_ROW, "turn": 2, "input_length": 1600, "ideal_hit_tokens": 800, "think_time": 7.0},
    ]
    sessions_file(tmp_path, rows)
    made = workloads.generate("programs", "claudecode", Settings(gap_scale=2.0), 0.5, 1, 60.0, tmp_path)
    program = made.work[0]
    assert isinstance(program, Program)
    assert [(c.prompt_tokens, c.prefix_tokens, c.gap_s, c.after) for c in program.calls] == [
        (100, 0, 0.0, ()),
        (200, 100, 14.0, (0,)),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"turn": 1}, "turn is 1 after turn 1 of session a; sort the rows of each session by turn"),
        ({"turn": 0}, "turn is 0 after turn 1 of session a; sort the rows of each session by turn"),
        ({"turn": None}, "turn is None; expected a number from 0 to"),
        ({"input_length": -3}, "input_length is -3; expected a number from 1 to"),
        ({"input_length": "x"}, "input_length is 'x'; expected a number from 1 to"),
        ({"output_length": -1}, "output_length is -1; expected a number from 0 to"),
        ({"ideal_hit_tokens": -1}, "ideal_hit_tokens is -1; expected a number from 0 to"),
        ({"think_time": -0.5}, "think_time is -0.5; expected a number from 0 to"),
        ({"think_time": float("nan")}, "think_time is nan; expected a number from 0 to"),
        ({"session_id": [1]}, "session_id is [1]; expected a number or a text"),
    ],
)
def test_a_bad_row_of_recorded_sessions_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, object], message: str
) -> None:
    path = sessions_file(tmp_path, [SESSION_ROW, {**SESSION_ROW, "turn": 2, **change}])
    assert f"{path} line 2: {message}" in refused(tmp_path, capsys)


def test_recorded_sessions_that_are_not_sorted_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of several sessions may alternate."""
    order = [("a", 1), ("b", 1), ("a", 3), ("b", 2), ("a", 2)]
    path = sessions_file(tmp_path, [{**SESSION_ROW, "session_id": name, "turn": turn} for name, turn in order])
    assert f"{path} line 5: turn is 2 after turn 3 of session a; sort the rows" in refused(tmp_path, capsys)


@pytest.mark.parametrize("column", ["session_id", "turn", "input_length", "output_length", "ideal_hit_tokens"])
def test_recorded_sessions_without_a_column_are_refused_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    path = sessions_file(tmp_path, [{name: value for name, value in SESSION_ROW.items() if name != column}])
    assert f"{path} line 1: no column {column}; add it" in refused(tmp_path, capsys)


@pytest.mark.parametrize("rows", [[], [{**SESSION_ROW, "agent": 1}]])
def test_a_trace_without_a_session_is_refused_and_does_not_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, object]]
) -> None:
    path = sessions_file(tmp_path, rows)
    assert f"{path}: no row of a main agent" in refused(tmp_path, capsys)


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `run` says, in one line, of a folder of traces that it cannot use."""
    arguments = ["run", "--what", "programs", "--workload", "claudecode", "--seconds", "20", "--policy", "fcfs"]
    assert command.main([*arguments, "--traces", str(folder)]) == 2
    output = capsys.readouterr().err
    assert output.startswith("bench requests run: ") and output.count("\n") == 1
    return output


def test_a_system_prompt_is_shared_by_programs_of_a_kind() -> None:
    """And mixed has all kinds; the programs are the same behind it."""
    plain, behind = (calls_of("programs", "mixed", Settings(system_tokens=n), qps=0.2) for n in (0, 1000))
    assert {c.shared for c in behind} == {"chat", "tree-search", "best-of-n"}
    assert [c.prompt_tokens + 1000 for c in plain] == [c.prompt_tokens for c in behind]
    for call in behind:
        assert call.shared_tokens == 1000 and (call.prefix_tokens == 0 or call.prefix_tokens > 1000)

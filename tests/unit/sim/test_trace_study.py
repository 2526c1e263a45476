"""Recorded requests in a study: their own reuse and times, contention found before orders are compared."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.sim import command, study, trace_study
from bench.sim.compare import CHOOSING_SEED
from bench.sim.workload import read_trace

BLOCK_TOKENS = 512
SEEDS = 2


def recorded(count: int) -> list[dict[str, Any]]:
    """Conversations of four turns, with the columns of the traces that are published: each turn has the one before it
    as its beginning, so that all but a first turn's last blocks were seen."""
    rng, rows = random.Random(7), []
    blocks: list[int] = []
    for number in range(count):
        before = blocks if number % 4 else []
        blocks = [*before, *range(100 * number, 100 * number + rng.randint(2, 6))]
        rows.append({
            "req_id": number, "timestamp": 0.5 * number + rng.random() / 4,
            "input_length": BLOCK_TOKENS * len(blocks), "output_length": 20, "hash_ids": blocks,
            "session_id": None, "parent_id": -1, "turn": None, "type": None,
            "ideal_hit_tokens": BLOCK_TOKENS * len(before), "prefix_parent": number - 1 if before else -1,
        })  # fmt: skip
    return rows


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "mine.parquet"
    parquet.write_table(arrow.Table.from_pylist(recorded(120)), file)
    return file


def arguments(trace: Path, *more: str) -> list[str]:
    small = ["--model", "llama2-7b", "--cause", "shared-100g", "--requests", "12", "--seeds", str(SEEDS)]
    return ["traces", str(trace.with_name("t.jsonl")), "--trace", str(trace), *small, "--capacity-seeds", "1", *more]


def test_what_a_trace_has_of_reuse_is_what_its_blocks_say(trace: Path) -> None:
    rows = recorded(120)
    found = trace_study.described(read_trace(trace))
    again, tokens = (sum(row[name] for row in rows) for name in ("ideal_hit_tokens", "input_length"))
    assert found.requests == 120 and found.mean_tokens == pytest.approx(tokens / 120, abs=0.1)
    assert found.reuse == pytest.approx(again / tokens, abs=1e-4) and 0.3 < found.reuse < 0.7


def test_contention_is_found_before_and_orders_are_compared_on_other_windows_and_with_classes(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, file = trace.with_name("traces.md"), trace.with_name("t.jsonl")
    page.write_text(f"before\n{study.BEGIN}\nold\n{study.END}\nafter\n")
    assert command.main(arguments(trace, "--points", "-100", "--page", str(page))) == 0
    points = [json.loads(line)["point"] for line in file.read_text().splitlines()]
    assert {(p["workload"], p["arrivals"]) for p in points} == {(str(trace), "trace")}
    chose = {p["policy"] for p in points if p["seed"] >= CHOOSING_SEED}
    assert chose == {"static", "nocont"}
    compared = [p for p in points if p["seed"] < CHOOSING_SEED]
    assert {p["config"]["fabric_classes"] for p in compared} == {8}
    assert {p["policy"] for p in compared} == {"dscp-size", "static", "mfs", "nocont"}
    text = page.read_text()
    assert (
        text.startswith("before\n") and text.endswith("after\n") and "old" not in text and str(trace.parent) not in text
    )
    line = next(line for line in text.splitlines() if line.startswith("| mine, llama2-7b, shared-100g ("))
    assert line.count("±") >= 3 and "cap x" in line
    data = msgspec.json.decode(trace.with_name("traces-results.json").read_bytes(), type=trace_study.Data)
    assert trace_study.page(data) in text, "the page is what its figures say"
    reused = data.examined[0].reused
    assert 0 < reused.fetched <= reused.cached < 1, "units fetch what they reuse over the NICs that they share"
    capsys.readouterr()
    before = file.read_text()
    assert command.main(arguments(trace, "--points", "-100")) == 0 and file.read_text() == before, "nothing runs twice"


def test_where_contention_costs_less_nothing_is_compared(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments(trace, "--points", "101")) == 0
    text = capsys.readouterr().out
    assert "101 points or more in 0 of 1 cases" in text and "Nothing to compare" in text
    seeds = {json.loads(line)["seed"] for line in trace.with_name("t.jsonl").read_text().splitlines()}
    assert min(seeds) == CHOOSING_SEED


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--cause", "rain"], "--cause rain: use"),
        (["--cause", "tenants"], "--cause tenants: use"),
        (["--model", "gpt"], "--model gpt: use"),
        (["--seeds", "0"], "--seeds 0"),
        (["--capacity-seeds", "3"], "--capacity-seeds 3"),
        (["--capacity-policy", "edf"], "--capacity-policy edf: use"),
        (["--fabric-classes", "1"], "--fabric-classes 1"),
        (["--trace", "a/x.parquet", "b/x.parquet"], "two files of one name"),
        (["--trace", "nowhere.parquet"], "nowhere.parquet: no such file"),
    ],
)
def test_mistakes_get_one_line(trace: Path, wrong: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments(trace, *wrong)) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1

"""`python -m bench requests live` with engines that answer from a table: its rows, its file, and what Ctrl-C leaves."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from bench.requests import command, live

CONFIG = {"policy": "fcfs,mfs", "requests": 4}


class Table:
    """An engine whose requests take `ttft_s`, and whose answers are those of `token_ids`."""

    def __init__(self, ttft_s: float, token_ids: list[list[int]], stops_after: int = 100) -> None:
        self._ttft_s, self._token_ids, self._left = ttft_s, token_ids, stops_after

    def run(self, seed: int, count: int, per_s: float, slo_s: float) -> list[dict[str, Any]]:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        row = {"ttft_s": self._ttft_s, "end_s": 10.0, "tokens": 1024}
        tiers = ("important", "other")
        return [{**row, "tier": tiers[at % 2], "token_ids": ids} for at, ids in enumerate(self._token_ids)]


SAME = [[1, 2], [3], [4, 5], [6]]
OTHER = [[1, 2], [3], [4, 6], [6, 7]]


def test_tokens_are_identical_where_all_of_a_request_are() -> None:
    base, other = ([{"token_ids": ids} for ids in of] for of in (SAME, OTHER))
    assert live.tokens_identical(base, base) == 1.0
    assert live.tokens_identical(base, other) == 0.5
    with pytest.raises(ValueError):
        live.tokens_identical(base, other[:3])


def test_prompts_are_those_of_the_seed_in_any_engine() -> None:
    made = live.arrivals(3, 5, 1.0)
    assert live.prompts(3, made) == live.prompts(3, made) != live.prompts(4, made)
    assert [len(ids) for ids in live.prompts(3, made)] == [one.prompt_tokens for one in made]


def test_each_pair_has_a_row_of_each_policy_and_the_second_one_says_whether_its_tokens_are_the_same(
    tmp_path: Path,
) -> None:
    path = tmp_path / "live.json"
    servers = {"fcfs": Table(200.0, SAME), "mfs": Table(1.0, OTHER)}
    made = live.collect(live.compare(servers, 2, 4, 1.3, 1), CONFIG, path, *servers)
    assert json.loads(path.read_text()) == made
    assert set(made) == {"config", "results", "summary"} and made["config"] == CONFIG
    assert [(row["pair"], row["policy"]) for row in made["results"]] == [
        (0, "fcfs"),
        (0, "mfs"),
        (1, "fcfs"),
        (1, "mfs"),
    ]
    assert [row.get("tokens_identical") for row in made["results"]] == [None, 0.5, None, 0.5]
    assert [row["important_late"] for row in made["results"]] == [1.0, 0.0, 1.0, 0.0]
    assert made["summary"]["tokens_identical"] == 0.5
    assert made["summary"]["important_late_ratio"] == 0.0
    assert made["summary"]["important_ttft_ratio"] == 1 / 200


def test_tokens_per_second_have_the_standard_error_of_their_pairs() -> None:
    def row(policy: str, tokens_per_s: float) -> dict[str, Any]:
        return {
            "policy": policy,
            "important_late": 0.5,
            "important_ttft_s": 1.0,
            "other_ttft_s": 1.0,
            "tokens_per_s": tokens_per_s,
            "tokens_identical": 1.0,
        }

    results = [row(*one) for one in (("fcfs", 100.0), ("mfs", 90.0), ("fcfs", 50.0), ("mfs", 55.0))]
    made = live.summary(results, "fcfs", "mfs")
    assert made["throughput_ratio_mean"] == pytest.approx(1.0)
    assert made["throughput_ratio_stderr"] == pytest.approx(0.1)
    assert live.summary(results[:2], "fcfs", "mfs")["throughput_ratio_stderr"] == 0.0


def test_pairs_that_have_ended_are_in_the_file_when_one_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    servers = {"fcfs": Table(2.0, SAME), "mfs": Table(1.0, SAME, stops_after=2)}  # the warming and one pair
    with pytest.raises(KeyboardInterrupt):
        live.collect(live.compare(servers, 5, 4, 1.3, 1), CONFIG, path, *servers)
    left = json.loads(path.read_text())
    assert [(row["pair"], row["policy"]) for row in left["results"]] == [(0, "fcfs"), (0, "mfs")]
    assert left["summary"]["tokens_identical"] == 1.0
    assert [file.name for file in tmp_path.iterdir()] == ["live.json"]


@pytest.mark.parametrize(
    ("name", "kept", "then"),
    [
        ("run", "the --json file keeps finished parts", "resumes from there"),
        ("capacity", "the --json file keeps finished parts", "resumes from there"),
        ("live", "its file keeps the finished pairs", "starts again and replaces it"),
        ("replay", "nothing is kept", "starts again"),
        ("compare", "nothing is kept", "starts again"),
    ],
)
def test_a_command_that_is_stopped_says_what_is_kept(
    name: str, kept: str, then: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module(f"bench.requests.{name}"), "main", stop)
    assert command.main([name]) == 130
    output = capsys.readouterr().err
    assert output.count("\n") == 1 and kept in output and output.endswith(f"the same command {then}\n")

"""What `gate` and `window` make of what they measured, and what they read from the kernel."""

from __future__ import annotations

import argparse

import pytest

from bench.micro import gate, window
from bench.micro.link import COLLECTIVE_CLASS, KV_CLASS, PERFTEST_RULE, LinkError, configuration, shaper
from bench.micro.link_command import measure_all, sizes
from bench.micro.traffic import Moved, counted
from bench.report.page import page
from mfsd.node.config_file import parse

CASE = gate.Case("2.30.7", 5.0, False, "perftest", 262_144)
MACHINE = {"cpu": "a processor", "cores": 2}


def figures(kv_mb_s: float, collective_mb_s: float, p50_ms: float) -> gate.Figures:
    return gate.Figures(kv_mb_s, collective_mb_s, (p50_ms - 0.1, p50_ms, p50_ms + 3))


@pytest.mark.parametrize(
    ("enforce", "kv", "collectives"),
    [
        (figures(1.0, 52.0, 1.0), "missed", "met"),
        (figures(165.0, 52.0, 1.0), "met", "met"),
        (figures(165.0, 52.0, 1.2), "met", "missed"),
        (figures(10.0, 195.0, 1.0), "nothing to judge", "met"),
        (gate.Figures(165.0), "met", "nothing to judge"),
    ],
)
def test_kv_is_decided_by_what_the_link_has_left_and_messages_by_their_median(
    enforce: gate.Figures, kv: str, collectives: str
) -> None:
    row = gate.row(CASE, 200.0, figures(0.0, 52.0, 1.0), figures(180.0, 40.0, 3.0), enforce)
    assert (row["kv_verdict"], row["collectives_verdict"]) == (kv, collectives)
    assert row["left_mb_s"] == pytest.approx(200.0 - enforce.collective_mb_s)


def test_kv_need_not_have_more_than_it_has_in_observe() -> None:
    row = gate.row(CASE, 200.0, figures(0, 50, 1), figures(100, 50, 1), figures(91, 50, 1))
    assert row["kv_share"] == 0.91 and row["kv_verdict"] == "met"


def test_messages_may_not_be_slower_than_in_observe_even_where_they_are_nearly_as_fast_as_alone() -> None:
    row = gate.row(CASE, 200.0, figures(0, 50, 1.0), figures(140, 50, 1.0), figures(140, 50, 1.1))
    assert row["collectives_verdict"] == "missed"


def test_the_worst_case_that_can_be_decided_counts() -> None:
    alone, observe = figures(0, 50, 1.0), figures(140, 50, 2.0)
    rows = {
        "good": gate.row(CASE, 200.0, alone, observe, figures(150, 50, 1.0)),
        "bad": gate.row(CASE, 200.0, alone, observe, figures(14, 50, 1.5)),
        "full": gate.row(CASE, 200.0, alone, observe, figures(0, 199, 1.0)),
        "broken": {"failed": "a program ended"},
    }
    found = gate.summary(rows)
    assert (found["kv_share_min"], found["collective_p50_of_alone_max"]) == (0.1, 1.5)
    assert found["kv_verdict"] == {"met": 1, "missed": 1, "nothing_to_judge": 1} and found["failed"] == 1


def test_free_destinations_are_held_against_observe() -> None:
    case = window.Case("write", 1, 0.1, 262_144)
    row = window.row(case, 125.0, window.Figures(108.0, 11.4), window.Figures(4.0, 10.9))
    assert (row["free_verdict"], row["slow_verdict"]) == ("missed", "met")
    dead = window.row(case, 125.0, window.Figures(108.0, 0.0), window.Figures(107.0, 0.0))
    assert (dead["free_verdict"], dead["slow_verdict"]) == ("met", "nothing to judge")
    assert window.summary({"a": row, "b": dead})["free_share_min"] == 0.037
    assert "collective_ms_observe" not in row
    observe, enforce = window.Figures(72.0, 12.0, 38.0, 29.8), window.Figures(54.0, 12.0, 52.0, 4.6)
    beside = window.row(case._replace(nccl_pace_ms=5.0), 125.0, observe, enforce)
    assert (beside["collective_ms_observe"], beside["collective_ms_enforce"]) == (29.8, 4.6)
    assert beside["free_share"] == round(54 / (72 - 14), 3)


def test_the_cases_of_an_option_list_are_all_combinations() -> None:
    parser = argparse.ArgumentParser()
    gate.add_options(parser)
    options = parser.parse_args(["--nccl", "2.28.9,2.32.3", "--kv", "mooncake", "--message", "256kib,1mib"])
    names = [case.name for case in gate.cases_of(options)]
    assert len(set(names)) == len(names) == 2 * 2 * 4 * 2
    assert "NCCL 2.32.3, 1 MiB back to back, lanes, mooncake" in names


def test_quick_leaves_what_was_chosen() -> None:
    parser = argparse.ArgumentParser()
    window.add_options(parser)
    options = window.quicker(parser.parse_args(["--quick", "--slow", "0.5", "--seconds", "2"]))
    assert (options.slow, options.seconds, options.fan_in) == ([0.5], 2.0, [2])
    names = [case.name for case in window.cases_of(options)]
    assert names[-1] == "write, slow path 0.5 of the rate, 256 KiB, NCCL every 20 ms" and len(names) == 5


@pytest.mark.parametrize(
    "words", [["--message", "256"], ["--message", "0kib"], ["--kv", "tcp"], ["--seconds", "0"], ["--rate", "fast"]]
)
def test_a_wrong_option_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    gate.add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert words[1] in capsys.readouterr().err


def test_sizes_are_read_as_bytes() -> None:
    assert sizes("256kib,16MiB,256kib") == [262_144, 16 << 20]


def test_a_case_that_fails_says_why_and_ends_no_other() -> None:
    kept: list[list[str]] = []

    def fails() -> dict[str, object]:
        raise LinkError("ib_write_bw ended with code 1")

    rows = measure_all({"a": fails, "b": lambda: {"x": 1}}, str, lambda rows: kept.append(list(rows)))
    assert rows == {"a": {"failed": "ib_write_bw ended with code 1"}, "b": {"x": 1}}
    assert kept == [["a"], ["a", "b"]]


def test_connections_of_one_process_are_counted_by_peer() -> None:
    line = "ESTAB 0 0 10.86.0.1:41000 {peer} ino:{inode} sk:1 cgroup:/ <-> ts bytes_sent:9 {counts} segs_out:3"
    listed = "\n".join(
        [
            line.format(peer="10.86.0.2:7000", inode=11, counts="bytes_acked:100 bytes_received:7"),
            line.format(peer="[::ffff:10.86.0.2]:7001", inode=12, counts="bytes_acked:50"),
            line.format(peer="10.86.0.3:7000", inode=13, counts="bytes_received:5"),
            line.format(peer="10.86.0.2:7000", inode=99, counts="bytes_acked:1000"),
        ]
    )
    assert counted(listed, {11, 12, 13}) == {"10.86.0.2": Moved(150, 7), "10.86.0.3": Moved(0, 5)}


def test_with_lanes_nccl_and_kv_travel_in_two_classes_and_without_in_none() -> None:
    apart = parse(configuration("enforce", 2e9, PERFTEST_RULE, lanes=True), "mfsd.toml")
    assert {(rule.process or rule.library or rule.role, rule.wire_class) for rule in apart.rule} == {
        ("ib_", KV_CLASS),
        ("engine.so", KV_CLASS),
        *((f"nccl-{role}", COLLECTIVE_CLASS) for role in ("data", "cts", "flush")),
    }
    alike = parse(configuration("observe", 2e9, PERFTEST_RULE, lanes=False), "mfsd.toml")
    assert [rule.wire_class for rule in alike.rule] == [None] and alike.mode == "observe"
    assert alike.nic["mfs0"].rate_bytes_per_s == 250_000_000


def test_a_shaper_has_a_queue_of_strict_priority_for_every_class() -> None:
    lines = shaper("eth0", 1e9, [56, 0])
    leaves = [line for line in lines if "parent 9:1 classid" in line]
    assert [("prio 0" in leaves[0]), ("prio 1" in leaves[1])] == [True, True] and len(leaves) == 2
    assert lines[0].endswith("default 3") and "dsfield 224 0xfc flowid 9:2" in "\n".join(lines)


def test_the_page_has_a_row_for_each_case() -> None:
    row = gate.row(CASE, 200.0, figures(0, 50, 1.0), figures(140, 50, 2.0), figures(14, 50, 1.1), figures(150, 50, 1.3))
    results = gate.summary({CASE.name: row, "another": {"failed": "why"}})
    text = page({"gate": {"machine": MACHINE, "results": results}})
    assert f"| {CASE.name} | 200 | 140 | 14 | 150 | **missed** | 1 | 4 | 2 | 5 | 1.1 | 4.1 | 1.3 | met |" in text
    assert "| another | not measured |" in text
    assert "of what the link has left or of observe | >= 0.9 | 0.1  | **missed**, [why](" in text

"""The page of the classes that ship: its points are kept, its rows are JSON, its text comes from them alone."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from bench.sim import classes_findings, classes_page, classes_rows, command, settings
from bench.sim.classes_rows import SECTIONS, Before, Carried, Data, Row, Section, Variant, What
from bench.sim.point import run

FIGURES = ("slo_attainment", "ttft_s", "cct_s")

SMALL = Section(
    settings="egress", requests=9, seeds=2, policies=("dscp-size", "static", "mfs"), exact=("mfs", "varys"),
    reads=("mfs",), carried=("dscp-size", "mfs"), carried_seeds=1,
)  # fmt: skip


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [*SECTIONS]:
        monkeypatch.delitem(SECTIONS, name)
    monkeypatch.setitem(SECTIONS, "stress", SMALL)
    (tmp_path / "c.knees.json").write_text('{"dbrx qwen-a egress 9 loaded": 0.1}')
    return tmp_path / "classes.md"


@pytest.mark.usefixtures("short_past")
def test_the_page_is_written_from_points_and_again_from_its_rows(
    page: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "c.jsonl"
    assert command.main(["classes", str(file), "--page", str(page)]) == 0
    points, written, rows = file.read_text(), page.read_text(), classes_rows.beside(page).read_text()
    assert "| `mfs`, exact |" in written and "| `varys`, exact |" in written and "cap x" in written
    assert {(r["policy"], r["exact"], r.get("variant", ""), len(r["met"])) for r in json.loads(rows)["rows"]} == {
        ("dscp-size", False, "", 2), ("static", False, "", 2), ("mfs", False, "", 2), ("mfs", False, "reads", 2),
        ("mfs", False, "again", 2), ("mfs", True, "", 2), ("varys", True, "", 2),
    }  # fmt: skip
    page.unlink()
    assert command.main(["classes", "--page", str(page)]) == 0
    assert (page.read_text(), classes_rows.beside(page).read_text()) == (written, rows)
    assert command.main(["classes", str(file), "--kept", "--page", str(page)]) == 0
    assert (page.read_text(), file.read_text()) == (written, points), "nothing runs twice"


def test_what_is_not_kept_is_not_run(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.jsonl"
    nothing = "**Not run**: stress: `dscp-size`, `static`, `mfs`, `mfs` reads, `mfs` exact, `varys` exact"
    assert command.main(["classes", str(file), "--kept"]) == 0
    assert not file.exists() and nothing in capsys.readouterr().out
    (tmp_path / "c.knees.json").unlink()
    assert command.main(["classes", str(file), "--kept"]) == 0
    assert nothing in capsys.readouterr().out


def test_it_asks_for_a_file_or_a_page(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["classes"]) == 2 and "give a FILE" in capsys.readouterr().err
    assert command.main(["classes", "--page", str(page)]) == 2 and "no JSON beside it" in capsys.readouterr().err
    assert command.main(["classes", "--section", "home"]) == 2 and "--section home" in capsys.readouterr().err
    classes_rows.beside(page).write_text("[]")
    assert command.main(["classes", "--page", str(page)]) == 2 and "holds no rows" in capsys.readouterr().err


def test_reads_come_to_rows_that_stay(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "reads.jsonl"
    assert command.main(["classes", str(file), "--reads", "--page", str(page)]) == 2
    assert "--reads: give a FILE" in capsys.readouterr().err
    before = Data(
        what=What(simulated=True, against="dscp-size", first_seed=741, revisions=["0123456"]),
        rows=[row("dscp-size", 0.8, 0.9), row("mfs", 0.9, 0.9)],
        carried=[],
        before=[],
    )
    classes_rows.save(page, before)
    again = ["classes", str(file), "--reads", "--page", str(page)]
    assert command.main(again) == 0
    points = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(p["point"]["config"].get("reads", False), p["rate"], p["seed"]) for p in points] == [
        (True, 0.1, 741), (True, 0.1, 742), (False, 0.1, 741), (False, 0.1, 742),
    ]  # fmt: skip
    after = classes_rows.load(page)
    assert after is not None and after.rows[:2] == before.rows and after.what == before.what
    assert [r.variant for r in after.rows[2:]] == ["reads", "again"]
    assert "| `mfs` | `mfs`, reads |" in page.read_text()
    written = page.read_text(), file.read_text()
    assert command.main([*again, "--kept"]) == 0
    assert (page.read_text(), file.read_text()) == written, "rows are replaced, not doubled, and nothing runs twice"
    file.write_text("")
    assert command.main([*again, "--kept"]) == 0
    assert page.read_text() == written[0], "what FILE lacks stays"


def test_marks_by_size_know_no_reads() -> None:
    """Or the page's rows of them would not be what reads are held against."""
    point = settings.base_of("fan-in", "dbrx", "qwen-a", 30, 8)
    point = msgspec.structs.replace(point, rate=0.17, policy="dscp-size")
    read = msgspec.structs.replace(point, config=msgspec.structs.replace(point.config, reads=True))
    without, with_reads = run(point), run(read)
    assert {name: with_reads[name] for name in FIGURES} == {name: without[name] for name in FIGURES}


def row(policy: str, *met: float, exact: bool = False, mean: float = 1.0, variant: Variant = "") -> Row:
    of_seeds = [mean] * len(met)
    return Row(
        section="stress", setting="egress", policy=policy, exact=exact, variant=variant, rate=0.1, met=[*met],
        mean_s=of_seeds, p99_s=of_seeds, revisions=["89abcde" if variant else "0123456"],
    )  # fmt: skip


def test_a_loss_is_in_the_first_list(page: Path) -> None:
    data = Data(
        what=What(simulated=True, against="dscp-size", first_seed=741, revisions=["0123456"]),
        rows=[
            row("dscp-size", 0.8, 0.9),
            row("mfs", 0.7, 0.8, mean=1.1),
            row("mfs", 0.9, 1.0, exact=True),
            row("varys", 0.9, 0.9, exact=True),
        ],
        carried=[Carried(section="stress", setting="egress", policy="dscp-size", loads=[0.5])],
        before=[
            Before(section="stress", setting="egress", gain=2.0, gain_half=1.0, ttft_ratio=1.0, p99_ratio=1.0),
            Before(section="stress", setting="bursts", gain=3.0, gain_half=1.5, ttft_ratio=0.9, p99_ratio=1.0),
        ],
    )
    written = "\n".join(classes_findings.findings(data))
    assert "Missed in points: egress (-10.0 ± 0.0); in mean TTFT: egress (x1.10)" in written
    assert (
        "In points: egress +2.0, now -10.0. In mean TTFT: egress x1.00, now x1.10. In p99 TTFT: egress x1.00" in written
    )
    assert "`varys` +5.0 points, 1 and 0 of 1" in written
    assert "`mfs` was at bursts +3.0 ± 1.5 x0.90" in written
    assert "| egress | 85.0, 1000 ms, 1000 ms, cap 0.50 |" in classes_page.text(data)


def test_reads_are_held_against_marks_and_against_the_same_rules_without(page: Path) -> None:
    rows = [
        row("dscp-size", 0.8, 0.9),
        row("mfs", 0.9, 1.0),
        row("mfs", 0.7, 0.82, mean=1.1, variant="reads"),
        row("mfs", 0.9, 0.96, variant="again"),
    ]
    what = What(simulated=True, against="dscp-size", first_seed=741, revisions=["0123456"])
    data = Data(what=what, rows=rows, carried=[], before=[])
    line = classes_findings.reads(data)
    assert line.startswith("**Loads that wait at their reader** (`mfs`, reads; rules of commit 89abcde) against")
    assert "stress -9.0 points on average (-9.0), above it with the whole interval in 0 of 1, below it in none" in line
    assert "it misses, in points: egress (-9.0 ± 12.7); in mean TTFT: egress (x1.10)" in line and " NIC" not in line
    line = classes_findings.reads_beside(data)
    assert "same rules: stress -17.0 points on average (-17.0), above it with the whole interval in 0 of 1" in line
    assert "is off the points of its column by: stress -2.0 on average, -2.0 at most (egress)" in line
    same = msgspec.structs.replace(data, what=msgspec.structs.replace(what, revisions=["89abcde"]))
    assert "its column" not in classes_findings.reads_beside(same)
    assert not classes_findings.reads_beside(Data(what=what, rows=rows[:3], carried=[], before=[]))
    assert not classes_findings.reads(Data(what=what, rows=rows[:2], carried=[], before=[]))


def test_reads_name_the_settings_in_which_many_read_from_one_nic(page: Path) -> None:
    rows = [row("dscp-size", 0.8, 0.9), row("mfs", 0.7, 0.82, variant="reads")]
    data = Data(
        what=What(simulated=True, against="dscp-size", first_seed=741, revisions=["0123456"]),
        rows=[msgspec.structs.replace(one, setting=setting) for setting in ("egress", "hot") for one in rows],
        carried=[],
        before=[],
    )
    assert " In hot many prefixes are at one NIC" in classes_findings.reads(data)

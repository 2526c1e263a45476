"""The checks as a whole: every finding is documented, and no surprise in one check hides another."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mfsd.observe.doctor.checks import CHECKS, Check, kinds_of, name_of
from mfsd.observe.doctor.document import updated
from mfsd.observe.doctor.examine import examine
from mfsd.observe.doctor.finding import Finding, Kind, Report, make_report

ROOT = Path(__file__).parents[3]
KINDS = [(check, kind) for check in CHECKS for kind in kinds_of(check)]


def test_the_page_is_what_the_checks_say() -> None:
    page = (ROOT / "docs/doctor.md").read_text()
    assert updated(page) == page, "run: python -m mfsd.observe.doctor.document docs/doctor.md"


def test_every_file_of_the_room_is_a_check() -> None:
    files = {f.stem for f in (ROOT / "mfsd/observe/doctor/checks").glob("*.py")} - {"__init__"}
    assert files == {name_of(check) for check in CHECKS}


@pytest.mark.parametrize(("check", "kind"), KINDS, ids=[k.id for _, k in KINDS])
def test_every_finding_is_explained_and_used(check: Check, kind: Kind) -> None:
    assert kind.id.startswith(f"{name_of(check)}."), "an id starts with the name of its check"
    assert [k.id for _, k in KINDS].count(kind.id) == 1
    assert kind.meaning.endswith(".")
    assert kind.remedy or kind.severity in ("ok", "info"), "what is wrong has a remedy"
    assert not (kind.severity == "ok" and kind.remedy)
    source = ast.parse((ROOT / f"mfsd/observe/doctor/checks/{name_of(check)}.py").read_text())
    constant = next(name for name, value in vars(check).items() if value is kind)
    reads = [
        n for n in ast.walk(source) if isinstance(n, ast.Name) and n.id == constant and isinstance(n.ctx, ast.Load)
    ]
    assert reads, f"{constant} is declared and never found"


def report_of(*severities: Any) -> Report:
    return make_report([Finding(f"x.{s}", "x", s, "", "read") for s in severities])


@pytest.mark.parametrize(
    ("severities", "verdict"),
    [
        (("ok", "info", "warn"), "scheduled"),
        (("ok", "unknown"), "cannot tell"),
        (("unknown", "fail", "ok"), "not scheduled"),
    ],
)
def test_a_failure_is_not_the_same_as_not_knowing(severities: tuple[str, ...], verdict: str) -> None:
    report = report_of(*severities)
    assert report.verdict == verdict
    assert [f.severity for f in report.findings] == sorted(
        severities, key=["fail", "warn", "unknown", "info", "ok"].index
    )
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_a_check_that_breaks_is_a_finding(doctor: Any, checks: Callable[[str], Check]) -> None:
    def broken(_: Any) -> Iterator[Finding]:
        raise ZeroDivisionError("surprise")
        yield

    check: Any = SimpleNamespace(__name__="a.broken", __doc__="", TITLE="", run=broken)
    report = examine(doctor.host, (check, checks("coordinator")))
    assert [(f.id, f.severity) for f in report.findings] == [
        ("doctor.check-failed", "unknown"),
        ("coordinator.none", "info"),
    ]
    assert "surprise" in report.findings[0].reason

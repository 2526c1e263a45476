"""What a check can find, and what it has found."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["fail", "warn", "unknown", "info", "ok"]
Verdict = Literal["scheduled", "not scheduled", "cannot tell"]

SCHEMA = 1
"""Version of the JSON report. A change that breaks readers raises it."""


class Finding(Struct, frozen=True):
    """One thing that was examined, with what was read."""

    id: str
    check: str
    severity: Severity
    subject: str
    """Device, interface, process or variable; empty: the node."""
    reason: str
    remedy: str = ""


class Kind(Struct, frozen=True):
    """A finding as it is documented. Calling it makes a finding with the value that was read."""

    id: str
    severity: Severity
    meaning: str
    """What it means for scheduling, in one sentence."""
    remedy: str = ""

    @property
    def check(self) -> str:
        return self.id.partition(".")[0]

    def __call__(self, reason: str, subject: str = "", remedy: str = "") -> Finding:
        """Makes a finding. ``remedy`` replaces the documented one where the finding knows better."""
        return Finding(self.id, self.check, self.severity, subject, reason, remedy or self.remedy)


class Report(Struct, frozen=True):
    """Everything `mfsctl doctor --json` prints."""

    schema: int
    verdict: Verdict
    counts: dict[Severity, int]
    findings: list[Finding]


ORDER: tuple[Severity, ...] = ("fail", "warn", "unknown", "info", "ok")


def make_report(findings: list[Finding]) -> Report:
    """Sorts findings of all checks by gravity, equal ones in the order of the checks."""
    counts = {severity: sum(f.severity == severity for f in findings) for severity in ORDER}
    verdict: Verdict = "not scheduled" if counts["fail"] else "cannot tell" if counts["unknown"] else "scheduled"
    return Report(SCHEMA, verdict, counts, sorted(findings, key=lambda f: ORDER.index(f.severity)))

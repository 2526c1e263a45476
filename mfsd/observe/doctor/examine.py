"""Runs the checks."""

from __future__ import annotations

from mfsd.observe.doctor.checks import CHECKS, Check, name_of
from mfsd.observe.doctor.finding import Finding, Kind, Report, make_report
from mfsd.observe.doctor.host import Host

BROKEN = Kind(
    "doctor.check-failed",
    "unknown",
    "A check ended with an error of its own, so its subject was not examined.",
    "report this error with its reason",
)


def examine(host: Host, checks: tuple[Check, ...] = CHECKS) -> Report:
    """Runs the checks one after the other. A check that fails becomes a finding and does not stop the others."""
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check.run(host))
        except Exception as error:  # a surprise in one corner of the host must not hide the rest
            findings.append(BROKEN(f"{type(error).__name__}: {error}", name_of(check)))
    return make_report(findings)

"""The results of checks."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

INSTALL_SCHEMAS = "pip install 'mfsd[switch-check]'"
"""Remedy if the package with the schema of a check is not installed."""

Status = Literal["pass", "warn", "fail", "not checked"]


class Finding(Struct, frozen=True):
    check: str
    status: Status
    message: str
    remedy: str = ""


def failed(findings: list[Finding]) -> bool:
    return any(f.status == "fail" for f in findings)


def verdict(check: str, problems: list[str], good: str) -> Finding:
    """Returns a pass with the message `good`, or a failure with the first of `problems`."""
    if not problems:
        return Finding(check, "pass", good)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Finding(check, "fail", problems[0] + more, "fix the line, or the template that wrote it")

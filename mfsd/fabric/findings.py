"""What a check found: one line for people, one object for machines."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Status = Literal["pass", "warn", "fail", "not checked"]


class Finding(Struct, frozen=True):
    check: str
    status: Status
    message: str
    remedy: str = ""


def failed(findings: list[Finding]) -> bool:
    return any(f.status == "fail" for f in findings)

"""A claim: what a paper says, the bar that it must meet here, and the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bench.requests.lab import Lab

SHOWN, REFUTED, NOT_RUN = "shown", "refuted", "not run"


class Measured(NamedTuple):
    """`holds`: whether the bar is met; None: it could not be measured, and `note` gives the reason."""

    holds: bool | None
    measured: str
    note: str = ""


class Claim(NamedTuple):
    """`where`: in the paper, or of the command that measures it; `claim`: what it says; `bar`: what counts here."""

    id: str
    system: str
    where: str
    claim: str
    bar: str
    measure: Callable[[Lab], Measured]
    scale: Callable[[Lab], str] = lambda lab: ""
    """How long and on which seeds it was measured."""


class Row(msgspec.Struct, frozen=True):
    """A row as it is written."""

    id: str
    system: str
    where: str
    claim: str
    measured: str
    bar: str
    verdict: str
    note: str = ""


def judge(claim: Claim, lab: Lab) -> Row:
    found = claim.measure(lab)
    verdict = NOT_RUN if found.holds is None else SHOWN if found.holds else REFUTED
    note = "; ".join(part for part in (found.note, claim.scale(lab)) if part)
    return Row(claim.id, claim.system, claim.where, claim.claim, found.measured, claim.bar, verdict, note)

"""Writes the generated part of a page: ``python -m mfsd.observe.doctor.document docs/doctor.md``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from mfsd.observe.doctor.checks import CHECKS, kinds_of, name_of
from mfsd.observe.doctor.examine import BROKEN
from mfsd.observe.doctor.finding import Kind, Report
from mfsd.text import with_part

BEGIN, END = "<!-- begin of generated text -->", "<!-- end of generated text -->"


def text() -> str:
    """Every check with every finding, then the JSON schema of the report."""
    parts = ["## What is examined", ""]
    for check in CHECKS:
        about = " ".join((check.__doc__ or "").split())
        parts += [f"### {check.TITLE} (`{name_of(check)}`)", "", about, "", *_table(kinds_of(check)), ""]
    parts += ["### The doctor itself", "", *_table([BROKEN]), ""]
    schema = msgspec.json.format(msgspec.json.encode(_schema()), indent=2).decode()
    parts += ["## JSON schema", "", "```json", schema, "```", ""]
    return "\n".join(parts)


def _schema() -> Any:
    """The report's schema, the same for any msgspec: since 0.23 it also lists the keys of `counts`."""
    schema = msgspec.json.schema(Report)
    schema["$defs"][Report.__name__]["properties"]["counts"].pop("propertyNames", None)
    return schema


def _table(kinds: list[Kind]) -> list[str]:
    rows = ["| id | severity | what it means | remedy |", "|---|---|---|---|"]
    return rows + [f"| `{k.id}` | {k.severity} | {_cell(k.meaning)} | {_cell(k.remedy)} |" for k in kinds]


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


def updated(page: str) -> str:
    """The page with a new generated part. Raises ValueError if it has none."""
    return with_part(page, BEGIN, text(), END)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(updated(file.read_text()))

"""Checks commands of systems without a published schema against the forms that their manuals document.

A grammar maps the beginning of a section's line ("" for commands outside sections) to the regular expressions of the
commands in that section. It has only the commands that the templates use: it checks templates and hand-edited copies of
their output, and is no model of the system. The headers of the templates name the sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mfsd.fabric.findings import Finding, verdict

PRIORITY = r"[0-7]"
DSCP = r"(?:[0-9]|[1-5][0-9]|6[0-3])"
PERCENT = r"(?:100|[1-9]?[0-9])"
NUMBER = r"[1-9][0-9]*"
NAME = r"[A-Za-z0-9_-]{1,40}"


def check_grammar(grammar: Mapping[str, tuple[str, ...]], comment: str, text: str) -> Finding:
    problems = undocumented(grammar, comment, text)
    if problems:
        return verdict("documented commands", problems, "")
    return Finding(
        "documented commands",
        "pass",
        "every line is a command the manual documents; no schema of this command line is published",
        "read the diff on the switch before committing",
    )


def undocumented(grammar: Mapping[str, tuple[str, ...]], comment: str, text: str) -> list[str]:
    """Returns a message `line N: ...` for every line of `text` that is no documented command."""
    problems: list[str] = []
    section = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith(comment):
            continue
        if not raw.startswith(" "):
            section = ""
        if not any(re.fullmatch(pattern, line) for pattern in grammar[section]):
            where = f" under {section!r}" if section else ""
            problems.append(f"line {number}: {line!r} is not a documented form{where}")
        if not raw.startswith(" "):
            section = next((s for s in grammar if s and line.startswith(s)), "")
    return problems

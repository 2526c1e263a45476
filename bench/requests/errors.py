"""The error for an input that a command cannot use."""

from __future__ import annotations

from mfsd.text import one_line


class UsageError(Exception):
    """One line that names the option or field, its value and the remedy."""

    def __init__(self, problem: str) -> None:
        super().__init__(one_line(problem))

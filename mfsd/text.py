"""Makes text from other sources safe to show, and replaces the generated part of a page. Imports nothing of mfsd."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINE_LENGTH_MAX = 1000


def one_line(text: str, longest: int = LINE_LENGTH_MAX) -> str:
    """Returns the text as one line that is safe for a terminal. Line breaks become spaces and unprintable characters
    escapes. The middle of a text that is longer than `longest` is left out."""
    line = text if text.isprintable() else "".join(map(_shown, " ".join(text.split())))
    if len(line) <= longest:
        return line
    end = longest // 3
    return f"{line[: longest - end - 5]} ... {line[-end:]}"


def whole_number(text: str, most: int) -> int | None:
    """Returns the number that ASCII digits stand for; None for any other text or a number above `most`. The text may be
    of any length."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    number = int(digits or "0") if len(digits) <= len(str(most)) else most + 1
    return number if number <= most else None


def parse_toml(text: str) -> dict[str, Any]:
    """Parses TOML. Raises ValueError with one line for every kind of error: invalid TOML, too deeply nested lists or
    tables, and numbers that Python refuses to read."""
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("not TOML: lists or tables within each other without end") from error
    except ValueError as error:
        raise ValueError(one_line(f"not TOML: {error}")) from error
    return tables


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def with_part(page: str, begin: str, part: str, end: str) -> str:
    """Returns the page with `part` between its two marks in place of the old text. ValueError if a mark is missing."""
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page lacks the lines {begin} and {end}")
    return f"{before}{begin}\n\n{part}\n{end}{after}"

"""Text from elsewhere made fit to be shown to people, and pages with a generated part; below all rooms."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINE_LENGTH_MAX = 1000


def one_line(text: str, longest: int = LINE_LENGTH_MAX) -> str:
    """The text as one line that does nothing to a terminal: breaks become spaces, what cannot be printed is written
    as its escape, and the middle of what is too long is left out."""
    line = text if text.isprintable() else "".join(map(_shown, " ".join(text.split())))
    if len(line) <= longest:
        return line
    end = longest // 3
    return f"{line[: longest - end - 5]} ... {line[-end:]}"


def whole_number(text: str, most: int) -> int | None:
    """What ASCII digits say, None for anything else or more than `most`, however long the text is."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    number = int(digits or "0") if len(digits) <= len(str(most)) else most + 1
    return number if number <= most else None


def parse_toml(text: str) -> dict[str, Any]:
    """ValueError, with one line, for all that is wrong with it: TOML's own errors, tables within tables without end,
    and numbers that Python refuses to read."""
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
    """The page with what stands between its two marks written anew. ValueError when it lacks them."""
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page lacks the lines {begin} and {end}")
    return f"{before}{begin}\n\n{part}\n{end}{after}"

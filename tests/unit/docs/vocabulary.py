"""Words that the project gave up, what stands for them, and where they are still left.

    python -m tests.unit.docs.vocabulary           # where each stands
    python -m tests.unit.docs.vocabulary --shrink  # takes what is clean off vocabulary_left.txt

A new word is a line of RETIRED. Where it cannot be mended at once, its folders are named in vocabulary_left.txt,
one a line, so that two branches that clean different folders merge.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
LEFT = Path(__file__).with_name("vocabulary_left.txt")
CODE = (".c", ".h", ".cpp", ".py", ".pyi", ".pyx", ".pxi")
PAGES = (".md",)
ALL = (*CODE, *PAGES)
NAMES = "names of files"
HISTORY = ("CHANGELOG.md", "docs/results/", "tests/unit/docs/vocabulary", "tests/unit/docs/test_vocabulary")
"""What says how things were called, and this."""


def identifier(word: str) -> str:
    """A pattern of the word where it names something; as a verb in a sentence it may stay."""
    return rf"\w_{word}\b|\b{word}_\w|[.>]{word}\b|\b{word}\b(?=\s*(=[^=]|\(|\[|;))"


class Retired(NamedTuple):
    word: str
    instead: str
    where: tuple[str, ...] | str = ALL
    pattern: str = ""
    """Of the word as it stands; else the word by itself or as a part of a snake_case name."""

    def expression(self) -> re.Pattern[str]:
        return re.compile(self.pattern or rf"(?<![A-Za-z]){self.word}(?![A-Za-z])", re.ASCII)


RETIRED = (
    Retired("RequestTold", "RequestInfo, or announced", CODE),
    Retired("BatchTold", "BatchInfo, or announced", CODE),
    Retired("BatchLook", "BatchSnapshot", CODE),
    Retired("TaskLook", "TaskSnapshot", CODE),
    Retired("_look", "snapshot, poll, evaluate, read", CODE, r"\w_look\b"),
    Retired("MFS_LANES", "MFS_SUBMIT_RINGS", CODE, r"\bMFS_LANES"),
    Retired("told", "announced, reported, or the struct's name", CODE, identifier("told")),
    Retired("laned", "class_marked"),
    Retired("cage", "sandbox"),
    Retired("judged", "evaluated, decided; of versions: supported", CODE, identifier("judged")),
    Retired("hurry", "urgent"),
    Retired("stirs", "wakes"),
    Retired("testimony", "reports"),
    Retired("heed", "read, obey, take into account", pattern=r"(?<![A-Za-z])heed(s|ed)?(?![A-Za-z])"),
    Retired("barren", "useless, without effect"),
    Retired("worn", "exhausted"),
    Retired("shed", "dropped"),
    Retired("he", "it, the client, the program", pattern=r"\b(he|his|him)\b"),
    Retired("whoever", "the caller, the thread, the client", (".c", ".h", ".pyx", ".pxi")),
    Retired("simulation-studies", "docs/results/studies.md", ALL, r"simulation-studies"),
    Retired("words.py", "types.py", NAMES, r"(^|/|_)words\.py$"),
    Retired("once.py", "warn_once.py", NAMES, r"(^|/)once\.py$"),
    Retired("cage.py", "sandbox.py", NAMES, r"(^|/)cage\.py$"),
    Retired("reach.py", "optimality_gap.py", NAMES, r"(^|/)reach\.py$"),
    Retired("asking.py", "relay.py", NAMES, r"(^|/)asking\.py$"),
    Retired("look.c", "snapshot.c, explain.c", NAMES, r"(^|/|_)look\.[ch]$"),
    Retired("told.py", "the struct's name", NAMES, r"(^|/|_)told(_\w+)?\.py$"),
)


@cache
def tracked() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(
        name
        for name in listed.stdout.split("\0")
        if name and "_pb2" not in name and not name.startswith(HISTORY) and (ROOT / name).is_file()
    )


@cache
def lines(name: str) -> tuple[str, ...]:
    return tuple((ROOT / name).read_text().splitlines())


def folder_of(name: str) -> str:
    """Two levels of folders; a page of docs/ stands for itself."""
    parts = name.split("/")
    if parts[0] == "docs" or len(parts) == 1:
        return name
    return "/".join(parts[: min(len(parts) - 1, 3 if parts[:2] == ["tests", "unit"] else 2)])


def places(retired: Retired) -> Iterator[tuple[str, str]]:
    """(file, place) of each line that has the word."""
    expression = retired.expression()
    for name in tracked():
        if retired.where == NAMES:
            if expression.search(name):
                yield name, name
        elif name.endswith(tuple(retired.where)):
            for number, line in enumerate(lines(name), 1):
                if expression.search(line):
                    yield name, f"{name}:{number}: {line.strip()}"


def left() -> dict[str, set[str]]:
    """Word -> folders that still have it."""
    known: dict[str, set[str]] = {}
    for line in LEFT.read_text().splitlines():
        word, folder = line.rsplit(" ", 1)
        known.setdefault(word, set()).add(folder)
    return known


def main(arguments: list[str]) -> int:
    allowed = left()
    kept = []
    for retired in RETIRED:
        found = [folder_of(name) for name, _ in places(retired)]
        folders = sorted(set(found))
        print(f"{retired.word} ({retired.instead}): {len(found)} in {' '.join(folders) or 'no folder'}")
        kept += [f"{retired.word} {folder}\n" for folder in folders if folder in allowed.get(retired.word, ())]
    if arguments == ["--shrink"]:
        LEFT.write_text("".join(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

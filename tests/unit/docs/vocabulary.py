"""Words that the project gave up, and what stands for them. A new word is a line of RETIRED."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
CODE = (".c", ".h", ".cpp", ".py", ".pyi", ".pyx", ".pxi")
PAGES = (".md",)
ALL = (*CODE, *PAGES)
NAMES = "names of files"
HISTORY = ("CHANGELOG.md", "docs/results/", "tests/unit/docs/vocabulary", "tests/unit/docs/test_vocabulary")
"""What says how things were called, and this."""


def identifier(word: str, but: str = "") -> str:
    """A pattern of the word where it names something; as a verb in a sentence it may stay."""
    return rf"\w_{word}\b|\b{word}_{but}\w|[.>]{word}\b|\b{word}\b(?=\s*(=[^=]|\(|\[|;))"


def somebody(word: str) -> str:
    """A pattern of the word by itself and in snake_case names; the constant NOBODY is the system's user."""
    return rf"(?<![A-Za-z]){word}(s|_|\b)"


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
    Retired("whoever", "the caller, the thread, the client", pattern=somebody("[Ww]hoever")),
    Retired("nobody", "no client, nothing, none; or the passive", pattern=somebody("[Nn]obody")),
    Retired("somebody", "a user, a client, another program", pattern=somebody("[Ss]omebody")),
    Retired("anybody", "any user, any client", pattern=somebody("[Aa]nybody")),
    Retired("everybody", "all users, all clients", pattern=somebody("[Ee]verybody")),
    Retired("look", "snapshot, sample, poll, evaluate, read", CODE, identifier("look", "(?!up)")),
    Retired("looked at", "read, examined, evaluated", pattern=r"\blooked at\b"),
    Retired("said", "output, message, reported", CODE, identifier("said")),
    Retired("heard", "received", CODE, identifier("heard")),
    Retired("hears", "receives, is sent", pattern=r"\bhears\b"),
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


def places(retired: Retired) -> Iterator[str]:
    """Each line that has the word, with its file."""
    expression = retired.expression()
    for name in tracked():
        if retired.where == NAMES:
            if expression.search(name):
                yield name
        elif name.endswith(tuple(retired.where)):
            for number, line in enumerate(lines(name), 1):
                if expression.search(line):
                    yield f"{name}:{number}: {line.strip()}"

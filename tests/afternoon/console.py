"""A page with commands and what they answer: read, compared with what was really answered, and written anew.

A block of ```console has lines that begin with a prompt, and below each what it answered. A comment above a block says
what is special about its commands:

    <!-- run: WORD, WORD=VALUE; ... -->   how they are run (runner.py)
    <!-- show: 12 -->                     the page has the first lines only, then "..."
    <!-- cut: 100 -->                     and of each line so much
    <!-- moves -->                        only the first line of an answer is the same every time
    <!-- moves: all -->                   not even that: only that there is one
    <!-- needs: gpu -->                   not run: takes what a test's machine need not have
    <!-- elsewhere: PATH -->              not run: that test does

Numbers, their units, and how many rows of a kind there are always move.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

REST = "..."
NEEDS = {
    "gpu": "a GPU and the engine",
    "nic": "an RDMA NIC and a second host",
    "switch": "a switch",
    "kubernetes": "a cluster of Kubernetes",
    "registry": "a package registry",
}
"""What a block may need so that it is not run, and in words."""
_BLOCK = re.compile(r"(?P<notes>(?:<!--[^>]*-->\n)*)```console\n(?P<body>.*?)```\n", re.DOTALL)
_NOTE = re.compile(r"<!-- (\w+)(?:: (.*?))? -->")
_PROMPT = re.compile(r"(?P<place>[a-z0-9]*)\$ (?P<line>.*)")
_UNIT = r"(?:ns|us|ms|s|min|h|d|[KMGT]iB(?:/s)?|B(?:/s)?|[kKMG]?bit(?:/s)?|[mg]bit|%)"
_MOVING = re.compile(rf"(?:(?<![\w.])-?\d[\d.,:]*(?:e[-+]?\d+)?(?:\s?{_UNIT}(?!\w))?|\b[0-9a-f]{{12,}}\b)+")

_PYTHON = re.compile(r"(?<=python)3\.\d+")
_QUOTES = re.compile(r"['\"‘’]")
"""Which systemd has changed."""


@dataclass
class Step:
    """One command and its answer in the page."""

    line: str
    place: str
    """Of which shell: a node of the playground, or empty."""
    answer: list[str]
    notes: dict[str, str]
    block: int

    @property
    def skipped(self) -> str:
        """Why it is not run; empty when it is."""
        return self.notes.get("needs", "") or self.notes.get("elsewhere", "")


@dataclass
class Page:
    text: str
    steps: list[Step] = field(default_factory=list)


def read(text: str) -> Page:
    """ValueError when a block says what is not known."""
    page = Page(text)
    for number, block in enumerate(_BLOCK.finditer(text)):
        notes = {name: value or "yes" for name, value in _NOTE.findall(block["notes"])}
        unknown = notes.keys() - {"run", "show", "cut", "moves", "needs", "elsewhere"}
        if unknown or notes.get("needs", "gpu") not in NEEDS:
            raise ValueError(f"a block says {notes}, which is not known: {block['body'][:80]}")
        for line in block["body"].splitlines():
            if prompt := _PROMPT.fullmatch(line):
                page.steps.append(Step(prompt["line"], prompt["place"], [], notes, number))
            else:
                page.steps[-1].answer.append(line)
    return page


def shape(line: str) -> str:
    """The line without what moves."""
    words = _MOVING.sub("#", _PYTHON.sub("#", _QUOTES.sub("", line))).split()
    merged = itertools.groupby("#" if word == "-" else word for word in words)
    return " ".join(word for key, same in merged for word in (["#"] if key == "#" else same))


def shapes(lines: list[str]) -> list[str]:
    """Of an answer: rows of one kind once."""
    return [key for key, _ in itertools.groupby(filter(None, map(shape, lines)))]


def differs(step: Step, answered: list[str]) -> str:
    """In words, what the page says otherwise; empty when it is as the page says."""
    wanted, got = shapes([line for line in step.answer if line != REST]), shapes(answered)
    if step.notes.get("moves") == "all":
        return "" if got else f"$ {step.line}\n  answered nothing"
    if "moves" in step.notes:
        wanted, got = wanted[:1], got[:1]
    elif REST in step.answer:
        got = got[: len(wanted)]
    for want, have in itertools.zip_longest(wanted, got, fillvalue="(nothing)"):
        if want.endswith(REST):  # cut, perhaps within a word
            want = re.sub(r"[\w#]*$", "", want.removesuffix(REST))
            have = have[: len(want)]
        if want != have:
            return f"$ {step.line}\n  the page: {want}\n  answered: {have}\n  whole: " + "\n  ".join(answered[:40])
    return ""


def shown(step: Step, answered: list[str]) -> list[str]:
    """What the page would have of this answer."""
    lines = [line.rstrip() for line in answered]
    while lines and not lines[-1]:
        lines.pop()
    most, longest = int(step.notes.get("show", "0")), int(step.notes.get("cut", "0"))
    if longest:
        lines = [line if len(line) <= longest else f"{line[:longest]}{REST}" for line in lines]
    return [*lines[:most], REST] if most and len(lines) > most else lines


def written(page: Page, answer: Callable[[Step], list[str]]) -> str:
    """The page with these answers."""
    steps = iter(page.steps)
    groups = {number: list(found) for number, found in itertools.groupby(steps, key=lambda step: step.block)}
    numbers = itertools.count()

    def block(found: re.Match[str]) -> str:
        lines = []
        for step in groups.get(next(numbers), []):
            lines += [f"{step.place}$ {step.line}", *answer(step)]
        return f"{found['notes']}```console\n" + "".join(f"{line}\n" for line in lines) + "```\n"

    return _BLOCK.sub(block, page.text)

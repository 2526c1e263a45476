"""The manual pages say what the commands' help says, and a strict reader finds nothing wrong with them."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mfsd.cli.manual import Page, pages
from tests.unit.docs.test_commands import PROGRAMS, parse

MAN = Path(__file__).resolve().parents[3] / "docs" / "man"
PAGES = {page.file_name: page for page in pages()}


def paths(name: str, command: click.Command) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines of its help that stay as they are."""
    blocks = f"{inspect.cleandoc(command.help or '')}\n\n{command.epilog or ''}".split("\n\n")
    output = [line for block in blocks if block.startswith("\b") for line in block.splitlines()]
    yield name, output
    if isinstance(command, click.Group):
        for word, child in command.commands.items():
            yield from paths(f"{name} {word}", child)


COMMANDS = dict(found for name, command in PROGRAMS.items() for found in paths(name, command))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_of_itself(name: str) -> None:
    assert any(re.match(rf"\s*(sudo )?(/opt/mfs/bin/)?{name}\b", line) for line in COMMANDS[name]), name


def essence(text: str) -> list[str]:
    """The words, without what another version of the command-line library would write differently."""
    kept = [line for line in text.splitlines() if not line.startswith(("[OPTIONS]", ".TH"))]
    options = [re.sub(r"^\.B (.*)$", lambda m: " ".join(re.findall(r"\\-[a-z\\-]+", m[1])), line) for line in kept]
    return re.sub(r"\[(default|env|required|\d)[^]]*\]", "", " ".join(options)).split()


def test_there_is_a_page_for_every_command_and_no_other() -> None:
    assert {path.name for path in MAN.iterdir()} == set(PAGES), "run: make man"


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    assert essence((MAN / name).read_text()) == essence(PAGES[name].text), "run: make man"


@pytest.mark.parametrize("page", PAGES.values(), ids=list(PAGES))
def test_a_strict_reader_accepts_the_page(page: Page, tmp_path: Path) -> None:
    file = tmp_path / page.file_name
    file.write_text(page.text)
    complaints = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", file], capture_output=True, text=True).stdout
    assert [line for line in complaints.splitlines() if "missing date" not in line] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_has_examples_that_the_program_takes(name: str) -> None:
    lines = [re.sub(r"^(bash|zsh|fish): ", "", line.strip()).strip() for line in COMMANDS[name]]
    examples = [re.split(r" {2,}(?![- ])| [>|#] ", line)[0] for line in lines if re.match(rf"{name}( |$)", line)]
    assert examples
    for example in examples:
        program, *arguments = shlex.split(example)
        if "COMMAND" not in arguments:
            parse(PROGRAMS[program], program, arguments)

"""mfsctl imports a command when it is called, and has every command that there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from mfsd.cli import commands
from mfsd.cli.ctl import COMMANDS, main

PARTS = {"trace_record"}
"""Modules of a command's own subcommands."""


def imported(*arguments: str) -> set[str]:
    """The commands' modules that a call of mfsctl imports."""
    line = "import sys; from mfsd.cli.ctl import main; main(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", line, *arguments], capture_output=True, text=True, check=True)
    prefix = f"{commands.__name__}."
    return {name.removeprefix(prefix) for name in done.stdout.split() if name.startswith(prefix)}


@pytest.mark.parametrize(("arguments", "modules"), [(["--version"], set()), (["mode", "--help"], {"mode"})])
def test_a_call_imports_the_command_that_it_names(arguments: list[str], modules: set[str]) -> None:
    assert imported(*arguments) == modules


def test_every_module_of_a_command_is_a_command() -> None:
    folder = Path(*commands.__path__)
    assert set(COMMANDS) == {path.stem for path in folder.glob("*.py")} - {"__init__"} - PARTS
    assert all(main.commands[name].name == name for name in COMMANDS)


def test_a_command_that_there_is_not_is_refused() -> None:
    with pytest.raises(click.UsageError, match="No such command 'statsu'"):
        main(["statsu"], standalone_mode=False)

"""Commands in the documents: the programs accept each of them, and those that need no hardware are run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mfsd.cli.ctl import main as mfsctl
from mfsd.cli.daemon import main as mfsd
from mfsd.soft_roce.launcher import main as mfs_soft_roce
from nccl_shim.run import main as mfs_run
from tests.support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("guide", "operations", "faq", "coordinator", "nccl", "adapters")),
]
PROGRAMS: dict[str, click.Command] = {
    "mfsd": mfsd,
    "mfsctl": mfsctl,
    "mfs-run": mfs_run,
    "mfs-soft-roce": mfs_soft_roce,
}
RUNNABLE = {
    ("mfsctl", "status"),
    ("mfsctl", "rules"),
    ("mfsctl", "reload"),
    ("mfsctl", "mode"),
    ("mfsctl", "trace", "record"),
    ("mfsctl", "trace", "merge"),
    ("mfsd", "--check-config"),
}
"""Beginnings of commands that a daemon and a file are enough for."""


def commands() -> Iterator[tuple[str, str]]:
    """(page, line) of every line of a block that begins with one of our programs."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL) + re.findall(r"(?:^    \S.*\n)+", text, re.MULTILINE)
        for block in blocks:
            for line in block.splitlines():
                line = line.split("  #")[0].strip().removesuffix("&").strip()
                if line.split(" ")[0] in PROGRAMS:
                    yield page, line


COMMANDS = list(commands())


def parse(command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None) -> None:
    """Raises UsageError when the program would refuse these arguments."""
    context = command.make_context(name, list(arguments), parent=parent)
    rest = [*getattr(context, "_protected_args", ()), *context.args]  # click before 9 keeps the first one apart
    if isinstance(command, click.Group) and rest:
        found, child, more = command.resolve_command(context, rest)
        assert found is not None and child is not None
        parse(child, found, more, context)


def test_there_are_commands_in_the_documents() -> None:
    assert {line.split()[0] for _, line in COMMANDS} == set(PROGRAMS)


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}: {line}" for page, line in COMMANDS])
def test_the_program_accepts_it(page: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line.replace("...", "").split(" | ")[0])
    try:
        parse(PROGRAMS[name], name, arguments)
    except click.exceptions.Exit:
        pass  # --version and --help end at once
    except click.UsageError as error:
        pytest.fail(f"{page}: {line}: {error.format_message()}")


def test_what_needs_no_hardware_runs(folder: Path) -> None:
    ran = 0
    with Daemon(folder, "") as daemon:
        (folder / "mfsd.toml").write_text("")
        for page, line in COMMANDS:
            words = shlex.split(line)
            if not any(tuple(words[: len(begin)]) == begin for begin in RUNNABLE) or "--watch" in words or "|" in words:
                continue
            module = {"mfsctl": "mfsd.cli.ctl", "mfsd": "mfsd.cli.daemon"}[words[0]]
            result = subprocess.run(
                [sys.executable, "-m", module, *words[1:]],
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=60,
                env={**os.environ, "MFS_SOCKET": str(daemon.socket), "PYTHONPATH": str(ROOT)},
            )
            assert result.returncode == 0, f"{page}: {line}: {result.stdout}{result.stderr}"
            ran += 1
    assert ran >= 6

"""Commands in the documents: the programs accept each of them. tests/integration/test_documents.py runs them."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mfsd.cli.ctl import main as mfsctl
from mfsd.cli.daemon import main as mfsd
from mfsd.soft_roce.launcher import main as mfs_soft_roce
from nccl_shim.run import main as mfs_run

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"))
)
PROGRAMS: dict[str, click.Command] = {
    "mfsd": mfsd,
    "mfsctl": mfsctl,
    "mfs-run": mfs_run,
    "mfs-soft-roce": mfs_soft_roce,
}


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
    name, *arguments = shlex.split(re.split(r" [|>] ", line.replace("...", ""))[0])
    try:
        parse(PROGRAMS[name], name, arguments)
    except click.exceptions.Exit:
        pass  # --version and --help end at once
    except click.UsageError as error:
        pytest.fail(f"{page}: {line}: {error.format_message()}")


SET_BY_THE_SHELL = {"HOME", "PATH", "PWD", "USER"}


@pytest.mark.parametrize("page", PAGES)
def test_variables_are_set_before_they_are_used(page: str) -> None:
    """A reader who types the lines of a page one after the other has them."""
    known = set(SET_BY_THE_SHELL)
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        for line in block.splitlines():
            used = set(re.findall(r"\$\{?([A-Z][A-Z_]+)", line))
            assert used <= known, f"{page}: {line}: nothing before it sets {used - known}"
            known |= set(re.findall(r"(?:^|export )([A-Z][A-Z_]+)=", line))


@pytest.mark.parametrize("page", PAGES)
def test_files_are_written_before_they_are_read(page: str) -> None:
    """The configuration of an example is made by a line above it, or is where it belongs."""
    made = {"/etc/mfs/mfsd.toml"}
    for block in re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        for line in block.splitlines():
            read = set(re.findall(r"--config (\S+)", line))
            assert read <= made, f"{page}: {line}: nothing before it writes {read - made}"
            made |= set(re.findall(r" > (\S+)", line))


TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
OTHERS = [
    (page, line.split("  ")[0].strip())
    for page in PAGES
    for line in re.findall(r"^(?:    )?((?:make|python -m bench)\b.*)", (ROOT / page).read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(("page", "line"), OTHERS, ids=[f"{page}: {line}" for page, line in OTHERS])
def test_the_projects_own_tools_have_it(page: str, line: str) -> None:
    """`make` and the benchmarks, which are run by themselves: targets, modules and options exist."""
    words = shlex.split(line)
    if words[0] == "make":
        assert words[1] in TARGETS, f"{page}: {line}"
        return
    module, *arguments = words[2:]
    assert importlib.util.find_spec(module) is not None, f"{page}: {line}"
    if module == "bench" and arguments[0] in ("sim", "testbed") and arguments[1].startswith("--"):
        importlib.import_module(f"bench.{arguments[0]}.command").parser().parse_args(arguments[1:])

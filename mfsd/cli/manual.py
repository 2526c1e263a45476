"""Writes the manual pages from the commands' own help, so that they cannot differ.

``python -m mfsd.cli.manual docs/man`` updates the pages there; a distribution installs them.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import click

CONFIGURATION = """\
One file in TOML serves a node's daemon and a coordinator. Every key has a default, so that no file is needed.
`mfsd --print-default-config` prints a file with all keys, `mfsd --check-config` prints what is wrong with a file,
`mfsctl reload` makes a daemon read its file again, and `mfsctl config show` shows which values are in force and where
each comes from.

Durations are a number and ns, us, ms or s; rates a number and bit, kbit, mbit, gbit or tbit; sizes a number and b, kib,
mib or gib. An unknown key is an error. Options of mfsd override the file."""
EXAMPLE = """
mode = "observe"

[metrics]
listen = "0.0.0.0:9464"

[cluster]
coordinators = ["coord-1:7400", "coord-2:7400"]

[nic."mlx5_0"]
rate = "400gbit"

[[rule]]
process = "mooncake_client"
action = "hold"
stage = "reuse"
"""


class Page(NamedTuple):
    """One manual page: its name, section and text (man(7) macros)."""

    name: str
    section: int
    text: str

    @property
    def file_name(self) -> str:
        return f"{self.name}.{self.section}"


def pages() -> list[Page]:
    """Returns a page for every command, and for every subcommand of mfsctl (mfsctl-status)."""
    from mfsd.cli import ctl, daemon
    from mfsd.soft_roce import launcher
    from nccl_shim import run

    commands: list[tuple[str, int, click.Command]] = [
        ("mfsd", 8, daemon.main),
        ("mfs-run", 1, run.main),
        ("mfs-soft-roce", 1, launcher.main),
        *_tree("mfsctl", 8, ctl.main),
    ]
    names = {name: section for name, section, _ in commands} | {"mfsd.toml": 5}
    found = [Page(name, section, _page(name, section, command, names)) for name, section, command in commands]
    return [*found, Page("mfsd.toml", 5, _configuration())]


def _configuration() -> str:
    """Returns mfsd.toml(5), made from the structs that read the file."""
    from mfsd.node.reference import Section, sections

    lines = [f'.TH "MFSD.TOML" 5 "" "MFS {version("mfsd")}" "MFS Manual"', ".SH NAME"]
    lines += ["mfsd.toml \\- configuration of mfsd, of a node\\(aqs daemon and of a coordinator", ".SH DESCRIPTION"]
    lines += _paragraphs(CONFIGURATION)

    def described(section: Section) -> list[str]:
        text = [f".SH {_escape(section.title.upper())}", *_filled(section.summary)]
        for key in section.keys:
            default = f" Default: {key.default}." if key.default else " Required." if key.required else ""
            meaning = key.meaning[:1].upper() + key.meaning[1:]
            text += [".TP", f".B {_escape(key.name)}", *_filled(f"{meaning}; {key.may_be}.{default}")]
        return text

    for section in sections():
        lines += described(section)
    lines += [".SH EXAMPLES", ".nf", *map(_escape, EXAMPLE.strip("\n").split("\n")), ".fi"]
    lines += [".SH FILES", ".TP", ".B /etc/mfs/mfsd.toml", "The file that mfsd reads unless --config names another."]
    lines += [".SH SEE ALSO", ".BR mfsd (8) ,", ".BR mfsctl\\-reload (8) ,", ".BR mfsctl (8)"]
    return "\n".join(lines) + "\n"


def _tree(name: str, section: int, command: click.Command) -> Iterator[tuple[str, int, click.Command]]:
    yield name, section, command
    if isinstance(command, click.Group):
        for word, child in sorted(command.commands.items()):
            yield from _tree(f"{name}-{word}", section, child)


def _page(name: str, section: int, command: click.Command, names: dict[str, int]) -> str:
    words = name.replace("mfsctl-", "mfsctl ").replace("-", " ") if name.startswith("mfsctl-") else name
    context = click.Context(command, info_name=words)
    help_text = inspect.cleandoc(command.help or "").partition("\f")[0]
    # The date is left out: a page must not change unless its text does.
    lines = [f'.TH "{name.upper()}" {section} "" "MFS {version("mfsd")}" "MFS Manual"', ".SH NAME"]
    lines += [f"{_escape(name)} \\- {_escape(_summary(help_text))}", ".SH SYNOPSIS"]
    lines += [f".B {_escape(words)}", _escape(" ".join(command.collect_usage_pieces(context))), ".SH DESCRIPTION"]
    lines += _paragraphs(help_text)
    options = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
    if options:
        lines.append(".SH OPTIONS")
        for flags, text in options:
            lines += [".TP", f".B {_escape(flags)}", *_filled(text)]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for word, child in sorted(command.commands.items()):
            lines += [".TP", f".BR {_escape(f'{name}-{word}')} ({section})"]
            lines.append(_escape(_summary(inspect.cleandoc(child.help or ""))))
    if command.epilog:
        lines += _epilog(inspect.cleandoc(command.epilog))
    others = [other for other in names if other != name and _related(other, name)]
    if others:
        lines += [
            ".SH SEE ALSO",
            ",\n".join(f".BR {_escape(o)} ({names[o]})" for o in sorted(others)).replace(",\n", " ,\n"),
        ]
    return "\n".join(lines) + "\n"


def _related(other: str, name: str) -> bool:
    """Whether the other page is a main command, or the parent of this subcommand."""
    if other == "mfsd.toml":
        return name in ("mfsd", "mfsctl-reload", "mfsctl-config-show")
    return other.count("-") == 0 or other in ("mfs-run", "mfs-soft-roce") or name.startswith(f"{other}-")


def _summary(help_text: str) -> str:
    """Returns the first sentence, as a phrase."""
    first = " ".join(help_text.split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)])[.:;] ?", first)[0].rstrip(".")


def _paragraphs(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        literal = paragraph.startswith("\b\n")
        body = paragraph.removeprefix("\b\n")
        if lines:
            lines.append(".PP")
        lines += [".nf", *map(_escape, body.split("\n")), ".fi"] if literal else _filled(body)
    return lines


def _epilog(text: str) -> list[str]:
    """Blocks of the form `\\b / Title: / lines`; each becomes a section."""
    lines: list[str] = []
    for block in text.split("\n\n"):
        title, _, body = block.removeprefix("\b\n").partition("\n")
        if body and title.endswith(":"):
            lines += [
                f".SH {_escape(title[:-1].upper())}",
                ".nf",
                *map(_escape, inspect.cleandoc(body).split("\n")),
                ".fi",
            ]
        else:
            lines += [".PP", *_filled(block.removeprefix("\b\n"))]
    return lines


def _filled(text: str) -> list[str]:
    """Wraps the text into source lines, so that a diff shows where it changed."""
    return [_escape(line) for line in textwrap.wrap(" ".join(text.split()), 72, break_on_hyphens=False)]


def _escape(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def write(folder: Path) -> None:
    """Replaces the pages in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {page.file_name: page.text for page in pages()}
    for old in folder.iterdir():
        if old.name not in wanted:
            old.unlink()
    for file_name, text in wanted.items():
        (folder / file_name).write_text(text)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

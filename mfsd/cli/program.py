"""What our commands have in common: a closed output pipe is no error, and the daemon's socket may be given before or
after the subcommand."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from mfsd.cli.daemon_call import ATTACH_SOCKET
from mfsd.node.address import control_beside

EXIT_PIPE = 141
"""As of a program that SIGPIPE ends: `mfsctl ... | head` has shown all that was wanted."""
C = TypeVar("C", bound=Callable[..., Any])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # the interpreter flushes once more at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_PIPE)


class _Quiet(click.Command):
    """A command that ends silently if its output is not read."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _quiet():  # --help and --version are written here
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _quiet():
            return super().invoke(ctx)


class Program(_Quiet):
    """A program without subcommands."""


class ProgramGroup(_Quiet, click.Group):
    """A program with subcommands."""


class Subcommands(Mapping[str, click.Command]):
    """Subcommands that are imported only when looked up, so that one starts without the imports of the others. Each is
    in a module of its own name in the package."""

    def __init__(self, package: str, names: Sequence[str]) -> None:
        self._package, self._names = package, names

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._names:
            raise KeyError(name)
        command: click.Command = getattr(importlib.import_module(f"{self._package}.{name}"), name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def daemon_command(command: C) -> C:
    """Adds `--socket` to the command, which gets the path at which the daemon is asked as its first argument."""

    @click.option(
        "--socket",
        "own_socket",
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Socket that programs attach to; it may also be given before the command.",
    )
    @click.pass_context
    @functools.wraps(command)
    def run(context: click.Context, /, *arguments: Any, own_socket: Path | None, **options: Any) -> Any:
        if own_socket:
            context.obj = control_beside(own_socket)
            context.meta[ATTACH_SOCKET] = own_socket
        return command(context.obj, *arguments, **options)

    return run  # type: ignore[return-value]

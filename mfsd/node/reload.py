"""Applies the part of a new configuration that a running process can take over, by the declaration of each key."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from mfsd.node.config import Config
from mfsd.node.schema import Process, keys


class Reloaded(NamedTuple):
    config: Config
    """The configuration in force: new values that could be taken over, else the old ones."""
    applied: list[str]
    """Changed keys, dotted, that are in force."""
    needs_restart: list[str]
    """Keys that have changed only in the file."""


def reloaded(old: Config, new: Config, process: Process) -> Reloaded:
    applied: list[str] = []
    waiting: list[str] = []

    def merged(before: Struct, after: Struct, prefix: str, inherited: tuple[Process, ...]) -> Struct:
        kept = {}
        for key in keys(type(before)):
            reload = inherited if key.reload is None else key.reload
            was, now = getattr(before, key.attribute), getattr(after, key.attribute)
            if isinstance(was, Struct) and isinstance(now, Struct):
                kept[key.attribute] = merged(was, now, f"{prefix}{key.name}.", reload)
            elif was != now:
                (applied if process in reload else waiting).append(f"{prefix}{key.name}")
                kept[key.attribute] = now if process in reload else was
        return replace(after, **kept)

    config = merged(old, new, "", ())
    assert isinstance(config, Config)
    return Reloaded(config, applied, waiting)

"""Which part of a new configuration a running process takes over: what the declaration of each key says."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from mfsd.node.config import Config
from mfsd.node.schema import Process, keys


class Reloaded(NamedTuple):
    config: Config
    """What is in force now: the new values where they could be taken over, else the old ones."""
    applied: list[str]
    """Keys that have changed, dotted."""
    needs_restart: list[str]
    """Keys that have changed in the file alone."""


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

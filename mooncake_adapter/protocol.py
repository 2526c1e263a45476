"""Protocols of adapters: `TransferAdapter` for a library that moves bytes, `EngineAdapter` for a serving engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from mooncake_adapter.metadata import MetadataSources
from mooncake_adapter.session import Holder
from mooncake_adapter.warn_once import WarnOnce


class TransferAdapter(Protocol):
    """A module that adapts one class of a library. `mooncake_adapter.hook.ADAPTERS` maps the library's module to it,
    and the class is replaced when that module is imported."""

    CLASS: str
    """The name of the class."""

    def adapted(self, base: type, holder: Holder, sources: MetadataSources, once: WarnOnce) -> type:
        """Returns a drop-in subclass of `base` that submits each transfer to the session as one or more
        :class:`mfsd.transfer.Transfer` and issues them when they are permitted. Without a session it behaves as
        `base`."""


class EngineAdapter(Protocol):
    """A module that adapts one engine. It reports which request memory belongs to (`MetadataSources.add_finder`), and
    batches and layers if the engine has them (`Session.batch`)."""

    def supported_version(self, version: str, once: WarnOnce) -> bool:
        """Whether the interfaces of this version were tested; warns once if they were not."""

    def register(self) -> None:
        """The engine's plugin entry point. It may be called more than once in a process."""


def tested(engine: str, version: str, interface: str, known: Collection[str], otherwise: str, once: WarnOnce) -> bool:
    """Whether `interface`, the relevant part of `version`, is in `known`; if not, warns once and says what happens
    instead (`otherwise`)."""
    if interface in known:
        return True
    once.warn(engine.lower(), "%s %s was not tested (tested: %s); %s", engine, version, ", ".join(known), otherwise)
    return False

"""What an adapter fills: `TransferAdapter` for a library that moves bytes, `EngineAdapter` for a serving engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from mooncake_adapter.metadata import MetadataSources
from mooncake_adapter.session import Holder
from mooncake_adapter.warn_once import WarnOnce


class TransferAdapter(Protocol):
    """A module for one class of a library. `mooncake_adapter.hook.ADAPTERS` names it beside the library's module, and
    the class is replaced when that is imported."""

    CLASS: str
    """The name of the class."""

    def adapted(self, base: type, holder: Holder, sources: MetadataSources, once: WarnOnce) -> type:
        """A drop-in subclass of `base`: each of its transfers is submitted to the session as one or more
        :class:`mfsd.transfer.Transfer` and issued when they are permitted. Without a session it is `base`."""


class EngineAdapter(Protocol):
    """A module for one engine. It reports which request memory belongs to (`MetadataSources.add_finder`), and batches
    and layers where the engine has them (`Session.batch`)."""

    def supported_version(self, version: str, once: WarnOnce) -> bool:
        """Whether the interfaces of this version were tested; warns once where they were not."""

    def register(self) -> None:
        """The engine's plugin entry point; may be called more than once in a process."""


def tested(engine: str, version: str, interface: str, known: Collection[str], otherwise: str, once: WarnOnce) -> bool:
    """Whether `interface`, the part of `version` that counts, is a known one; if not, one warning says what happens
    `otherwise`."""
    if interface in known:
        return True
    once.warn(engine.lower(), "%s %s was not tested (tested: %s); %s", engine, version, ", ".join(known), otherwise)
    return False

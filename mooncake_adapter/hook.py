"""Replaces the classes of Mooncake and NIXL by adapted ones when their modules are imported, now or later."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake_adapter.process import Process

ADAPTERS = {
    "mooncake.engine": "mooncake_adapter.mooncake.engine",
    "mooncake.store": "mooncake_adapter.mooncake.store",
    "nixl_cu12._api": "mooncake_adapter.nixl.agent",
    "nixl_cu13._api": "mooncake_adapter.nixl.agent",
    "nixl_rocm._api": "mooncake_adapter.nixl.agent",
    "rixl._api": "mooncake_adapter.nixl.agent",
}
"""Module of the library -> our module that adapts its class (see protocol.TransferAdapter)."""
NIXL = "MFS_NIXL"
"""NIXL is adapted only if this is set to 1: where cores are short, a transfer beside bulk traffic takes longer than
without MFS (docs/nixl.md)."""


def wanted(name: str) -> bool:
    """Whether this library is to be adapted in this process."""
    return name in ADAPTERS and (not ADAPTERS[name].endswith("nixl.agent") or os.environ.get(NIXL) == "1")


class _Loader(importlib.abc.Loader):
    """Loads a module with its own loader, then adapts it."""

    def __init__(self, own: importlib.abc.Loader, process: Process | None) -> None:
        self._own, self._process = own, process

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        module.__loader__ = self._own
        _adapt(module, self._process)


def _adapt(module: ModuleType, process: Process | None) -> None:
    """Adapts the module's class. Imports the rest of the adapter only now, as most processes never need it."""
    try:
        from mooncake_adapter.process import PROCESS

        adapter: Any = importlib.import_module(ADAPTERS[module.__name__])
        (process or PROCESS).adapt(module, adapter)
    except Exception as error:
        logging.getLogger("mfs.adapter").warning(
            "%s cannot be adapted (%s: %s); it runs unscheduled", module.__name__, type(error).__name__, error
        )


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of ADAPTERS where they are and wraps their loaders in ours."""

    def __init__(self, process: Process | None) -> None:
        self._process = process
        self._finding = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not wanted(fullname) or self._finding:
            return None
        self._finding = True
        try:
            spec = importlib.util.find_spec(fullname)
        except (ImportError, ValueError):
            return None
        finally:
            self._finding = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._process)
        return spec


def install(process: Process | None = None) -> bool:
    """Adapts the classes in this process, both those already imported and those imported later. May be called again.

    Returns False and changes nothing if MFS_MODE=off. Without these libraries nothing happens.
    """
    if os.environ.get("MFS_MODE") == "off":
        return False
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(process))
    for name in ADAPTERS:
        if wanted(name) and name in sys.modules:
            _adapt(sys.modules[name], process)
    return True

"""Lets vLLM use Triton's interpreter on a CPU: it takes Triton there only with a backend "cpu", which no wheel has.

With TRITON_INTERPRET=1 nothing is compiled, so the backend is never asked for more than whether it is there.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "triton.backends"


class Driver:
    @staticmethod
    def is_active() -> bool:
        return True


class Finder(importlib.abc.MetaPathFinder):
    """Adds the backend once triton.backends is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            module.backends["cpu"] = module.Backend(compiler=None, driver=Driver)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Finder())

"""The network operating systems: each module or package here is one, with its `SwitchSystem` named SYSTEM.

Adding a system is adding one here and its template in switch_configs/.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from mfsd.fabric.system import SwitchSystem


def _found() -> dict[str, SwitchSystem]:
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    systems: list[SwitchSystem] = [module.SYSTEM for module in modules]
    return {system.about.name: system for system in systems}


SYSTEMS = _found()

"""Scheduling policies by name. A policy is one file here (or anywhere: `--policy ./mine.py`) that registers a class:

    @register("mine")
    class Mine(Policy):
        def order(self, flow):
            return pack(band=flow.stage)

`order` returns a flow's place: smaller goes first, and equal places share fairly. It is called when a flow is posted
and, as the class attributes say, at layer boundaries, when a request's fetched layer changes, and at ticks.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from pathlib import Path

from bench.sim.engine import Simulation
from bench.sim.moves import Move
from bench.sim.scheduling import SchedulingPolicy

Factory = Callable[[Simulation], "Policy"]
_REGISTRY: dict[str, Factory] = {}

DEADLINE_UNIT_S = 1e-6


def pack(band: int, first: int = 0, second: float = 0.0, third: int = 0, sequence: int = 0) -> int:
    """Returns a number that sorts as (band 0..7, first 0..2047, second, third 0..3, sequence modulo 2^14). `second` is
    a time or a duration in seconds, distinguished by microseconds up to 4.7 hours, or any number of that range."""
    ticks = int(second / DEADLINE_UNIT_S)
    ticks = 0 if ticks < 0 else min(ticks, (1 << 34) - 1)
    return band << 61 | min(first, 2047) << 50 | ticks << 16 | third << 14 | sequence & 0x3FFF


class Policy(SchedulingPolicy):
    """Base class of policies. At ticks it asks itself again for the order of all flows that ship."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def order_move(self, move: Move) -> int:
        """Behind everything else, by deadline."""
        move.wire_class = (self.simulation.cluster.config.fabric_classes or 8) - 1
        return pack(7, second=move.deadline_s)

    def tick(self) -> None:
        for flow in list(self.simulation.shipping):
            self.simulation.reorder(flow)


def register(*names: str) -> Callable[[type[Policy]], type[Policy]]:
    """Registers a policy under these names. The class may distinguish them by its `variant` attribute."""

    def add(policy: type[Policy]) -> type[Policy]:
        for name in names:
            _REGISTRY[name] = policy if len(names) == 1 else type(policy.__name__, (policy,), {"variant": name})
        return policy

    return add


def names() -> list[str]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(_REGISTRY)


def find(name: str) -> Factory:
    """Returns the policy of that name, or the only one registered by that Python file. Raises LookupError naming those
    that exist."""
    known = names()
    if name.endswith(".py"):
        before = set(_REGISTRY)
        spec = importlib.util.spec_from_file_location(Path(name).stem, name)
        if spec is None or spec.loader is None or not Path(name).is_file():
            raise LookupError(f"--policy {name}: no such file")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        added = sorted(set(_REGISTRY) - before) or [n for n in _REGISTRY if n == Path(name).stem]
        if len(added) != 1:
            raise LookupError(
                f"--policy {name}: the file registers {added or 'nothing'}; it must register one new name"
            )
        if missing := getattr(_REGISTRY[added[0]], "__abstractmethods__", None):
            raise LookupError(f"--policy {name}: its class lacks {', '.join(missing)}(), which says a flow's place")
        return _REGISTRY[added[0]]
    if name not in _REGISTRY:
        raise LookupError(f"--policy {name}: use one of {', '.join(known)}, or the path of a .py file")
    return _REGISTRY[name]

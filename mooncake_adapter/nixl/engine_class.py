"""Gives an engine its class on the wire: UCX's traffic class and, if the NIC is InfiniBand, its service level.

NIXL passes each setting of an engine's ``engine_config`` to UCX. If the environment has the setting (``UCX_`` and its
name), that value holds for every engine of the process instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from mfsd.policy.mark_text import SET_BY_US
from mfsd.policy.service_levels import SERVICE_LEVELS, parse_levels
from mooncake_adapter.mooncake.network import is_infiniband
from mooncake_adapter.nixl.network import device_chosen
from mooncake_adapter.warn_once import WarnOnce

CONFIG = "engine_config"
TRAFFIC_CLASS, SERVICE_LEVEL = "IB_TRAFFIC_CLASS", "IB_SL"


def with_class(parameters: dict[str, str], dscp: int | None, level: int | None = None) -> dict[str, str]:
    """Returns the parameters of an engine whose packets carry this DSCP and level, unless they name a class
    themselves."""
    config = parameters.get(CONFIG, "")
    if dscp is None or TRAFFIC_CLASS in config:
        return parameters
    own = [f"{TRAFFIC_CLASS}={dscp << 2}", *([f"{SERVICE_LEVEL}={level}"] if level is not None else [])]
    return {**parameters, CONFIG: ",".join(filter(None, (config, *own)))}


class EngineClass:
    """The classes of this process's engines."""

    def __init__(self, once: WarnOnce) -> None:
        self._once = once
        self._device = device_chosen()
        self._infiniband = is_infiniband(self._device)
        self._levels = self._read_levels() if self._infiniband else {}
        self._settings = (TRAFFIC_CLASS, SERVICE_LEVEL) if self._infiniband else (TRAFFIC_CLASS,)
        ours = os.environ.get(SET_BY_US, "").split()
        self._ours = [name for name in self._variables() if name in ours]

    def _variables(self) -> list[str]:
        """Environment variables which, if set, hold for every engine whatever its own configuration."""
        return [f"UCX_{setting}" for setting in self._settings]

    def _read_levels(self) -> dict[int, int]:
        try:
            return parse_levels(os.environ.get(SERVICE_LEVELS, ""))
        except ValueError as error:
            self._once.warn("nixl-levels", "%s; lanes have no service level", error)
            return {}

    def allowed(self, parameters: dict[str, str]) -> bool:
        """Whether a class set for an engine would take effect; if not, warns once with the reason."""
        for name in self._variables():
            if name in os.environ and name not in self._ours:
                self._once.warn(
                    "nixl-class",
                    "%s=%s holds for every engine of this process, so that transfers have no lanes: unset it",
                    *(name, os.environ[name]),
                )
                return False
        if self._infiniband and not self._levels:
            self._once.warn(
                "nixl-level",
                "%s is InfiniBand and %s gives no service level, so that the network takes all lanes for one: start "
                "the program with mfs-run --policy NAME --infiniband",
                *(self._device, SERVICE_LEVELS),
            )
        return not any(setting in parameters.get(CONFIG, "") for setting in self._settings)

    @contextlib.contextmanager
    def counts(self) -> Iterator[None]:
        """Inside, engines carry their own class. Hides the class that `mfs-run --policy` set for all engines, as it
        does for programs without an adapter."""
        aside = {name: os.environ.pop(name) for name in self._ours if name in os.environ}
        try:
            yield
        finally:
            os.environ.update(aside)

    def parameters(self, parameters: dict[str, str], dscp: int | None) -> dict[str, str]:
        """Returns the parameters of an engine whose packets carry the class of this DSCP."""
        return with_class(parameters, dscp, None if dscp is None else self._levels.get(dscp))

    def apart(self, dscp: int | None, other: int | None) -> bool:
        """Whether the network can tell the classes of two different DSCPs apart."""
        if not self._infiniband:
            return True
        levels = [None if one is None else self._levels.get(one) for one in (dscp, other)]
        return None not in levels and levels[0] != levels[1]

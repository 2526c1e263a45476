"""What the adapter keeps for one agent, and how to find it from the program's agent."""

from __future__ import annotations

from typing import Any

import numpy as np

from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.nixl.lanes import Lanes
from mooncake_adapter.nixl.lmcache import Stages, loading
from mooncake_adapter.nixl.pieces import Piece, by_owner, cut
from mooncake_adapter.nixl.plugins import LANED, Plugins
from mooncake_adapter.nixl.scheduling import Scheduling
from mooncake_adapter.session import Session
from mooncake_adapter.warn_once import WarnOnce

PIECE_BYTES = 16 << 20
"""As Mooncake's: larger messages would occupy the window of the network card."""


class Agent:
    """What the adapter keeps for one agent."""

    def __init__(
        self,
        session: Session,
        sources: MetadataSources,
        once: WarnOnce,
        plugins: Plugins,
        stages: Stages,
        kinds: Any = None,
    ) -> None:
        """`kinds`: the handle classes for its NIXL."""
        self.session, self.sources, self.once, self.plugins = session, sources, once, plugins
        self.stages, self.kinds = stages, kinds
        self.lanes = Lanes(session, once)
        self.scheduling: Scheduling | None = None
        self.piece_bytes = int(getattr(session, "piece_bytes", PIECE_BYTES))

    def forget(self, peer: str) -> None:
        """The peer has gone, or its name now stands for another one."""
        self.lanes.forget(peer)
        if self.scheduling is not None:
            self.scheduling.warmer.forget(peer)

    def owner(self) -> Metadata | None:
        """Returns the metadata of a whole transfer; None if the owners of its memory have to be looked up."""
        known = self.sources.call.get()
        if known is None and self.stages.answers:
            known = loading()
        return known if known is not None or self.sources.any_owner() else self.sources.current()

    def layer_of(self, address: int) -> int:
        return self.sources.of(address).layer if self.sources.any_owner() else 0

    def pieces(self, rows: Any) -> list[Piece]:
        """Returns the messages of a transfer of this memory."""
        known = self.owner()
        if known is None:
            owners = by_owner(rows[:, 0], self.sources.of)
        else:
            owners = [(known, np.arange(len(rows)))]
        return cut(rows, owners, self.layer_of, self.piece_bytes)

    def stage(self, reading: bool) -> int:
        return self.stages.reads if reading else self.stages.writes


def agent_of(self: Any) -> Agent | None:
    agent: Agent | None = self.__dict__.get("_mfs")
    return agent if agent is not None and agent.scheduling is not None else None


def own_names(self: Any, agent: Agent, names: Any) -> list[str]:
    """Returns the backends that the program names, else all that it made."""
    return list(names) or list(self.backends)


def with_lanes(self: Any, names: Any) -> Any:
    """Returns the backends that the program names and, if UCX's is among them, its lanes."""
    agent = self.__dict__.get("_mfs")
    return [*names, *agent.lanes.handles] if agent is not None and LANED in names else names


def text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)

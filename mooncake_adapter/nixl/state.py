"""What the adapter keeps for one agent, and how it is found from the program's."""

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
"""As Mooncake's: larger messages would keep the window of the network card for themselves."""


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
        """`kinds`: the classes of handles that its NIXL's adapter makes."""
        self.session, self.sources, self.once, self.plugins = session, sources, once, plugins
        self.stages, self.kinds = stages, kinds
        self.lanes = Lanes(session, once)
        self.scheduling: Scheduling | None = None
        self.piece_bytes = int(getattr(session, "piece_bytes", PIECE_BYTES))

    def forget(self, peer: str) -> None:
        """The peer has gone, or is another one from now on."""
        self.lanes.forget(peer)
        if self.scheduling is not None:
            self.scheduling.warmer.forget(peer)

    def owner(self) -> Metadata | None:
        """What the whole of a transfer is for, where the memory need not be asked."""
        known = self.sources.call.get()
        if known is None and self.stages.answers:
            known = loading()
        return known if known is not None or self.sources.any_owner() else self.sources.current()

    def layer_of(self, address: int) -> int:
        return self.sources.of(address).layer if self.sources.any_owner() else 0

    def pieces(self, rows: Any) -> list[Piece]:
        """The messages of a transfer of this memory."""
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
    """The program's backends: those that it names, else all that it made."""
    return list(names) or list(self.backends)


def with_lanes(self: Any, names: Any) -> Any:
    """Backends that the program names, with the lanes of the one that has some."""
    agent = self.__dict__.get("_mfs")
    return [*names, *agent.lanes.handles] if agent is not None and LANED in names else names


def text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)

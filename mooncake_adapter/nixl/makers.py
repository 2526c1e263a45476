"""The methods that prepare transfers. They look up what each transfer is for, as they know its memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from mooncake_adapter.nixl import native
from mooncake_adapter.nixl.descriptors import prepared_class, rows_of
from mooncake_adapter.nixl.pieces import Piece, shortened
from mooncake_adapter.nixl.recipes import FromLists, FromPrepared, Recipe
from mooncake_adapter.nixl.state import Agent, agent_of, own_names, text, with_lanes
from mooncake_adapter.nixl.transfers import Transfer, handle_class


class Kinds:
    """Classes and constants of one NIXL module: handles made here, and what arguments are compared with."""

    def __init__(self, module: Any) -> None:
        bindings = module.nixlBind
        self.prepared = prepared_class(module.nixl_prepped_dlist_handle)
        self.transfer = handle_class(module.nixl_xfer_handle)
        self.descriptors = bindings.nixlXferDList
        self.memory = (bindings.DRAM_SEG, bindings.VRAM_SEG)
        """Kinds of memory that the network reaches. Files and the like are not scheduled."""

    def wrapped(
        self,
        program: Any,
        agent: Agent,
        handle: Any,
        recipe: Recipe,
        peer: str,
        pieces: list[Piece],
        operation: str,
        notification: bytes,
        names: list[str],
    ) -> Any:
        """Wraps NIXL's handle together with the state that the adapter keeps for it."""
        reading = operation == "READ"
        transfer = Transfer(handle._handle, recipe, peer, pieces, agent.stage(reading), reading)
        transfer.notification = notification
        transfer.backends = [program.backends[name] for name in names]
        return self.transfer(handle, transfer, agent.scheduling)


def list_methods(base: Any, kinds: Kinds) -> list[Any]:
    """Makes the method that prepares lists: each keeps where its memory is."""

    def prep_xfer_dlist(
        self: Any, agent_name: str, xfer_list: Any, mem_type: str | None = None, backends: Any = ()
    ) -> Any:
        agent = agent_of(self)
        if agent is None:
            return base.prep_xfer_dlist(self, agent_name, xfer_list, mem_type, list(backends))
        strided = isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5
        descriptors = xfer_list if strided else self.get_xfer_descs(xfer_list, mem_type)
        handle = base.prep_xfer_dlist(self, agent_name, descriptors, mem_type, with_lanes(self, backends))
        local = agent_name in ("NIXL_INIT_AGENT", "")
        kind = self.nixl_mems.get(mem_type) if strided else descriptors.getType()
        if kind not in kinds.memory:
            return handle  # files and the like do not use the network
        return kinds.prepared(handle, "" if local else text(agent_name), kind, rows_of(descriptors))

    return [prep_xfer_dlist]


def prepped_methods(base: Any, kinds: Kinds) -> list[Any]:
    """Makes the method for transfers by indices into two prepared lists."""

    def make_prepped_xfer(
        self: Any,
        operation: str,
        local_xfer_side: Any,
        local_indices: Any,
        remote_xfer_side: Any,
        remote_indices: Any,
        notif_msg: bytes = b"",
        backends: Any = (),
        skip_desc_merge: bool = False,
    ) -> Any:
        agent = agent_of(self)
        names = list(backends) if agent is None else own_names(self, agent, backends)
        sides = (local_xfer_side, local_indices, remote_xfer_side, remote_indices)
        handle = base.make_prepped_xfer(self, operation, *sides, notif_msg, names, skip_desc_merge)
        if not isinstance(local_xfer_side, kinds.prepared) or not isinstance(remote_xfer_side, kinds.prepared):
            return handle
        mine, theirs = local_xfer_side.prepared, remote_xfer_side.prepared
        if agent is None or agent.scheduling is None or theirs.peer == self.name:
            return handle
        if not len(local_indices):
            return handle
        known = agent.owner() if mine.uniform_bytes else None
        size_bytes = mine.uniform_bytes * len(local_indices)
        again = bool(agent.lanes.handles)
        if known is not None and size_bytes <= agent.piece_bytes:
            layer = known.layer
            if not layer and agent.sources.any_owner():
                layer = agent.layer_of(int(mine.rows[int(local_indices[0]), 0]))
            pieces = [Piece(known if layer == known.layer else known._replace(layer=layer), None, size_bytes)]
        else:
            pieces = agent.pieces(mine.rows[np.asarray(local_indices, dtype=np.int64)])
            again = again or len(pieces) > 1
        operated = self.nixl_ops[operation]
        indices = [local_indices, remote_indices]
        if again:  # the program may change its own arrays
            indices = [np.array(one, dtype=np.int32) for one in indices]
        recipe = FromPrepared(operated, local_xfer_side, indices[0], remote_xfer_side, indices[1], skip_desc_merge)
        mine.use()
        theirs.use()
        return kinds.wrapped(self, agent, handle, recipe, theirs.peer, pieces, operation, notif_msg, names)

    return [native.made(make_prepped_xfer)]


def initialize_methods(base: Any, kinds: Kinds) -> list[Any]:
    """Makes the method for transfers by two lists of descriptors."""

    def initialize_xfer(
        self: Any,
        operation: str,
        local_descs: Any,
        remote_descs: Any,
        remote_agent: Any,
        notif_msg: bytes = b"",
        backends: Any = (),
    ) -> Any:
        agent = agent_of(self)
        names = list(backends) if agent is None else own_names(self, agent, backends)
        handle = base.initialize_xfer(self, operation, local_descs, remote_descs, remote_agent, notif_msg, names)
        peer = text(remote_agent)
        if agent is None or peer == self.name or local_descs.getType() not in kinds.memory or local_descs.isEmpty():
            return handle
        local, remote = shortened(rows_of(local_descs), rows_of(remote_descs), agent.piece_bytes)
        recipe = FromLists(
            *(self.nixl_ops[operation], kinds.descriptors),
            (local_descs.getType(), local),
            (remote_descs.getType(), remote),
            peer,
        )
        return kinds.wrapped(self, agent, handle, recipe, peer, agent.pieces(local), operation, notif_msg, names)

    return [initialize_xfer]

"""A drop-in subclass of NIXL's nixl_agent: every transfer over the network is permitted before it is posted."""

from __future__ import annotations

import copy
import sys
import threading
from functools import wraps
from typing import Any

import numpy as np

from mfsd.policy.marks import CLASSES_MAX
from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.nixl import versions
from mooncake_adapter.nixl.descriptors import prepared_class, rows_of
from mooncake_adapter.nixl.lanes import Backends, Lanes, with_class
from mooncake_adapter.nixl.network import device_chosen, nic_of_ucx
from mooncake_adapter.nixl.pieces import Piece, by_owner, cut, shortened
from mooncake_adapter.nixl.plugins import LANED, Plugins, is_alias
from mooncake_adapter.nixl.recipes import FromLists, FromPrepared
from mooncake_adapter.nixl.scheduling import Scheduling
from mooncake_adapter.nixl.telemetry import summed
from mooncake_adapter.nixl.transfers import State, Transfer, handle_class
from mooncake_adapter.session import ADAPTED, STAGE_P2D, STAGE_REUSE, Holder, Session
from mooncake_adapter.warn_once import WarnOnce

CLASS = "nixl_agent"
PIECE_BYTES = 16 << 20
"""As Mooncake's: larger messages would keep the window of the network card for themselves."""
PROGRESS_DELAY_US = 10_000
"""For how long an engine's progress thread sleeps where nothing wakes it. NIXL's own (0) keeps a core busy for each
engine, and there is one for each lane. What arrives wakes it at once."""
CACHES = ("lmcache",)
"""Packages whose agents read what was computed before; everyone else's read what a prefill has just made."""
_making = threading.Lock()


class _Patient:
    """NIXL's bindings for as long as an agent is made: its progress threads sleep where nothing wakes them."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:
        if getattr(config, "pthrDelay", None) == 0:
            config.pthrDelay = PROGRESS_DELAY_US
        return self._bindings.nixlAgent(name, config)


def strict(config: Any, module: Any) -> Any:
    """The same configuration for an agent that several threads use: one of them posts what is permitted later."""
    config = module.nixl_agent_config() if config is None else copy.copy(config)
    none = (None, module.nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE)
    if getattr(config, "sync_mode", None) in none and not config.enable_listen:
        config.sync_mode = module.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    return config


def maker() -> str:
    """The package whose code makes the agent."""
    frame = sys._getframe(2)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


class Agent:
    """What the adapter keeps for one agent."""

    def __init__(self, session: Session, sources: MetadataSources, once: WarnOnce, plugins: Plugins) -> None:
        self.session, self.sources, self.once, self.plugins = session, sources, once, plugins
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
        assert self.scheduling is not None
        return self.scheduling.reads if reading else STAGE_P2D


def _agent_of(self: Any) -> Agent | None:
    agent: Agent | None = self.__dict__.get("_mfs")
    return agent if agent is not None and agent.scheduling is not None else None


def _own(self: Any, agent: Agent, names: Any) -> list[str]:
    """The program's backends: those that it names, else all that it made."""
    return list(names) or list(self.backends)


def _with_lanes(self: Any, names: Any) -> Any:
    """Backends that the program names, with the lanes of the one that has some."""
    agent = self.__dict__.get("_mfs")
    return [*names, *agent.lanes.handles] if agent is not None and LANED in names else names


def making(base: Any, module: Any, holder: Holder, sources: MetadataSources, once: WarnOnce) -> list[Any]:
    """The constructor, and what makes backends: the lanes are there before the program exchanges metadata."""
    plugins = Plugins(base.__module__, once)

    def __init__(self: Any, agent_name: str, nixl_conf: Any = None, instantiate_all: bool = False) -> None:
        session = holder.get()
        if session is not None and nixl_conf is None and instantiate_all:
            once.warn("nixl-all", "an agent with every plugin cannot be used by several threads; it runs unscheduled")
            session = None
        if session is None:
            base.__init__(self, agent_name, nixl_conf, instantiate_all)
            return
        self._mfs = Agent(session, sources, once, plugins)
        config = strict(nixl_conf, module)
        package = maker()
        with _making, plugins.named(CLASSES_MAX):
            bindings, module.nixlBind = module.nixlBind, _Patient(module.nixlBind)
            try:
                base.__init__(self, agent_name, config, instantiate_all)
            finally:
                module.nixlBind = bindings
        self.plugin_list[:] = [name for name in self.plugin_list if not is_alias(name)]
        nic = nic_of_ucx(session)
        scheduling = Scheduling(self.agent, bindings, session, sources, self._mfs.lanes, once, nic)
        scheduling.measures = bool(getattr(config, "capture_telemetry", False))
        scheduling.reads = STAGE_REUSE if package in CACHES else STAGE_P2D
        self._mfs.scheduling = scheduling

    def create_backend(self: Any, backend: str, initParams: dict[str, str] = {}) -> None:  # noqa: B006
        agent: Agent | None = self.__dict__.get("_mfs")
        if agent is None:
            base.create_backend(self, backend, initParams)
            return
        self.plugin_list[:] = [name for name in self.plugin_list if not is_alias(name)]
        agent.plugins.load(backend)
        if not isinstance(self.backends, Backends):
            self.backends = Backends(self.backends)
        if backend != LANED or not device_chosen() or not agent.lanes.allowed(initParams):
            base.create_backend(self, backend, initParams)
            return
        lanes = agent.lanes
        with lanes.classes_count():
            with agent.session.lane(lanes.own_class):
                base.create_backend(self, backend, with_class(dict(initParams), lanes.mark(lanes.own_class)))
            self.backends.lanes = lanes.open(self.agent, dict(initParams))

    return [__init__, create_backend]


def memory_methods(base: Any) -> list[Any]:
    """Memory is registered with the lanes, too. The program's own backends come first, and their answer counts."""

    def register_memory(self: Any, reg_list: Any, mem_type: str | None = None, backends: Any = ()) -> Any:
        agent = _agent_of(self)
        if agent is None or not agent.lanes.handles:
            return base.register_memory(self, reg_list, mem_type, list(backends))
        descriptors = base.register_memory(self, reg_list, mem_type, _own(self, agent, backends))
        if LANED in _own(self, agent, backends):
            for name, handle in agent.lanes.handles.items():
                try:
                    self.agent.registerMem(descriptors, [handle])
                except Exception as error:
                    agent.lanes.drop(name, error)
        return descriptors

    def deregister_memory(self: Any, dereg_list: Any, backends: Any = ()) -> None:
        agent = _agent_of(self)
        if agent is not None and (not backends or LANED in backends):
            for handle in agent.lanes.handles.values():
                try:
                    self.agent.deregisterMem(dereg_list, [handle])
                except Exception as error:
                    agent.once.warn("nixl-memory", "memory stays registered in a lane (%s)", error)
        base.deregister_memory(self, dereg_list, list(backends))

    return [register_memory, deregister_memory]


def metadata_methods(base: Any) -> list[Any]:
    """What agents exchange names the lanes; notifications come through any of them."""

    def add_remote_agent(self: Any, metadata: bytes) -> Any:
        name = base.add_remote_agent(self, metadata)
        agent = _agent_of(self)
        if agent is not None and agent.lanes.handles:
            agent.forget(_text(name))
            agent.lanes.met(_text(name), metadata)
        return name

    def remove_remote_agent(self: Any, agent: Any) -> None:
        own = _agent_of(self)
        if own is not None:
            own.forget(_text(agent))
        base.remove_remote_agent(self, agent)

    def get_partial_agent_metadata(self: Any, descs: Any, inc_conn_info: bool = False, backends: Any = ()) -> Any:
        return base.get_partial_agent_metadata(self, descs, inc_conn_info, _with_lanes(self, backends))

    def make_connection(self: Any, remote_agent: Any, backends: Any = ()) -> None:
        agent = _agent_of(self)
        base.make_connection(self, remote_agent, list(backends) if agent is None else _own(self, agent, backends))

    def get_new_notifs(self: Any, backends: Any = ()) -> Any:
        return base.get_new_notifs(self, _with_lanes(self, backends))

    def update_notifs(self: Any, backends: Any = ()) -> Any:
        return base.update_notifs(self, _with_lanes(self, backends))

    def check_remote_xfer_done(
        self: Any, remote_agent_name: Any, lookup_tag: bytes, backends: Any = (), tag_is_prefix: bool = True
    ) -> Any:
        names = _with_lanes(self, backends)
        return base.check_remote_xfer_done(self, remote_agent_name, lookup_tag, names, tag_is_prefix)

    def send_notif(self: Any, remote_agent_name: Any, notif_msg: bytes, backend: str | None = None) -> None:
        own = list(self.backends)
        if backend is None and len(own) == 1:
            backend = own[0]  # and not a lane's
        base.send_notif(self, remote_agent_name, notif_msg, backend)

    return [
        *(add_remote_agent, remove_remote_agent, get_partial_agent_metadata, make_connection),
        *(get_new_notifs, update_notifs, check_remote_xfer_done, send_notif),
    ]


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def transfer_makers(base: Any, module: Any) -> list[Any]:
    """The methods that prepare transfers: what is for whom is found out here, where the memory is known."""
    prepared_handle = prepared_class(module.nixl_prepped_dlist_handle)
    transfer_handle = handle_class(module.nixl_xfer_handle)
    bindings = module.nixlBind
    memory = (bindings.DRAM_SEG, bindings.VRAM_SEG)

    def prep_xfer_dlist(
        self: Any, agent_name: str, xfer_list: Any, mem_type: str | None = None, backends: Any = ()
    ) -> Any:
        agent = _agent_of(self)
        if agent is None:
            return base.prep_xfer_dlist(self, agent_name, xfer_list, mem_type, list(backends))
        strided = isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5
        descriptors = xfer_list if strided else self.get_xfer_descs(xfer_list, mem_type)
        handle = base.prep_xfer_dlist(self, agent_name, descriptors, mem_type, _with_lanes(self, backends))
        local = agent_name in ("NIXL_INIT_AGENT", "")
        kind = self.nixl_mems.get(mem_type) if strided else descriptors.getType()
        if kind not in memory:
            return handle  # files and the like: not a matter of the network
        return prepared_handle(handle, "" if local else _text(agent_name), kind, rows_of(descriptors))

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
        agent = _agent_of(self)
        names = list(backends) if agent is None else _own(self, agent, backends)
        sides = (local_xfer_side, local_indices, remote_xfer_side, remote_indices)
        handle = base.make_prepped_xfer(self, operation, *sides, notif_msg, names, skip_desc_merge)
        if not isinstance(local_xfer_side, prepared_handle) or not isinstance(remote_xfer_side, prepared_handle):
            return handle
        mine, theirs = local_xfer_side.prepared, remote_xfer_side.prepared
        if agent is None or agent.scheduling is None or theirs.peer == self.name:
            return handle
        known = agent.owner() if mine.uniform_bytes else None
        size_bytes = mine.uniform_bytes * len(local_indices)
        again = bool(agent.lanes.handles)
        if known is not None and 0 < size_bytes <= agent.piece_bytes:
            layer = known.layer
            if not layer and agent.sources.any_owner():
                layer = agent.layer_of(int(mine.rows[int(local_indices[0]), 0]))
            pieces = [Piece(known if layer == known.layer else known._replace(layer=layer), None, size_bytes)]
        else:
            pieces = agent.pieces(mine.rows[np.asarray(local_indices, dtype=np.int64)])
            again = again or len(pieces) > 1
        operated = self.nixl_ops[operation]
        indices = [local_indices, remote_indices]
        if again:  # the program may change its own
            indices = [np.array(one, dtype=np.int32) for one in indices]
        recipe = FromPrepared(operated, local_xfer_side, indices[0], remote_xfer_side, indices[1], skip_desc_merge)
        mine.use()
        theirs.use()
        return wrapped(self, agent, handle, recipe, theirs.peer, pieces, operation, notif_msg, names)

    def initialize_xfer(
        self: Any,
        operation: str,
        local_descs: Any,
        remote_descs: Any,
        remote_agent: Any,
        notif_msg: bytes = b"",
        backends: Any = (),
    ) -> Any:
        agent = _agent_of(self)
        names = list(backends) if agent is None else _own(self, agent, backends)
        handle = base.initialize_xfer(self, operation, local_descs, remote_descs, remote_agent, notif_msg, names)
        peer = _text(remote_agent)
        if agent is None or peer == self.name or local_descs.getType() not in memory:
            return handle
        local, remote = shortened(rows_of(local_descs), rows_of(remote_descs), agent.piece_bytes)
        recipe = FromLists(
            *(self.nixl_ops[operation], bindings.nixlXferDList),
            (local_descs.getType(), local),
            (remote_descs.getType(), remote),
            peer,
        )
        return wrapped(self, agent, handle, recipe, peer, agent.pieces(local), operation, notif_msg, names)

    def wrapped(
        self: Any,
        agent: Agent,
        handle: Any,
        recipe: Any,
        peer: str,
        pieces: list[Piece],
        operation: str,
        notification: Any,
        names: list[str],
    ) -> Any:
        reading = operation == "READ"
        transfer = Transfer(handle._handle, recipe, peer, pieces, agent.stage(reading), reading)
        transfer.notification = notification
        transfer.backends = [self.backends[name] for name in names]
        return transfer_handle(handle, transfer, agent.scheduling)

    return [prep_xfer_dlist, make_prepped_xfer, initialize_xfer]


def transfer_methods(base: Any) -> list[Any]:
    """The methods that start a transfer and ask how it stands."""

    def transfer(self: Any, handle: Any, notif_msg: bytes = b"") -> str:
        kept: Transfer | None = getattr(handle, "transfer", None)
        if kept is None:
            return str(base.transfer(self, handle, notif_msg))
        scheduling: Scheduling = handle.scheduling
        if not scheduling.session.scheduled or kept.closed:
            kept.direct = True
            return str(base.transfer(self, handle, notif_msg))
        return scheduling.start(kept, notif_msg)

    def check_xfer_state(self: Any, handle: Any) -> str:
        kept: Transfer | None = getattr(handle, "transfer", None)
        if kept is None or kept.direct or kept.state is State.IDLE:
            return str(base.check_xfer_state(self, handle))
        return str(handle.scheduling.check(kept))

    def get_xfer_telemetry(self: Any, handle: Any) -> Any:
        kept: Transfer | None = getattr(handle, "transfer", None)
        if kept is None or kept.direct or kept.state is State.IDLE:
            return base.get_xfer_telemetry(self, handle)
        if kept.telemetry:
            return summed(kept.telemetry)
        return self.agent.getXferTelemetry(kept.posted or kept.own)

    return [transfer, check_xfer_state, get_xfer_telemetry]


def adapted(base: type, holder: Holder, sources: MetadataSources, once: WarnOnce) -> type:
    """The subclass of this nixl_agent; the class itself where it is not as those that were tested."""
    module = sys.modules[base.__module__]
    if not versions.supported(base, once):
        return base
    made = [
        *making(base, module, holder, sources, once),
        *memory_methods(base),
        *metadata_methods(base),
        *transfer_makers(base, module),
        *transfer_methods(base),
    ]
    members: dict[str, Any] = {one.__name__: wraps(getattr(base, one.__name__))(one) for one in made}
    members |= {"__doc__": base.__doc__, "__module__": base.__module__, "__qualname__": base.__qualname__}
    members[ADAPTED] = True
    return type(base.__name__, (base,), members)

"""A drop-in subclass of NIXL's nixl_agent: every transfer over the network is permitted before it is posted."""

from __future__ import annotations

import copy
import sys
import threading
from functools import partial, wraps
from typing import Any

import numpy as np

from mfsd.policy.marks import CLASSES_MAX
from mooncake_adapter.metadata import UNKNOWN, MetadataSources
from mooncake_adapter.nixl import lmcache, native, versions
from mooncake_adapter.nixl.lanes import Backends
from mooncake_adapter.nixl.makers import Kinds, initialize_methods, list_methods, prepped_methods
from mooncake_adapter.nixl.network import device_chosen, nic_of_ucx
from mooncake_adapter.nixl.plugins import LANED, Plugins, asked_for, is_alias
from mooncake_adapter.nixl.scheduling import Scheduling
from mooncake_adapter.nixl.state import Agent, agent_of, own_names, text, with_lanes
from mooncake_adapter.nixl.telemetry import summed
from mooncake_adapter.nixl.transfers import State, Transfer
from mooncake_adapter.session import ADAPTED, Holder
from mooncake_adapter.warn_once import WarnOnce

CLASS = "nixl_agent"
PROGRESS_DELAY_US = 10_000
"""How long an engine's progress thread sleeps unless something wakes it. Arriving data wakes it at once. NIXL's default
(0) keeps a core busy for each engine, and each lane has an engine."""
_making = threading.Lock()


class _Patient:
    """NIXL's bindings while an agent is made: progress threads of its engines sleep for PROGRESS_DELAY_US."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:
        if getattr(config, "pthrDelay", None) == 0:
            config.pthrDelay = PROGRESS_DELAY_US
        return self._bindings.nixlAgent(name, config)


def strict(config: Any, module: Any) -> Any:
    """Makes the configuration safe for an agent that several threads use, because a thread of ours posts what is
    permitted later.

    This holds even where the program says that it needs no synchronization: it may have one thread, but we add another.
    """
    config = module.nixl_agent_config() if config is None else copy.copy(config)
    none = (None, module.nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE)
    if getattr(config, "sync_mode", None) in none:
        config.sync_mode = module.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    return config


def native_path(program: Any) -> Any:
    """Returns the native path of the program's agent; None if there is none. It also makes transfers, unless running
    code has to be asked what they are for."""
    agent: Agent = program._mfs
    assert agent.scheduling is not None
    path = agent.scheduling.posted_path()
    if path is not None and not agent.stages.answers:
        path.makes(
            name=program.name,
            call=agent.sources.call,
            context=agent.sources.context,
            unknown=UNKNOWN,
            owned=agent.sources.owned,
            handle_class=agent.kinds.transfer,
            prepared_class=agent.kinds.prepared,
            scheduling=agent.scheduling,
            lanes=agent.lanes.handles,
            copied=partial(np.array, dtype=np.int32),
            reads=agent.stages.reads,
            writes=agent.stages.writes,
            size_max_bytes=agent.piece_bytes,
        )
    return path


def making(base: Any, module: Any, kinds: Kinds, holder: Holder, sources: MetadataSources, once: WarnOnce) -> list[Any]:
    """Makes the constructor and the method that makes backends: the lanes exist before the program exchanges
    metadata."""
    plugins = Plugins(base.__module__, once)

    def __init__(self: Any, agent_name: str, nixl_conf: Any = None, instantiate_all: bool = False) -> None:
        session = holder.get()
        if session is not None and nixl_conf is None and instantiate_all:
            once.warn("nixl-all", "an agent with every plugin cannot be used by several threads; it runs unscheduled")
            session = None
        if session is None:
            base.__init__(self, agent_name, nixl_conf, instantiate_all)
            return
        self._mfs = Agent(session, sources, once, plugins, lmcache.stages(depth=1), kinds)
        config = strict(nixl_conf, module)
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
        self._mfs.scheduling = scheduling
        self._mfs_path = native_path(self)

    def create_backend(self: Any, backend: str, initParams: dict[str, str] = {}) -> None:  # noqa: B006
        agent: Agent | None = self.__dict__.get("_mfs")
        if agent is None:
            base.create_backend(self, backend, initParams)
            return
        self.plugin_list[:] = [name for name in self.plugin_list if not is_alias(name)]
        agent.plugins.load(backend)
        if not isinstance(self.backends, Backends):
            self.backends = Backends(self.backends)
        if backend != LANED or not device_chosen() or not agent.lanes.engine_class.allowed(initParams):
            with asked_for():
                base.create_backend(self, backend, initParams)
            return
        lanes = agent.lanes
        with asked_for(), lanes.engine_class.counts():
            with agent.session.lane(lanes.own_class):
                own = lanes.engine_class.parameters(dict(initParams), lanes.mark(lanes.own_class))
                base.create_backend(self, backend, own)
            self.backends.lanes = lanes.open(self.agent, dict(initParams))

    return [__init__, create_backend]


def memory_methods(base: Any) -> list[Any]:
    """Makes the methods that register memory, with the lanes, too. The program's own backends come first, and the
    result is theirs."""

    def register_memory(self: Any, reg_list: Any, mem_type: str | None = None, backends: Any = ()) -> Any:
        agent = agent_of(self)
        if agent is None or not agent.lanes.handles:
            return base.register_memory(self, reg_list, mem_type, list(backends))
        descriptors = base.register_memory(self, reg_list, mem_type, own_names(self, agent, backends))
        if LANED in own_names(self, agent, backends):
            for name, handle in agent.lanes.handles.items():
                try:
                    self.agent.registerMem(descriptors, [handle])
                except Exception as error:
                    agent.lanes.drop(name, error)
        return descriptors

    def deregister_memory(self: Any, dereg_list: Any, backends: Any = ()) -> None:
        agent = agent_of(self)
        if agent is not None and (not backends or LANED in backends):
            for handle in agent.lanes.handles.values():
                try:
                    self.agent.deregisterMem(dereg_list, [handle])
                except Exception as error:
                    agent.once.warn("nixl-memory", "memory stays registered in a lane (%s)", error)
        base.deregister_memory(self, dereg_list, list(backends))

    return [register_memory, deregister_memory]


def metadata_methods(base: Any) -> list[Any]:
    """Makes the methods that exchange metadata, which names the lanes, and notifications, which arrive in any of
    them."""

    def add_remote_agent(self: Any, metadata: bytes) -> Any:
        name = base.add_remote_agent(self, metadata)
        agent = agent_of(self)
        if agent is not None and agent.lanes.handles:
            agent.forget(text(name))
            agent.lanes.met(text(name), metadata)
        return name

    def remove_remote_agent(self: Any, agent: Any) -> None:
        own = agent_of(self)
        if own is not None:
            own.forget(text(agent))
        base.remove_remote_agent(self, agent)

    def get_partial_agent_metadata(self: Any, descs: Any, inc_conn_info: bool = False, backends: Any = ()) -> Any:
        return base.get_partial_agent_metadata(self, descs, inc_conn_info, with_lanes(self, backends))

    def make_connection(self: Any, remote_agent: Any, backends: Any = ()) -> None:
        agent = agent_of(self)
        base.make_connection(self, remote_agent, list(backends) if agent is None else own_names(self, agent, backends))

    def get_new_notifs(self: Any, backends: Any = ()) -> Any:
        return base.get_new_notifs(self, with_lanes(self, backends))

    def update_notifs(self: Any, backends: Any = ()) -> Any:
        return base.update_notifs(self, with_lanes(self, backends))

    def check_remote_xfer_done(
        self: Any, remote_agent_name: Any, lookup_tag: bytes, backends: Any = (), tag_is_prefix: bool = True
    ) -> Any:
        names = with_lanes(self, backends)
        return base.check_remote_xfer_done(self, remote_agent_name, lookup_tag, names, tag_is_prefix)

    def send_notif(self: Any, remote_agent_name: Any, notif_msg: bytes, backend: str | None = None) -> None:
        own, agent = list(self.backends), agent_of(self)
        if backend is not None or len(own) != 1 or agent is None or not agent.lanes.handles:
            base.send_notif(self, remote_agent_name, notif_msg, backend)
            return
        # not in a lane; NIXL's own method fails if a backend is named, as it passes no list to its binding
        self.agent.genNotif(remote_agent_name, notif_msg, [self.backends[own[0]]])

    return [
        *(add_remote_agent, remove_remote_agent, get_partial_agent_metadata, make_connection),
        *(get_new_notifs, update_notifs, check_remote_xfer_done, send_notif),
    ]


def transfer_methods(base: Any) -> list[Any]:
    """Makes the methods that start a transfer and report its status."""

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
        posting = getattr(handle, "posting", None)
        if posting is not None and posting.native:
            return self.agent.getXferTelemetry(handle._handle)
        kept: Transfer | None = getattr(handle, "transfer", None)
        if kept is None or kept.direct or kept.state is State.IDLE:
            return base.get_xfer_telemetry(self, handle)
        if kept.telemetry:
            return summed(kept.telemetry)
        return self.agent.getXferTelemetry(kept.posted or kept.own)

    return [native.started(transfer), native.checked(check_xfer_state), get_xfer_telemetry]


def adapted(base: type, holder: Holder, sources: MetadataSources, once: WarnOnce) -> type:
    """Returns the adapted subclass of this nixl_agent, or the class itself if it differs from the tested versions."""
    module = sys.modules[base.__module__]
    if not versions.supported(base, once):
        return base
    kinds = Kinds(module)
    made = [
        *making(base, module, kinds, holder, sources, once),
        *memory_methods(base),
        *metadata_methods(base),
        *list_methods(base, kinds),
        *prepped_methods(base, kinds),
        *initialize_methods(base, kinds),
        *transfer_methods(base),
    ]
    members: dict[str, Any] = {one.__name__: wraps(getattr(base, one.__name__))(one) for one in made}
    members |= {"__doc__": base.__doc__, "__module__": base.__module__, "__qualname__": base.__qualname__}
    members[ADAPTED] = True
    return type(base.__name__, (base,), members)

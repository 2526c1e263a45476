"""A drop-in subclass of mooncake.engine.TransferEngine: every transfer is permitted before it is issued."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from mooncake_adapter.metadata import MetadataSources
from mooncake_adapter.mooncake.calls import READ, SHAPES, Shape, read
from mooncake_adapter.mooncake.lanes import Lanes
from mooncake_adapter.mooncake.network import nic_of
from mooncake_adapter.mooncake.scheduling import Scheduling
from mooncake_adapter.session import ADAPTED, Holder, own_class
from mooncake_adapter.warn_once import WarnOnce

CLASS = "TransferEngine"


def quick(original: Any, method: Callable[..., int], reading: bool) -> Callable[..., int]:
    """Returns the method with the native fast path tried first, or the method itself if there is no native part."""
    try:
        from mfsd._native import one_buffer
    except ImportError:
        return method  # then there is no session either, which reports it
    return wraps(original)(one_buffer(original, method, reading))


def devices_of(engine: Any, base: Any, choice: str) -> str:
    """Returns the RDMA devices of the engine, separated by commas: those it discovered, else those it was given."""
    try:
        topology = json.loads(base.get_local_topology(engine))
        return ",".join(name for entry in topology.values() for several in entry for name in several) or choice
    except Exception:
        return choice


def _scheduling_of(self: Any, holder: Holder) -> Scheduling | None:
    scheduling: Scheduling | None = self.__dict__.get("_mfs_scheduling")
    session = holder.get()
    return scheduling if scheduling is not None and session is not None and session.scheduled else None


def _lanes_of(self: Any) -> Lanes | None:
    lanes: Lanes | None = self.__dict__.get("_mfs_lanes")
    return lanes


def moving(base: type, holder: Holder, name: str, shape: Shape) -> Callable[..., int]:
    """Makes a method that moves bytes, which asks for permits first."""
    original = getattr(base, name)

    @wraps(original)
    def method(self: Any, *arguments: Any, **keywords: Any) -> int:
        scheduling = _scheduling_of(self, holder)
        if scheduling is None or (call := read(shape, arguments, keywords)) is None:
            return int(original(self, *arguments, **keywords))
        if shape.synchronous:
            return scheduling.synchronous(self, original, call, arguments, keywords)
        return scheduling.asynchronous(self, call)

    if shape.many or not shape.synchronous or shape.operation is None:
        return method
    return quick(original, method, shape.operation == READ)


def initializing(base: type, holder: Holder, sources: MetadataSources, once: WarnOnce, name: str) -> Callable[..., int]:
    """Makes a method that initializes the engine and sets up its lanes and scheduling."""
    original = getattr(base, name)

    @wraps(original)
    def method(self: Any, *arguments: Any) -> int:
        session = holder.get()
        if session is None or len(arguments) < 4 or not all(isinstance(one, str) for one in arguments):
            return int(original(self, *arguments))
        tcp = arguments[2] == "tcp" or bool(os.environ.get("MC_FORCE_TCP"))
        lanes = Lanes(base, self, session, own_class(session), once)
        result = lanes.initialize(self, name, arguments, tcp)
        if result == 0:
            scheduling = Scheduling(base, self, session, sources, lanes, once)
            devices = "" if tcp else devices_of(self, base, arguments[3])
            scheduling.nic = nic_of(session, devices, arguments[0], tcp)
            self._mfs_lanes, self._mfs_scheduling = lanes, scheduling
            self._mfs_fast_path = scheduling.fast_path()
        return result

    return method


def memory_methods(original: Any) -> list[Callable[..., Any]]:
    """Makes the methods that register memory: it is also registered with the engines of the lanes."""

    def register_memory(self: Any, *arguments: Any, **keywords: Any) -> int:
        result = int(original.register_memory(self, *arguments, **keywords))
        lanes = _lanes_of(self)
        if result == 0 and lanes is not None:
            given = {**dict(zip(("buffer_addr", "capacity", "location"), arguments, strict=False)), **keywords}
            lanes.registered(given["buffer_addr"], given["capacity"], given.get("location", "*"))
        return result

    def unregister_memory(self: Any, *arguments: Any) -> int:
        lanes = _lanes_of(self)
        if lanes is not None and arguments:
            lanes.unregistered(arguments[0])
        return int(original.unregister_memory(self, *arguments))

    def batch_register_memory(self: Any, *arguments: Any, **keywords: Any) -> int:
        result = int(original.batch_register_memory(self, *arguments, **keywords))
        lanes = _lanes_of(self)
        if result == 0 and lanes is not None:
            given = {**dict(zip(("buffer_addresses", "capacities", "location"), arguments, strict=False)), **keywords}
            for address, size_bytes in zip(given["buffer_addresses"], given["capacities"], strict=True):
                lanes.registered(address, size_bytes, given.get("location", "*"))
        return result

    def batch_unregister_memory(self: Any, *arguments: Any) -> int:
        lanes = _lanes_of(self)
        if lanes is not None and arguments:
            for address in arguments[0]:
                lanes.unregistered(address)
        return int(original.batch_unregister_memory(self, *arguments))

    def allocate_managed_buffer(self: Any, *arguments: Any) -> int:
        address = int(original.allocate_managed_buffer(self, *arguments))
        lanes = _lanes_of(self)
        if address > 0 and lanes is not None:
            lanes.registered(address, arguments[0])
        return address

    def free_managed_buffer(self: Any, *arguments: Any) -> int:
        lanes = _lanes_of(self)
        if lanes is not None and arguments:
            lanes.unregistered(arguments[0])
        return int(original.free_managed_buffer(self, *arguments))

    return [
        register_memory,
        unregister_memory,
        batch_register_memory,
        batch_unregister_memory,
        allocate_managed_buffer,
        free_managed_buffer,
    ]


def status_methods(original: Any) -> list[Callable[..., Any]]:
    """Makes the methods that report a call's status: one call may be under way in several pieces and lanes."""

    def transfer_check_status(self: Any, *arguments: Any) -> int:
        scheduling: Scheduling | None = self.__dict__.get("_mfs_scheduling")
        if scheduling is None or len(arguments) != 1 or not isinstance(arguments[0], int):
            return int(original.transfer_check_status(self, *arguments))
        return scheduling.check(self, arguments[0])

    def get_batch_transfer_status(self: Any, *arguments: Any) -> int:
        scheduling: Scheduling | None = self.__dict__.get("_mfs_scheduling")
        if scheduling is None or len(arguments) != 1 or not isinstance(arguments[0], list):
            return int(original.get_batch_transfer_status(self, *arguments))
        return scheduling.status(self, arguments[0])

    def get_notifies(self: Any) -> list[Any]:
        lanes = _lanes_of(self)
        found = list(original.get_notifies(self))
        for lane in lanes.engines() if lanes is not None else ():
            found += original.get_notifies(lane)
        return found

    return [transfer_check_status, get_batch_transfer_status, get_notifies]


def adapted(base: type, holder: Holder, sources: MetadataSources, once: WarnOnce) -> type:
    """Returns the adapted subclass of this TransferEngine."""
    members: dict[str, Any] = {
        name: moving(base, holder, name, shape) for name, shape in SHAPES.items() if hasattr(base, name)
    }
    for name in ("initialize", "initialize_ext"):
        if hasattr(base, name):
            members[name] = initializing(base, holder, sources, once, name)
    for method in (*memory_methods(base), *status_methods(base)):
        if hasattr(base, method.__name__):
            members[method.__name__] = wraps(getattr(base, method.__name__))(method)
    members |= {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        ADAPTED: True,
    }
    return type(base.__name__, (base,), members)

"""The part of NIXL's Python module that the adapter uses, with a binding that answers by script and moves no data."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

SUCCESS, IN_PROGRESS, FAILURE = "success", "in progress", "failure"


class nixlRepostActiveError(Exception): ...


class nixlBackendError(Exception): ...


@dataclass
class Binding:
    """Stands for NIXL's own agent: records the calls in order and gives scripted answers."""

    posts: Callable[[int], object] = lambda handle: IN_PROGRESS
    asked: Callable[[int], object] = lambda handle: SUCCESS
    releases: Callable[[int], object] = lambda handle: None
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    made: int = 0

    def makeXferReq(self, *arguments: Any) -> int:
        self.made += 1
        self.calls.append(("make", *arguments))
        return self.made

    createXferReq = makeXferReq

    def postXferReq(self, handle: int, notification: bytes) -> object:
        self.calls.append(("post", handle, notification))
        return self.posts(handle)

    def getXferStatus(self, handle: int) -> object:
        self.calls.append(("ask", handle))
        return self.asked(handle)

    def releaseXferReq(self, handle: int) -> None:
        self.calls.append(("release", handle))
        self.releases(handle)

    def getXferTelemetry(self, handle: int) -> object:
        return ("telemetry", handle)

    def releasedDlistH(self, number: int) -> None:
        self.calls.append(("release list", number))

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == name]


class Descriptors:
    """A nixlXferDList."""

    def __init__(self, kind: object, rows: Any) -> None:
        self.kind, self.rows = kind, rows

    def getType(self) -> object:
        return self.kind

    def isEmpty(self) -> bool:
        return not self.rows

    def descCount(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Any:
        return self.rows[at]


nixlBind = SimpleNamespace(
    NIXL_SUCCESS=SUCCESS,
    NIXL_IN_PROG=IN_PROGRESS,
    DRAM_SEG="DRAM",
    VRAM_SEG="VRAM",
    nixlXferDList=Descriptors,
    nixlRepostActiveError=nixlRepostActiveError,
    nixlAgent=lambda name, config: Binding(),
)


class nixl_thread_sync_t(Enum):
    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1


class nixl_agent_config:
    sync_mode = None


class nixl_prepped_dlist_handle:
    __slots__ = ("_agent", "_handle", "_released")

    def __init__(self, agent: Any, value: int) -> None:
        self._handle, self._agent, self._released = value, agent, False


class nixl_xfer_handle:
    __slots__ = ("_agent", "_handle", "_released")

    def __init__(self, agent: Any, value: int) -> None:
        self._handle, self._agent, self._released = int(value), agent, False

    def release(self) -> None:
        if not self._released:
            self._agent.releaseXferReq(self._handle)
            self._released = True

    def __del__(self) -> None:
        self.release()


class nixl_agent:
    def __init__(self, agent_name: str, nixl_conf: Any = None, instantiate_all: bool = False) -> None:
        self.name, self.backends, self.plugin_list = agent_name, {"UCX": 11}, ["UCX"]
        self.agent: Any = nixlBind.nixlAgent(agent_name, copy.copy(nixl_conf))
        self.nixl_ops, self.nixl_mems = {"READ": "read", "WRITE": "write"}, {"DRAM": "DRAM"}

    def create_backend(self, backend: str, initParams: Any = None) -> None: ...
    def register_memory(self, reg_list: Any, mem_type: Any = None, backends: Any = ()) -> None: ...
    def deregister_memory(self, dereg_list: Any, backends: Any = ()) -> None: ...
    def make_connection(self, remote_agent: Any, backends: Any = ()) -> None: ...
    def get_new_notifs(self, backends: Any = ()) -> None: ...
    def update_notifs(self, backends: Any = ()) -> None: ...
    def check_remote_xfer_done(
        self, remote_agent_name: Any, lookup_tag: Any, backends: Any = (), tag_is_prefix: bool = True
    ) -> None: ...
    def send_notif(self, remote_agent_name: Any, notif_msg: Any, backend: Any = None) -> None: ...
    def get_partial_agent_metadata(self, descs: Any, inc_conn_info: bool = False, backends: Any = ()) -> None: ...
    def add_remote_agent(self, metadata: Any) -> None: ...
    def remove_remote_agent(self, agent: Any) -> None: ...

    def get_xfer_descs(self, rows: Any, mem_type: Any = None) -> Descriptors:
        return rows if isinstance(rows, Descriptors) else Descriptors(mem_type, rows)

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: Any = None, backends: Any = ()) -> Any:
        return nixl_prepped_dlist_handle(self.agent, 100 + len(agent_name))

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: Any,
        local_indices: Any,
        remote_xfer_side: Any,
        remote_indices: Any,
        notif_msg: bytes = b"",
        backends: Any = (),
        skip_desc_merge: bool = False,
    ) -> Any:
        handles = [self.backends[name] for name in backends]
        sides = (local_xfer_side._handle, local_indices, remote_xfer_side._handle, remote_indices)
        made = self.agent.makeXferReq(self.nixl_ops[operation], *sides, notif_msg, handles, skip_desc_merge)
        return nixl_xfer_handle(self.agent, made)

    def initialize_xfer(
        self,
        operation: str,
        local_descs: Any,
        remote_descs: Any,
        remote_agent: str,
        notif_msg: bytes = b"",
        backends: Any = (),
    ) -> Any:
        handles = [self.backends[name] for name in backends]
        made = self.agent.createXferReq(
            self.nixl_ops[operation], local_descs, remote_descs, remote_agent, notif_msg, handles
        )
        return nixl_xfer_handle(self.agent, made)

    def transfer(self, handle: Any, notif_msg: bytes = b"") -> str:
        return self._named(self.agent.postXferReq(handle._handle, notif_msg))

    def check_xfer_state(self, handle: Any) -> str:
        return self._named(self.agent.getXferStatus(handle._handle))

    def get_xfer_telemetry(self, handle: Any) -> object:
        return self.agent.getXferTelemetry(handle._handle)

    def release_xfer_handle(self, handle: Any) -> None:
        handle.release()

    def release_dlist_handle(self, handle: Any) -> None:
        handle.release()

    def _named(self, status: object) -> str:
        return {SUCCESS: "DONE", IN_PROGRESS: "PROC"}.get(str(status), "ERR")

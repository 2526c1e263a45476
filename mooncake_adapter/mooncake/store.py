"""A drop-in subclass of mooncake.store.MooncakeDistributedStore: reads are stage 1, writes go when nothing else waits.

It has two lanes. The program's own client has the class of blocking reuse, as a client with a segment answers reads
through it. A second client without a segment has the scavenger's class; it is opened in the background at the first
write.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from mfsd.transfer import Transfer
from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.mooncake import marking
from mooncake_adapter.mooncake.lanes import shim_present
from mooncake_adapter.mooncake.network import nic_of
from mooncake_adapter.mooncake.permits import Budget, permitted, store_hold_max_s
from mooncake_adapter.session import ADAPTED, STAGE_BACKGROUND, STAGE_REUSE, Holder, Session, read_class
from mooncake_adapter.warn_once import WarnOnce

CLASS = "MooncakeDistributedStore"
READS = re.compile(r"(batch_)?get(_batch|_buffer|_into|_tensor|$)")
WRITES = re.compile(r"(batch_)?(put|upsert|pub)(_|$)")
NO_BYTES = re.compile(r"_session_|_replica_")
SPLIT = frozenset(
    f"batch_{kind}"
    for kind in ("get_into", "get_into_multi_buffers", "put_from", "put_from_multi_buffers", "upsert_from")
)
"""Calls with one list entry and one result for each key, which can be split by request."""
SIZES, KEYS = ("sizes", "all_sizes", "size", "metadata_size"), ("keys", "base_keys", "key", "arg0")
CONTENTS = ("value", "values", "tensor", "tensors_list", "parts")
POINTERS = ("buffer_ptrs", "all_buffer_ptrs", "buffer_ptr")
SETUP = (
    *("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size", "protocol", "rdma_devices"),
    *("master_server_addr", "engine"),
)
"""The first parameters of setup()."""
_setting_up = threading.Lock()


def parameters(method: Any) -> list[str]:
    """Returns the names of the parameters after self, from the method's first documented signature."""
    text = (method.__doc__ or "").partition("(")[2].partition(") ->")[0]
    return ["parts" if name == "*args" else name for name in re.findall(r"(?:^|, )(\*?\w+)(?=[:,]|$)", text)[1:]]


def total(sizes: Any) -> int:
    """Returns the sum of a number or of arbitrarily nested lists of numbers."""
    return sum(map(total, sizes)) if isinstance(sizes, (list, tuple)) else int(sizes)


def content_bytes(content: Any) -> int:
    """Returns the bytes of a buffer, a tensor or a list of them; 0 if it has no size."""
    if isinstance(content, (list, tuple)):
        return sum(map(content_bytes, content))
    size = getattr(content, "nbytes", None)
    if isinstance(size, int):
        return size
    try:
        return len(content)
    except TypeError:
        return 0


def first_pointer(pointers: Any) -> int:
    while isinstance(pointers, (list, tuple)):
        pointers = pointers[0]
    return int(pointers)


class Stored:
    """What the adapter keeps for one store."""

    def __init__(self, base: Any, session: Session, sources: MetadataSources, once: WarnOnce, nic: int) -> None:
        self._base, self._session, self._sources, self._once, self._nic = base, session, sources, once, nic
        self._lock = threading.Lock()
        self._buffers: dict[int, int] = {}
        self._writer: Any = None
        self._opening = False
        self.writer_arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def registered(self, address: int, size_bytes: int) -> None:
        with self._lock:
            self._buffers[address] = size_bytes
            if self._writer is not None and self._base.register_buffer(self._writer, address, size_bytes) != 0:
                self._writer = None

    def unregistered(self, address: int) -> None:
        with self._lock:
            self._buffers.pop(address, None)
            if self._writer is not None:
                self._base.unregister_buffer(self._writer, address)

    def writer(self, own: Any) -> Any:
        """Returns the client that writes: the second client once it is open."""
        if self._writer is None and self.writer_arguments is not None:
            with self._lock:
                start, self._opening = not self._opening, True
            if start:
                threading.Thread(target=self._open_writer, name="mfs-store-lane", daemon=True).start()
        return self._writer or own

    def _open_writer(self) -> None:
        assert self.writer_arguments is not None
        arguments, keywords = self.writer_arguments
        try:
            made = self._base()
            with _setting_up, self._session.lane(self._session.classes - 1):
                if self._base.setup(made, *arguments, **keywords) != 0:
                    return
            with self._lock:
                if all(self._base.register_buffer(made, a, n) == 0 for a, n in self._buffers.items()):
                    self._writer = made
        except Exception as error:
            self._once.warn("store-lane", "the lane of store writes cannot be opened (%s)", error)

    def close(self) -> None:
        with self._lock:
            writer, self._writer, self.writer_arguments = self._writer, None, None
        if writer is not None:
            self._base.close(writer)

    def size_bytes(self, own: Any, given: dict[str, Any]) -> int:
        """Returns how many bytes the call moves. If only keys are given, the size of the first counts for all."""
        found = sum(total(given[name]) for name in SIZES if name in given)
        found = found or sum(content_bytes(given[name]) for name in CONTENTS if name in given)
        if found == 0 and (keys := next((given[name] for name in KEYS if name in given), None)):
            names = keys if isinstance(keys, (list, tuple)) else [keys]
            found = max(0, int(self._base.get_size(own, names[0]))) * len(names)
        return found

    def budget(self) -> Budget:
        """How long a call may be held: within the lease of a read. Writes have the same limit."""
        return Budget(self._session, store_hold_max_s(self._once))

    def _message(self, own: Any, stage: int, given: dict[str, Any]) -> tuple[Any, Transfer]:
        """Returns the client that makes the call, and the transfer to ask a permit for."""
        pointers = next((given[name] for name in POINTERS if name in given), None)
        ranged = pointers is not None and self._sources.any_owner()
        metadata = self._sources.of(first_pointer(pointers)) if ranged else self._sources.current()
        client = self.writer(own) if stage == STAGE_BACKGROUND else own
        return client, Transfer(
            self.size_bytes(own, given),
            stage if metadata.stage is None else metadata.stage,
            self._nic,
            metadata.request_id,
            metadata.deadline_ns,
            metadata.batch,
            metadata.layer,
            class_marked=client is not own,  # reads carry the same class as collectives
            incoming=stage == STAGE_REUSE,
        )

    def run(
        self,
        own: Any,
        original: Any,
        stage: int,
        given: dict[str, Any],
        arguments: Any,
        keywords: Any,
        budget: Budget | None = None,
    ) -> Any:
        """Issues the call when it is permitted; returns Mooncake's result."""
        try:
            client, transfer = self._message(own, stage, given)
        except Exception as error:
            text = "a call of the store could not be read (%s: %s); it goes unscheduled"
            self._once.warn("store", text, type(error).__name__, error)
            return original(own, *arguments, **keywords)  # left for Mooncake to refuse
        permit = permitted(self._session, self._once, budget or self.budget(), transfer)
        try:
            return original(client, *arguments, **keywords)
        finally:
            if permit is not None:
                permit.complete()

    def split(self, own: Any, original: Any, stage: int, given: dict[str, Any], rest: dict[str, Any]) -> Any:
        """Like run, but split by request. Returns the results in the order of the keys."""
        pointers = next(given[name] for name in POINTERS if name in given)
        groups: dict[Metadata, list[int]] = {}
        for index, pointer in enumerate(pointers):
            groups.setdefault(self._sources.of(first_pointer(pointer)), []).append(index)
        answers: list[Any] = [None] * len(pointers)
        budget = self.budget()
        for indices in groups.values():
            part = {name: [value[i] for i in indices] for name, value in given.items()}
            answer_of = self.run(own, original, stage, part, (), {**part, **rest}, budget)
            for index, answer in zip(indices, answer_of, strict=True):
                answers[index] = answer
        return answers


def writer_setup(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Returns the arguments of setup() for a second client without a segment of its own; None if there can be none."""
    if arguments and isinstance(arguments[0], dict):
        config = {**arguments[0], "global_segment_size": 0, "enable_ssd_offload": False}
        config.pop("client_http_port", None)
        config["enable_client_http_server"] = False
        return (config,), {}
    names = SETUP
    given = {**dict(zip(names, arguments, strict=False)), **keywords}
    if given.get("engine") is not None or given.get("metadata_server") != "P2PHANDSHAKE":
        return None
    host, _, port = str(given["local_hostname"]).rpartition(":")
    given["local_hostname"] = host if port.isdigit() and host.count(":") == 0 and host else given["local_hostname"]
    kept = {name: given[name] for name in names[:7] if name in given}
    return (), {**kept, "global_segment_size": 0}


def _stored_of(self: Any, holder: Holder) -> Stored | None:
    stored: Stored | None = self.__dict__.get("_mfs_stored")
    session = holder.get()
    return stored if stored is not None and session is not None and session.scheduled else None


def moving(base: type, holder: Holder, sources: MetadataSources, name: str, stage: int) -> Callable[..., Any]:
    """Makes a method that moves bytes, which asks for permits first."""
    original = getattr(base, name)
    names = parameters(original)

    def given_of(arguments: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        if "parts" in names:
            return {"key": arguments[0], "parts": arguments[1:]}
        return {**dict(zip(names, arguments, strict=False)), **keywords}

    @wraps(original)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        stored = _stored_of(self, holder)
        if stored is None:
            return original(self, *arguments, **keywords)
        try:
            given = given_of(arguments, keywords)
            cuttable = name in SPLIT and sources.any_owner()
            lists = {k: v for k, v in given.items() if isinstance(v, list)}
            cuttable = cuttable and len({len(v) for v in lists.values()}) == 1
            if cuttable:
                pointers = next((lists[k] for k in POINTERS if k in lists), ())
                cuttable = len({sources.of(first_pointer(pointer)) for pointer in pointers}) > 1
            total({k: v for k, v in given.items() if k in SIZES}.get("sizes", 0))
        except Exception:
            return original(self, *arguments, **keywords)  # invalid arguments are left for Mooncake to refuse
        if cuttable:
            rest = {k: v for k, v in given.items() if k not in lists}
            return stored.split(self, original, stage, lists, rest)
        return stored.run(self, original, stage, given, arguments, keywords)

    return method


def setting_up(base: Any, holder: Holder, sources: MetadataSources, once: WarnOnce) -> Callable[..., int]:
    """Makes setup(), which also gives the store's own client its lane and creates the adapter's state."""

    def setup(self: Any, *arguments: Any, **keywords: Any) -> int:
        session = holder.get()
        if session is None:
            return int(base.setup(self, *arguments, **keywords))
        wire_class = read_class(session)
        first = arguments[0] if arguments else None
        given = first if isinstance(first, dict) else {**dict(zip(SETUP, arguments, strict=False)), **keywords}
        protocol, host = str(given.get("protocol", "tcp")), str(given.get("local_hostname", ""))
        with _setting_up, session.lane(wire_class):
            before = marking.listening_ports() if protocol == "tcp" else set()
            result = int(base.setup(self, *arguments, **keywords))
            new = marking.listening_ports() - before if protocol == "tcp" else set()
        if result == 0:
            dscp = marking.dscp_of(session.dscp, wire_class)
            if dscp is not None and new:
                marking.mark_listening(new, dscp)
            nic = nic_of(session, str(given.get("rdma_devices", "")), host, protocol == "tcp")
            self._mfs_stored = Stored(base, session, sources, once, nic)
            if protocol != "tcp" and shim_present():
                self._mfs_stored.writer_arguments = writer_setup(arguments, keywords)
        return result

    return setup


def buffer_methods(original: Any) -> list[Callable[..., Any]]:
    """Makes the methods that register buffers, with the writing client, too; that client is closed with the store."""

    def register_buffer(self: Any, *arguments: Any, **keywords: Any) -> int:
        result = int(original.register_buffer(self, *arguments, **keywords))
        stored: Stored | None = self.__dict__.get("_mfs_stored")
        if result == 0 and stored is not None:
            given = {**dict(zip(("buffer_ptr", "size"), arguments, strict=False)), **keywords}
            stored.registered(given["buffer_ptr"], given["size"])
        return result

    def unregister_buffer(self: Any, *arguments: Any, **keywords: Any) -> int:
        stored: Stored | None = self.__dict__.get("_mfs_stored")
        if stored is not None and (arguments or keywords):
            stored.unregistered(arguments[0] if arguments else keywords["buffer_ptr"])
        return int(original.unregister_buffer(self, *arguments, **keywords))

    def close(self: Any) -> int:
        stored: Stored | None = self.__dict__.get("_mfs_stored")
        if stored is not None:
            stored.close()
        return int(original.close(self))

    return [register_buffer, unregister_buffer, close]


def adapted(base: type, holder: Holder, sources: MetadataSources, once: WarnOnce) -> type:
    """Returns the adapted subclass of this MooncakeDistributedStore."""
    members: dict[str, Any] = {}
    for name in dir(base):
        if name.startswith("_") or NO_BYTES.search(name) or name == "get_size":
            continue
        if READS.match(name):
            members[name] = moving(base, holder, sources, name, STAGE_REUSE)
        elif WRITES.match(name):
            members[name] = moving(base, holder, sources, name, STAGE_BACKGROUND)
    for method in (setting_up(base, holder, sources, once), *buffer_methods(base)):
        if hasattr(base, method.__name__):
            members[method.__name__] = wraps(getattr(base, method.__name__))(method)
    members |= {"__doc__": base.__doc__, "__module__": base.__module__, "__qualname__": base.__qualname__}
    members[ADAPTED] = True
    return type(base.__name__, (base,), members)

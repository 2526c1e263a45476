"""Entry point `sglang.srt.plugins`: adapts Mooncake and NIXL and reports which request each KV page belongs to.

Hooks by SGLang's own registry, on names that its Mooncake and NIXL backends share and have kept. A hook whose target is
gone is reported by SGLang, and transfers then go by rules. Requests have their objective in
`sampling_params.custom_params`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from mooncake_adapter.blocks import Blocks, Region
from mooncake_adapter.hook import install
from mooncake_adapter.metadata import Metadata, MetadataSources, request_number
from mooncake_adapter.protocol import tested
from mooncake_adapter.slo import Defaults, monotonic_ns, promise_of
from mooncake_adapter.warn_once import WarnOnce

MANAGERS = (
    "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager",
    "sglang.srt.disaggregation.nixl.conn.NixlKVManager",
)
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
TESTED_INTERFACES = ("0.5",)
"""Major and minor versions of SGLang; the hooks are on interfaces that stay within one."""
ROOMS_MAX = 65536
"""Rooms remembered at once; the oldest is forgotten, so that requests that never end cost nothing."""


class Rooms:
    """What is known of each transfer, which SGLang calls a room."""

    def __init__(self, sources: MetadataSources, once: WarnOnce) -> None:
        self._once, self._sources = once, sources
        self._pages = Blocks()
        self._rooms: dict[int, Metadata] = {}
        sources.add_finder(self._pages)

    def arrived(self, scheduler: Any, request: Any, *arguments: Any, **keywords: Any) -> None:
        """BEFORE Scheduler.handle_generate_request: a request with its room and what it was promised."""
        room = getattr(request, "bootstrap_room", None)
        if not isinstance(room, int):
            return
        sampling = getattr(request, "sampling_params", None)
        sources = (getattr(sampling, "custom_params", None), getattr(request, "custom_params", None))
        promise = promise_of([one for one in sources if isinstance(one, Mapping)], Defaults(), "", self._once)
        self._rooms[room] = Metadata(
            request_number(f"room-{room}"), deadline_ns=monotonic_ns(promise.deadline_unix_ns(time.time()))
        )
        while len(self._rooms) > ROOMS_MAX:  # its pages are the next room's when they are sent again
            self._rooms.pop(next(iter(self._rooms)))

    def registered(self, result: Any, manager: Any, *arguments: Any, **keywords: Any) -> None:
        """AFTER register_buffer_to_engine of a KV manager: where the pages of each layer are."""
        known = manager.kv_args
        rows = list(zip(known.kv_data_ptrs, known.kv_data_lens, known.kv_item_lens, strict=True))
        layers = _layers(known, len(rows))
        self._pages.register(
            Region(int(address), int(item), int(size) // int(item), layer)
            for (address, size, item), layer in zip(rows, layers, strict=True)
            if item > 0
        )

    def sent(
        self, manager: Any, bootstrap_room: int, kv_indices: Iterable[Any], *arguments: Any, **keywords: Any
    ) -> None:
        """BEFORE add_transfer_request of a KV manager: these pages are this room's."""
        self._pages.give((int(index) for index in kv_indices), self._of(bootstrap_room))

    def staged(self, manager: Any, strategy: Any, chunk: Any, *arguments: Any, **keywords: Any) -> None:
        """BEFORE _do_staging_transfer of a KV manager: what this room's pages are gathered into, and sent from, is its
        own until the next room's are."""
        buffer = strategy.staging_buffer
        self._sources.ranges.add(int(buffer.get_ptr()), int(buffer.size_bytes), self._of(chunk.room))

    def _of(self, room: int) -> Metadata:
        return self._rooms.setdefault(room, Metadata(request_number(f"room-{room}")))


def _layers(known: Any, rows: int) -> list[int]:
    """The layer of each buffer: keys of all layers, then values of all; with latent attention one buffer a layer."""
    named = getattr(known, "kv_layer_ids", None)
    if named is not None and len(named) == rows:
        return [int(layer) for layer in named]
    count = len(named) if named else rows // 2 if rows % 2 == 0 and not getattr(known, "is_mla", False) else rows
    return [index % max(1, count) for index in range(rows)]


def hooks(rooms: Rooms, once: WarnOnce) -> list[tuple[str, Any, str]]:
    """Target, function and kind of every hook; none of them lets an error of its own out."""

    def safe(function: Any) -> Any:
        def guarded(*arguments: Any, **keywords: Any) -> None:
            try:
                function(*arguments, **keywords)
            except Exception as error:
                once.warn(
                    f"sglang-{function.__name__}",
                    "SGLang's %s is not as expected (%s: %s); its requests are not reported",
                    function.__name__,
                    type(error).__name__,
                    error,
                )

        return guarded

    return [
        (f"{SCHEDULER}.handle_generate_request", safe(rooms.arrived), "BEFORE"),
        *((f"{manager}.register_buffer_to_engine", safe(rooms.registered), "AFTER") for manager in MANAGERS),
        *((f"{manager}.add_transfer_request", safe(rooms.sent), "BEFORE") for manager in MANAGERS),
        *((f"{manager}._do_staging_transfer", safe(rooms.staged), "BEFORE") for manager in MANAGERS),
    ]


def supported_version(version: str, once: WarnOnce) -> bool:
    """Whether this SGLang's interfaces are those that were tested; warns once where they are not."""
    interface = ".".join(version.split(".")[:2])
    return tested("SGLang", version, interface, TESTED_INTERFACES, "transfers go by rules", once)


def register() -> None:
    """Called by SGLang in each of its processes."""
    if not install():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from mooncake_adapter.process import PROCESS

    if not supported_version(__import__("sglang").__version__, PROCESS.once):
        return
    for target, function, kind in hooks(Rooms(PROCESS.sources, PROCESS.once), PROCESS.once):
        HookRegistry.register(target, function, HookType[kind])

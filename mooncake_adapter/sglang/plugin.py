"""Entry point `sglang.srt.plugins`: adapts Mooncake and NIXL and reports which request each KV page belongs to.

The hooks use SGLang's own registry, on names that its Mooncake and NIXL backends share and have kept. SGLang reports a
hook whose target is gone; transfers then go by rules. Requests carry their objective in
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
"""Major and minor versions of SGLang. The hooked interfaces do not change within one."""
ROOMS_MAX = 65536
"""Limit of the rooms remembered at once. The oldest is forgotten, so that requests that never end use no memory."""


class Rooms:
    """What is known of each transfer, which SGLang calls a room."""

    def __init__(self, sources: MetadataSources, once: WarnOnce) -> None:
        self._once, self._sources = once, sources
        self._pages = Blocks()
        self._rooms: dict[int, Metadata] = {}
        sources.add_finder(self._pages)

    def arrived(self, scheduler: Any, request: Any, *arguments: Any, **keywords: Any) -> None:
        """BEFORE Scheduler.handle_generate_request: records the room of a request and what the request was promised."""
        room = getattr(request, "bootstrap_room", None)
        if not isinstance(room, int):
            return
        sampling = getattr(request, "sampling_params", None)
        sources = (getattr(sampling, "custom_params", None), getattr(request, "custom_params", None))
        promise = promise_of([one for one in sources if isinstance(one, Mapping)], Defaults(), "", self._once)
        self._rooms[room] = Metadata(
            request_number(f"room-{room}"), deadline_ns=monotonic_ns(promise.deadline_unix_ns(time.time()))
        )
        while len(self._rooms) > ROOMS_MAX:  # its pages go to the next room when they are sent again
            self._rooms.pop(next(iter(self._rooms)))

    def registered(self, result: Any, manager: Any, *arguments: Any, **keywords: Any) -> None:
        """AFTER register_buffer_to_engine of a KV manager: records where the pages of each layer are."""
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
        """BEFORE add_transfer_request of a KV manager: these pages belong to this room."""
        self._pages.give((int(index) for index in kv_indices), self._of(bootstrap_room))

    def staged(self, manager: Any, strategy: Any, chunk: Any, *arguments: Any, **keywords: Any) -> None:
        """BEFORE _do_staging_transfer of a KV manager: the buffer that this room's pages are gathered into and sent
        from belongs to the room until the next room uses it."""
        buffer = strategy.staging_buffer
        self._sources.ranges.add(int(buffer.get_ptr()), int(buffer.size_bytes), self._of(chunk.room))

    def _of(self, room: int) -> Metadata:
        return self._rooms.setdefault(room, Metadata(request_number(f"room-{room}")))


def _layers(known: Any, rows: int) -> list[int]:
    """Returns the layer of each buffer: keys of all layers, then values of all; with latent attention one buffer a
    layer."""
    named = getattr(known, "kv_layer_ids", None)
    if named is not None and len(named) == rows:
        return [int(layer) for layer in named]
    count = len(named) if named else rows // 2 if rows % 2 == 0 and not getattr(known, "is_mla", False) else rows
    return [index % max(1, count) for index in range(rows)]


def hooks(rooms: Rooms, once: WarnOnce) -> list[tuple[str, Any, str]]:
    """Returns target, function and kind of every hook. No hook raises an error of its own."""

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
    """Whether the interfaces of this SGLang were tested; warns once if they were not."""
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

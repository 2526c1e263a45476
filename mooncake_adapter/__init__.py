"""Adapters that report to MFS what each byte is for: Mooncake's transfer engine and store, vLLM and SGLang.

    import mooncake_adapter
    mooncake_adapter.install()                      # or start the program with mfs-run
    with mooncake_adapter.transfer(request_id=7, stage=3, layer=12, deadline_ns=deadline_ns):
        engine.batch_transfer_sync_write(...)       # permitted first, in its class; see docs/adapters.md

Importing this package imports nothing else: the public names below are loaded when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mooncake_adapter.hook import install

if TYPE_CHECKING:
    from mooncake_adapter.metadata import Metadata, request_number
    from mooncake_adapter.process import current_session, ranges, transfer

__all__ = ["Metadata", "current_session", "install", "ranges", "request_number", "transfer"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from mooncake_adapter import metadata, process

        return getattr(metadata if name in ("Metadata", "request_number") else process, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

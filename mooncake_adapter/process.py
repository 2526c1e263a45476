"""The adapter's state of this process: one session, one set of metadata, one memory of warnings."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from types import ModuleType

from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.protocol import TransferAdapter
from mooncake_adapter.session import ADAPTED, Batch, Holder
from mooncake_adapter.warn_once import WarnOnce


class Process:
    """Everything that the adapters of one process share."""

    def __init__(self, holder: Holder | None = None) -> None:
        self.once = WarnOnce()
        self.holder = holder or Holder(once=self.once)
        self.sources = MetadataSources(self.once)
        os.register_at_fork(after_in_child=self.holder.forget)

    def adapt(self, module: ModuleType, adapter: TransferAdapter) -> None:
        """Replaces the module's class by its adapted subclass, once."""
        base = getattr(module, adapter.CLASS, None)
        if isinstance(base, type) and not getattr(base, ADAPTED, False):
            setattr(module, adapter.CLASS, adapter.adapted(base, self.holder, self.sources, self.once))

    def transfer(
        self,
        *,
        request_id: int = 0,
        stage: int | None = None,
        layer: int = 0,
        deadline_ns: int = 0,
        batch: Batch | None = None,
    ) -> AbstractContextManager[None]:
        """Transfers started inside the block carry this metadata, unless their memory is in a range."""
        return self.sources.transfer(Metadata(request_id, stage, layer, deadline_ns, batch))


PROCESS = Process()
transfer = PROCESS.transfer
ranges = PROCESS.sources.ranges
current_session = PROCESS.holder.get

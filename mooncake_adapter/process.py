"""The adapter of this process: one session, one set of metadata, one memory of warnings."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from types import ModuleType

from mooncake_adapter.engine import ADAPTED, adapted_engine
from mooncake_adapter.metadata import Metadata, Words
from mooncake_adapter.session import Batch, Holder
from mooncake_adapter.store import adapted_store
from mooncake_adapter.warn_once import WarnOnce

CLASSES = {
    "mooncake.engine": ("TransferEngine", adapted_engine),
    "mooncake.store": ("MooncakeDistributedStore", adapted_store),
}
"""What is replaced when a module of Mooncake is imported."""


class Process:
    """Everything that the adapters of one process share."""

    def __init__(self, holder: Holder | None = None) -> None:
        self.once = WarnOnce()
        self.holder = holder or Holder(once=self.once)
        self.words = Words(self.once)
        os.register_at_fork(after_in_child=self.holder.forget)

    def adapt(self, module: ModuleType) -> None:
        """Replaces the module's class by its adapted subclass, once."""
        name, make = CLASSES[module.__name__]
        base = getattr(module, name, None)
        if isinstance(base, type) and not getattr(base, ADAPTED, False):
            setattr(module, name, make(base, self.holder, self.words, self.once))

    def transfer(
        self,
        *,
        request_id: int = 0,
        stage: int | None = None,
        layer: int = 0,
        deadline_ns: int = 0,
        batch: Batch | None = None,
    ) -> AbstractContextManager[None]:
        """Transfers that the code inside starts carry this metadata, unless their memory is in a range."""
        return self.words.transfer(Metadata(request_id, stage, layer, deadline_ns, batch))


PROCESS = Process()
transfer = PROCESS.transfer
ranges = PROCESS.words.ranges
current_session = PROCESS.holder.get

"""vLLM's Mooncake connector for the test: on a host without an accelerator, for whose number it asks first, and with a
switch that empties the cache before it is sent, so that the test can see that the cache matters.

MFS_E2E_FOLDER names the folder where "zero" is that switch and where each process writes what the adapters do.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch

if not torch.accelerator.is_available():
    torch.accelerator.current_device_index = lambda: 0  # type: ignore[assignment]

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector

FOLDER = Path(os.environ["MFS_E2E_FOLDER"])


class MooncakeConnector(mooncake_connector.MooncakeConnector):  # type: ignore[misc]
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        adapter = logging.getLogger("mfs.adapter")
        if not adapter.handlers:
            adapter.addHandler(logging.FileHandler(FOLDER / f"adapter-{os.getpid()}.log"))
            adapter.setLevel(logging.DEBUG)
        super().__init__(vllm_config, role, kv_cache_config)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._caches = kv_caches
        super().register_kv_caches(kv_caches)

    def wait_for_save(self) -> None:
        if (FOLDER / "zero").exists():
            for cache in self._caches.values():
                cache.zero_()
        super().wait_for_save()

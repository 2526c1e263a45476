"""vLLM's Mooncake connector for the test: on a host without an accelerator, for whose number it asks first, and with a
switch that empties the cache before it is sent, so that the test can see that the cache matters.

vLLM's attention for the CPU uses AMX without asking the kernel for it. Elsewhere a product of several rows, which asks,
has come before; in a decode instance whose first step is one token of a fetched prompt nothing has, and its worker dies
of an illegal instruction (with MFS and without). So this connector asks.

MFS_E2E_FOLDER names the folder where "zero" is that switch and where each process writes what the adapters do. While a
file "overlap" is there, a prefill does not end its last layer before the others' pushes are there: how fast the machine
computes then decides nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

from tests.support.waiting import eventually

if not torch.accelerator.is_available():
    torch.accelerator.current_device_index = lambda: 0

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector

torch.cpu._init_amx()

WAIT_S = 60.0
FOLDER = Path(os.environ["MFS_E2E_FOLDER"])


class MooncakeConnector(mooncake_connector.MooncakeConnector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        adapter = logging.getLogger("mfs.adapter")
        if not adapter.handlers:
            adapter.addHandler(logging.FileHandler(FOLDER / f"adapter-{os.getpid()}.log"))
            adapter.setLevel(logging.DEBUG)
        self._prefills = vllm_config.kv_transfer_config.kv_role == "kv_producer"
        self._log = FOLDER / f"adapter-{os.getpid()}.log"
        self._step_at = 0
        super().__init__(vllm_config, role, kv_cache_config)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._caches = kv_caches
        super().register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context: Any, **keywords: Any) -> None:
        self._step_at = self._log.stat().st_size
        super().start_load_kv(forward_context, **keywords)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **keywords: Any) -> None:
        super().save_kv_layer(layer_name, kv_layer, attn_metadata, **keywords)
        if self._prefills and layer_name == list(self._caches)[-1] and (FOLDER / "overlap").exists():
            wanted = set(range(len(self._caches) - 1))
            with contextlib.suppress(AssertionError):  # the test sees from the log what is missing
                eventually(lambda: wanted <= self._pushed(), "the pushes", WAIT_S, pause_s=0.01)

    def _pushed(self) -> set[int]:
        """The layers whose pushes this step has written of."""
        with self._log.open() as log:
            log.seek(self._step_at)
            return {int(layer) for layer in re.findall(r"pushed request_id=\d+ layer=(\d+)", log.read())}

    def wait_for_save(self) -> None:
        if (FOLDER / "zero").exists():
            for cache in self._caches.values():
                cache.zero_()
        super().wait_for_save()

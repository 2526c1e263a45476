"""vLLM's NIXL connector that pushes, for the test: while a file "overlap" is in the folder that MFS_E2E_FOLDER names, a
prefill does not end its last layer before the others' pushes are there. How fast the machine computes then decides
nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import nixl

from tests.support.waiting import eventually

FOLDER = Path(os.environ["MFS_E2E_FOLDER"])
LOG = FOLDER / "adapter-all.log"
WAIT_S = 200.0


class NixlPushConnector(nixl.NixlPushConnector):
    """The same, where the others' pushes can be waited for."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._caches: list[str] = []
        self._step_at = 0
        self._prefills = vllm_config.kv_transfer_config.kv_role == "kv_producer"
        super().__init__(vllm_config, role, kv_cache_config)

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._caches = list(kv_caches)
        super().register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context: Any, **keywords: Any) -> None:
        self._step_at = LOG.stat().st_size
        super().start_load_kv(forward_context, **keywords)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **keywords: Any) -> None:
        super().save_kv_layer(layer_name, kv_layer, attn_metadata, **keywords)
        if self._prefills and layer_name == self._caches[-1] and (FOLDER / "overlap").exists():
            wanted = set(range(len(self._caches) - 1))
            with contextlib.suppress(AssertionError):  # the test sees from the log what is missing
                eventually(lambda: wanted <= self._pushed(), "the pushes", WAIT_S, pause_s=0.01)

    def _pushed(self) -> set[int]:
        """The layers whose pushes this step has written of."""
        with LOG.open() as log:
            log.seek(self._step_at)
            return {int(layer) for layer in re.findall(r"pushed request_id=\d+ layer=(\d+)", log.read())}

"""vLLM's Mooncake connector on a host without an accelerator, for whose number it asks before anything else."""

from __future__ import annotations

import torch

if not torch.accelerator.is_available():
    torch.accelerator.current_device_index = lambda: 0  # type: ignore[assignment]

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import (
    MooncakeConnector,
)

__all__ = ["MooncakeConnector"]

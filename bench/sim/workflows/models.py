"""Five models on one A100 of 40 GB: sizes as measured by Maestro (table V), times from what a decode step reads."""

from __future__ import annotations

from mfsd.policy.workflow import ModelProfile

GB = 10**9
MB = 10**6
GPU_BYTES = 40 * GB
USABLE_BYTES = 35_550 * MB
"""Weights, context and KV of one model in table V, the same sum in each of its rows."""
READ_BYTES_PER_S = 1.2e12
FLOPS = 150e12
STEP_S = 0.004
"""Fixed part of a step."""


def _model(name: str, billion: float, weights_gb: float, context_mb: int, layers: int) -> ModelProfile:
    """KV of 8 heads of 128 in 16 bits; a decode step reads the weights once."""
    weights = round(weights_gb * GB)
    return ModelProfile(
        name=name,
        weights_bytes=weights,
        context_bytes=context_mb * MB,
        kv_bytes_per_token=layers * 8 * 128 * 2 * 2,
        prefill_fixed_s=STEP_S,
        prefill_s_per_token=2e9 * billion / FLOPS,
        decode_s_per_token=STEP_S + weights / READ_BYTES_PER_S,
    )


MODELS = {
    model.name: model
    for model in (
        _model("qwen3-0.6b", 0.6, 1.12, 194, 28),
        _model("qwen3-1.7b", 1.7, 3.21, 194, 28),
        _model("qwen3-4b", 4.0, 7.55, 256, 36),
        _model("qwen3-8b", 8.2, 15.27, 245, 36),
        _model("qwen3-14b", 14.8, 27.52, 286, 40),
    )
}


def virtual_kv_bytes() -> int:
    """Returns the KV memory that the models would reserve side by side, each for itself: what is overcommitted."""
    return sum(USABLE_BYTES - m.weights_bytes - m.context_bytes for m in MODELS.values())

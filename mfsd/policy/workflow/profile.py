"""Time and memory of a stage by its model, prompt and expected output (Maestro Eq 2 and 3)."""

from __future__ import annotations

import msgspec


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A model, as measured once on its hardware."""

    name: str
    weights_bytes: int
    context_bytes: int
    """GPU memory of the runtime context (CUDA graphs, kernels, buffers). A sleeping model keeps it."""
    kv_bytes_per_token: int
    """Alpha of Eq 3."""
    prefill_fixed_s: float
    prefill_s_per_token: float
    decode_s_per_token: float
    pool_bytes: int = 0
    """KV memory that its engine takes as it starts and gives up only to sleep. 0: the node's KV has no owner."""

    def __post_init__(self) -> None:
        for name in ("weights_bytes", "kv_bytes_per_token"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: use 1 or more")
        for name in ("context_bytes", "prefill_fixed_s", "prefill_s_per_token", "decode_s_per_token", "pool_bytes"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: use 0 or more")


def only_memory(name: str, weights_bytes: int, context_bytes: int = 0, pool_bytes: int = 0) -> ModelProfile:
    """Returns the profile of a model of which nothing but its memory is known: all that residency and activations
    read."""
    return ModelProfile(
        name=name,
        weights_bytes=weights_bytes,
        context_bytes=context_bytes,
        kv_bytes_per_token=1,
        prefill_fixed_s=0.0,
        prefill_s_per_token=0.0,
        decode_s_per_token=0.0,
        pool_bytes=pool_bytes,
    )


def exec_s(model: ModelProfile, prompt_tokens: int, output_tokens: float) -> float:
    """Eq 2: prefill, then one decode step for each token."""
    prefill_s = model.prefill_fixed_s + model.prefill_s_per_token * prompt_tokens
    return prefill_s + model.decode_s_per_token * output_tokens


def kv_bytes(model: ModelProfile, prompt_tokens: int, output_tokens: float) -> int:
    """Eq 3."""
    return round(model.kv_bytes_per_token * (prompt_tokens + output_tokens))

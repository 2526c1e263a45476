"""Reads what a vLLM request says of itself: its own fields, `vllm_xargs` and `kv_transfer_params`. No vLLM in here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mfsd.serve.headers import words_in
from mfsd.serve.promise import Words


def words_of(request: Any, tiers: Collection[str]) -> Words:
    """Like `words_in`, but also reads vLLM's own `session_id`."""
    sampling = getattr(request, "sampling_params", None)
    sources = (getattr(sampling, "extra_args", None), getattr(request, "kv_transfer_params", None))
    return words_in(sources, tiers, getattr(request, "priority", 0), getattr(request, "session_id", None))


def loads_prompt(request: Any) -> bool:
    """Whether its KV comes from a prefill instance, so that almost nothing of the prompt is computed here."""
    parameters = getattr(request, "kv_transfer_params", None)
    return isinstance(parameters, dict) and bool(parameters.get("do_remote_prefill"))

"""What a vLLM request says of itself: its own fields, `vllm_xargs` and `kv_transfer_params`. No vLLM in here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mfsd.serve.promise import Words
from mooncake_adapter.slo import SESSION_KEYS, TTFT_KEYS, first_given


def words_of(request: Any, tiers: Collection[str]) -> Words:
    """A class of service (`qos`) that is the name of a tier counts as one; vLLM's priority (smaller goes first) is the
    importance of a request that names none."""
    sampling = getattr(request, "sampling_params", None)
    sources = (getattr(sampling, "extra_args", None), getattr(request, "kv_transfer_params", None))
    tier = first_given(sources, "tier")
    if tier is None and (qos := first_given(sources, "qos", "qos_class")) in tiers:
        tier = qos
    importance = first_given(sources, "importance")
    if importance is None and (priority := getattr(request, "priority", 0)):
        importance = -priority
    return Words(
        ttft_ms=first_given(sources, *TTFT_KEYS),
        tbt_ms=first_given(sources, "tbt_slo_ms", "slo_tbt_ms"),
        ttlt_ms=first_given(sources, "ttlt_slo_ms", "slo_ttlt_ms"),
        tier=tier,
        importance=importance,
        tenant=first_given(sources, "tenant"),
        session=first_given(sources, *SESSION_KEYS) or getattr(request, "session_id", None),
        parent=first_given(sources, "parent", "parent_session"),
        role=first_given(sources, "role"),
        application=first_given(sources, "application"),
    )


def loads_prompt(request: Any) -> bool:
    """Its KV comes from a prefill instance: next to nothing of the prompt is computed here."""
    parameters = getattr(request, "kv_transfer_params", None)
    return isinstance(parameters, dict) and bool(parameters.get("do_remote_prefill"))

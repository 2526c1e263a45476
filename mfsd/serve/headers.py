"""Reads the words by which a client says what its request needs, in headers and in the body's `vllm_xargs`.
`mfsd.serve.promise` makes them safe to use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from mfsd.serve.promise import Words
from mfsd.serve.settings import IMPORTANCE_MAX

TTFT_KEYS: Final = ("ttft_slo_ms", "slo_ttft_ms")
TBT_KEYS: Final = ("tbt_slo_ms", "slo_tbt_ms")
TTLT_KEYS: Final = ("ttlt_slo_ms", "slo_ttlt_ms")
SESSION_KEYS: Final = ("session", "session_id", "program_id")
PARENT_KEYS: Final = ("parent", "parent_session")
QOS_KEYS: Final = ("qos", "qos_class")

HEADERS: Final = {
    b"x-qos-class": "qos",
    b"x-tier": "tier",
    b"x-importance": "importance",
    b"x-tenant": "tenant",
    b"x-gateway-inference-fairness-id": "tenant",
    b"x-gateway-fairness-id": "tenant",
    b"x-session-id": "session",
    b"x-session-affinity": "session",
    b"x-parent-session-id": "parent",
    b"x-role": "role",
    b"x-application": "application",
    b"x-expected-output-tokens": "expected_output_tokens",
}
"""Header -> word. If there are two headers for one word, the first in this table counts."""
OBJECTIVES: Final = {b"x-slo-ttft-ms": "ttft_slo_ms", b"x-slo-tbt-ms": "tbt_slo_ms", b"x-slo-ttlt-ms": "ttlt_slo_ms"}
FIELD: Final = "vllm_xargs"
"""Field of the body in which engines read the words."""


def given(sources: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Returns those sources that are mappings, and the mappings under their key "mfs"."""
    found = [source for source in sources if isinstance(source, Mapping)]
    return found + [source["mfs"] for source in found if isinstance(source.get("mfs"), Mapping)]


def first_given(sources: Iterable[Any], *names: str) -> Any:
    """Returns the first of these words that the request carries, unchecked; None if it has none."""
    return _first(given(sources), *names)


def _first(carried: Iterable[Mapping[str, Any]], *names: str) -> Any:
    for source in carried:
        for name in names:
            if name in source:
                return source[name]
    return None


def words_in(sources: Iterable[Any], tiers: Collection[str], priority: object, session: object) -> Words:
    """Reads the words of a request. A class of service (`qos`) with the name of a tier counts as the tier.

    If the request names no importance, it is vLLM's priority (smaller goes first), limited to the range of importance.
    session: the engine's own field for the session, used if the words name none."""
    carried = given(sources)  # computed once, because every request of a gateway comes here
    tier = _first(carried, "tier")
    if tier is None and isinstance(qos := _first(carried, *QOS_KEYS), str) and qos in tiers:
        tier = qos
    importance = _first(carried, "importance")
    if importance is None and isinstance(priority, int):
        importance = max(-IMPORTANCE_MAX, min(-priority, IMPORTANCE_MAX)) or None
    return Words(
        ttft_ms=_first(carried, *TTFT_KEYS),
        tbt_ms=_first(carried, *TBT_KEYS),
        ttlt_ms=_first(carried, *TTLT_KEYS),
        tier=tier,
        importance=importance,
        tenant=_first(carried, "tenant"),
        session=_first(carried, *SESSION_KEYS) or session,
        parent=_first(carried, *PARENT_KEYS),
        role=_first(carried, "role"),
        application=_first(carried, "application"),
        expected_output_tokens=_first(carried, "expected_output_tokens"),
    )

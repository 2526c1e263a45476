"""Reads the words of a request once, and writes them for its engine so that both use the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mfsd.serve.headers import FIELD, HEADERS, OBJECTIVES, QOS_KEYS, TTFT_KEYS, words_in
from mfsd.serve.promise import Wanted, Words
from mfsd.serve.settings import NO_TIER

READ: Final = frozenset(
    {*TTFT_KEYS, "tbt_slo_ms", "slo_tbt_ms", "ttlt_slo_ms", "slo_ttlt_ms", "session", "session_id", "program_id"}
    | {"parent", "parent_session", "importance", "tenant", "role", "application", "expected_output_tokens", *QOS_KEYS}
)
"""Words that are rewritten; all others stay as they are."""
LEAST_MS: Final = 1.0
"""Least value that is written, so that a deadline in the past is still a deadline."""

Headers = Sequence[tuple[bytes, bytes]]


def words_of(body: Mapping[str, Any], headers: Headers, tiers: Mapping[str, object]) -> Words:
    """Reads the words. The body goes before headers. Of two headers for one word the first in HEADERS counts."""
    carried = {name: value.decode("latin-1") for name, value in headers if name in HEADERS or name in OBJECTIVES}
    said: dict[str, Any] = {}
    if carried:
        for table in (HEADERS, OBJECTIVES):
            for header, word in table.items():
                if header in carried:
                    said.setdefault(word, carried[header])
    sources = (body.get(FIELD), body.get("kv_transfer_params"), said)
    return words_in(sources, tiers, body.get("priority"), body.get("session_id"))


def written(body: dict[str, Any], wanted: Wanted, words: Words, waited_s: float = 0.0) -> dict[str, Any]:
    """Returns the body with the words for its engine; the same object if there are none. waited_s: time in the gateway,
    which is subtracted from the deadlines that count from arrival."""
    fields: dict[str, Any] = {}
    if wanted.ttft_s is not None:
        fields["ttft_slo_ms"] = max(LEAST_MS, (wanted.ttft_s - waited_s) * 1e3)
    if wanted.tbt_s is not None:
        fields["tbt_slo_ms"] = wanted.tbt_s * 1e3
    if wanted.ttlt_s is not None:
        fields["ttlt_slo_ms"] = max(LEAST_MS, (wanted.ttlt_s - waited_s) * 1e3)
    if wanted.importance:
        fields["importance"] = wanted.importance
    for word in ("tenant", "session", "parent", "role", "application", "expected_output_tokens"):
        if value := getattr(wanted, word):
            fields[word] = value
    before = body.get(FIELD)
    kept = {word: value for word, value in before.items() if word not in READ} if isinstance(before, dict) else {}
    if wanted.tier != NO_TIER:
        fields["tier"] = wanted.tier
    elif isinstance(words.tier, str) and words.tier:
        fields["tier"] = words.tier[:64]  # the gateway does not have this tier, but the engine may
    if not fields and not isinstance(before, dict):
        return body
    return {**body, FIELD: {**kept, **fields}}

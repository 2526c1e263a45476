"""What a vLLM request says of itself for the request tier, in its body and in headers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mfsd.serve.promise import Reader, Words
from mfsd.serve.settings import IMPORTANCE_MAX, Settings
from mooncake_adapter.middleware import fields_of
from mooncake_adapter.vllm.promise import loads_prompt, words_of
from mooncake_adapter.warn_once import WarnOnce


def request(extra: Any = None, parameters: Any = None, **more: Any) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra), kv_transfer_params=parameters, **more)


def test_words_are_found_in_xargs_then_in_kv_transfer_params() -> None:
    given = {"ttft_slo_ms": 300, "tbt_slo_ms": "40", "tier": "chat", "importance": "high", "tenant": "acme"}
    assert words_of(request(given, {"tier": "other", "mfs": {"session": "s", "parent": "p"}}), {"chat"}) == Words(
        ttft_ms=300, tbt_ms="40", tier="chat", importance="high", tenant="acme", session="s", parent="p"
    )._replace(ttlt_ms=None, role=None, application=None)


def test_a_class_of_service_that_names_a_tier_is_one() -> None:
    assert words_of(request({"qos": "chat"}), {"chat"}).tier == "chat"
    assert words_of(request({"qos": "gold"}), {"chat"}).tier is None


def test_vllms_own_fields_stand_in() -> None:
    words = words_of(request(priority=2, session_id="own"), set())
    assert (words.importance, words.session) == (-2, "own")
    assert words_of(request({"importance": 1, "session": "s"}, priority=2, session_id="own"), set()).importance == 1


def test_vllms_priority_has_no_bounds_and_the_importance_that_stands_for_it_does() -> None:
    """One beyond them counted as normal, before those that are more urgent."""
    reader = Reader(Settings(), lambda kind, text: None)
    later, sooner = [
        reader.wanted(words_of(request(priority=priority), set())).importance for priority in (1_760_000_000, -(2**40))
    ]
    assert (later, sooner) == (-IMPORTANCE_MAX, IMPORTANCE_MAX) and not reader.unusable


def test_a_request_without_anything_says_nothing() -> None:
    assert not any(words_of(SimpleNamespace(), {"chat"}))


@pytest.mark.parametrize(
    ("parameters", "loads"), [(None, False), ({"do_remote_prefill": True}, True), ({"do_remote_decode": True}, False)]
)
def test_a_prompt_that_is_loaded_is_known(parameters: Any, loads: bool) -> None:
    assert loads_prompt(request(None, parameters)) is loads


def test_headers_become_words() -> None:
    headers = [
        (b"X-SLO-TBT-ms", b"40"),
        (b"x-slo-ttlt-ms", b"60000"),
        (b"x-tier", b"chat"),
        (b"x-importance", b"high"),
        (b"x-session-affinity", b"other"),
        (b"X-Session-ID", b"s"),
        (b"x-parent-session-id", b"p"),
        (b"x-gateway-inference-fairness-id", b"acme"),
        (b"x-role", b"planner"),
        (b"x-application", b"ide"),
        (b"x-expected-output-tokens", b"300"),
    ]
    assert fields_of(headers, WarnOnce()) == {
        "tbt_slo_ms": 40.0,
        "ttlt_slo_ms": 60000.0,
        "tier": "chat",
        "importance": "high",
        "session": "s",
        "parent": "p",
        "tenant": "acme",
        "role": "planner",
        "application": "ide",
        "expected_output_tokens": "300",
    }
    assert fields_of([(b"x-gateway-fairness-id", b"b"), (b"x-tenant", b"a")], WarnOnce()) == {"tenant": "a"}
    assert fields_of([(b"x-slo-tbt-ms", b"soon")], WarnOnce()) == {}

"""Promises are read from wherever they stand; nonsense is reported once and taken as nothing."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from mooncake_adapter.metadata import HORIZON_NS, Metadata, MetadataSources, checked, request_number
from mooncake_adapter.middleware import SloHeaders
from mooncake_adapter.slo import Default, Defaults, Promise, defaults_of, monotonic_ns, promise_of, ttft_ms
from mooncake_adapter.warn_once import WarnOnce

DEFAULTS = Defaults(Default(900.0), {"large": Default(2000.0, "bulk")}, {"gold": Default(200.0)})


@pytest.mark.parametrize(
    ("sources", "model", "wanted"),
    [
        ([{"ttft_slo_ms": 250, "qos": "gold", "tenant": "acme"}], "m", Promise(250.0, "gold", "acme")),
        ([{"ttft_slo_ms": "250.5"}], "m", Promise(250.5)),
        ([{"mfs": {"ttft_slo_ms": 300, "session": "s1"}}], "m", Promise(300.0, session="s1")),
        ([{"ttft_slo_ms": 100}, {"ttft_slo_ms": 200}], "m", Promise(100.0)),
        ([{}], "m", Promise(900.0)),
        ([None, 7, "text"], "large", Promise(2000.0, "bulk")),
        ([{"qos": "gold"}], "large", Promise(200.0, "gold")),
        ([{"program_id": 12}], "m", Promise(900.0, session="12")),
    ],
)
def test_sources_in_order_of_strength(sources: list[Any], model: str, wanted: Promise) -> None:
    assert promise_of(sources, DEFAULTS, model, WarnOnce()) == wanted


@pytest.mark.parametrize("value", ["soon", "", [], {}, True, -1, 0, "nan", float("inf"), 1e12, 10**400])
def test_a_malformed_objective_is_reported_once_and_means_no_deadline(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    once = WarnOnce()
    assert [ttft_ms(value, once) for _ in range(3)] == [None] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ttft_slo_ms" in caplog.text
    assert "no deadline" in caplog.text
    assert promise_of([{"ttft_slo_ms": value}], DEFAULTS, "m", once).ttft_slo_ms is None


def test_text_that_is_no_utf_8_has_a_number_too() -> None:
    assert request_number("\ud800") != request_number("\ud801")  # as JSON may hold it


def test_a_deadline_on_the_wall_clock_is_one_on_the_monotonic_clock() -> None:
    due = Promise(500.0).deadline_unix_ns(time.time())
    assert 0 < monotonic_ns(due) - time.monotonic_ns() < 500_000_000
    assert monotonic_ns(0) == 0
    assert monotonic_ns(1) == 1  # before the boot: long past, not none


def test_defaults_that_cannot_be_read_name_their_path(caplog: pytest.LogCaptureFixture) -> None:
    assert defaults_of({"models": {"m": {"ttft_slo_ms": "fast"}}}, WarnOnce()) == Defaults()
    assert "$.models[...].ttft_slo_ms" in caplog.text
    assert defaults_of({"models": {"m": {"ttft_slo_ms": 5}}}, WarnOnce()).models["m"].ttft_slo_ms == 5
    assert defaults_of(None, WarnOnce()) == Defaults()


@pytest.mark.parametrize(
    ("bad", "kept"),
    [
        (Metadata(request_id=-1), Metadata()),
        (Metadata(request_id=1 << 64), Metadata()),
        (Metadata(stage=9), Metadata()),
        (Metadata(stage=-1), Metadata()),
        (Metadata(layer=-1), Metadata()),
        (Metadata(layer=70_000), Metadata()),
        (Metadata(7, deadline_ns=-5), Metadata(7)),
        (Metadata(7, deadline_ns=HORIZON_NS + 2), Metadata(7)),
        (Metadata(7, deadline_ns="soon"), Metadata(7)),  # type: ignore[arg-type]
    ],
)
def test_an_impossible_field_is_reported_once_and_unknown(
    bad: Metadata, kept: Metadata, caplog: pytest.LogCaptureFixture
) -> None:
    once = WarnOnce()
    assert [checked(bad, once, now_ns=1) for _ in range(3)] == [kept] * 3
    assert len(caplog.records) == 1


def test_request_numbers() -> None:
    assert request_number(7) == 7
    assert request_number("a") == request_number("a") != request_number("b")
    assert 0 < request_number("") < 1 << 64


def test_ranges_are_taken_over_by_the_last_to_come() -> None:
    sources = MetadataSources(WarnOnce())
    first, second = Metadata(1), Metadata(2)
    sources.ranges.add(1000, 100, first)
    sources.ranges.add_many([(1050, 10), (2000, 5)], second)
    assert sources.of(1055) == second
    assert sources.of(1000).request_id == 0  # the first range was given to another request
    assert sources.of(2004) == second
    assert sources.of(2005).request_id == 0
    sources.ranges.remove(second)
    assert len(sources.ranges) == 0


class App:
    """Remembers the body that reaches it, and what it is asked after that."""

    def __init__(self) -> None:
        self.body = b""
        self.length = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.length = dict(scope["headers"]).get(b"content-length", b"")
        while True:
            message = await receive()
            self.body += message.get("body", b"")
            if not message.get("more_body"):
                return


def through(headers: list[tuple[bytes, bytes]], parts: list[bytes], method: str = "POST") -> App:
    app = App()
    messages = [
        {"type": "http.request", "body": part, "more_body": index + 1 < len(parts)} for index, part in enumerate(parts)
    ]

    async def receive() -> Any:
        return messages.pop(0)

    scope = {"type": "http", "method": method, "headers": headers}
    asyncio.run(SloHeaders(app)(scope, receive, None))  # type: ignore[arg-type]
    return app


def test_headers_reach_the_body() -> None:
    headers = [(b"X-SLO-TTFT-ms", b"250"), (b"x-tenant", b"acme"), (b"content-length", b"3")]
    app = through(headers, [b'{"a": ', b"1}"])
    assert json.loads(app.body) == {"a": 1, "vllm_xargs": {"ttft_slo_ms": 250.0, "tenant": "acme"}}
    assert int(app.length) == len(app.body)


def test_what_the_body_says_already_stays() -> None:
    app = through([(b"x-slo-ttft-ms", b"250")], [b'{"vllm_xargs": {"ttft_slo_ms": 100, "k": 1}}'])
    assert json.loads(app.body)["vllm_xargs"] == {"ttft_slo_ms": 100, "k": 1}


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b'{"vllm_xargs": 7}', b"\xff\xfe"])
def test_a_body_of_another_kind_passes_as_it_is(body: bytes) -> None:
    assert through([(b"x-slo-ttft-ms", b"250")], [body]).body == body


def test_a_malformed_header_is_reported_once_and_the_request_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    app = App()
    middleware = SloHeaders(app)

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"a": 1}', "more_body": False}

    for _ in range(3):
        scope = {"type": "http", "method": "POST", "headers": [(b"x-slo-ttft-ms", b"fast")]}
        asyncio.run(middleware(scope, receive, None))  # type: ignore[arg-type]
    assert app.body == b'{"a": 1}' * 3
    assert len(caplog.records) == 1


def test_requests_without_headers_are_not_read() -> None:
    assert through([], [b'{"a": 1}']).body == b'{"a": 1}'
    assert through([(b"x-tenant", b"a")], [b"raw"], method="PUT").body == b"raw"

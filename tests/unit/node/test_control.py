"""The control protocol: what is a request, and what is answered to what is not."""

from __future__ import annotations

import contextlib
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.node import control
from mfsd.node.control import (
    ErrorReply,
    ModeRequest,
    ProtocolError,
    ReloadRequest,
    RulesRequest,
    StatusRequest,
    decode_reply,
    decode_request,
    encode,
)


@pytest.mark.parametrize("request_", [StatusRequest(), RulesRequest(), ModeRequest(mode="observe"), ReloadRequest()])
def test_a_request_is_one_line_and_comes_back(request_: control.Request) -> None:
    line = encode(request_)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert decode_request(line) == request_


def test_the_line_of_a_request_is_stable() -> None:
    assert encode(ModeRequest(mode="observe")) == b'{"request":"mode","mode":"observe","version":1}\n'


def test_another_version_is_reported_apart_from_a_malformed_line() -> None:
    with pytest.raises(ProtocolError, match="speaks control version 1, not 2") as caught:
        decode_request(b'{"request":"levitate","version":2}')
    assert caught.value.code == "version"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version":1}',
        b'{"version":1,"request":"levitate"}',
        b'{"version":1,"request":"mode"}',
        b'{"version":1,"request":"mode","mode":"off"}',
        b'{"version":"1","request":"status"}',
        b"[" * 60000,
        b'{"version":1,"request":"requests","request_id":-1}',
        b'{"version":1,"request":"requests","request_id":18446744073709551616}',
        b'{"version":1,"request":"why","number":-1}',
        b'{"version":1,"request":"why","number":18446744073709551616}',
    ],
)
def test_malformed_lines(line: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_request(line)
    assert caught.value.code == "malformed"


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(line: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with contextlib.suppress(ProtocolError):
            decode(line)


def test_unknown_fields_of_a_reply_are_ignored() -> None:
    line = json.dumps({"reply": "error", "code": "denied", "message": "no", "since": "version 1.5"})
    assert decode_reply(line.encode()) == ErrorReply("denied", "no")


def test_every_reply_has_a_tag_of_its_own() -> None:
    kinds = typing.get_args(control.Reply)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)

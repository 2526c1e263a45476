"""Socket messages: what one side encodes the other decodes, and foreign bytes raise ValueError at worst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd import _native
from mfsd._native import HelloKind

names = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=31)
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)


@given(kind=u32, pid=u32, process=names, nic_name=names, guid=u64, rate=u64)
def test_hello_round_trip(kind: int, pid: int, process: str, nic_name: str, guid: int, rate: int) -> None:
    packet = _native.hello_encode(
        kind, pid=pid, mode=1, process=process, nic_name=nic_name, nic_guid=guid, nic_rate_bytes_per_s=rate
    )
    assert len(packet) == _native.HELLO_BYTES
    hello = _native.hello_decode(packet)
    assert (hello.kind, hello.pid, hello.mode, hello.process) == (kind, pid, 1, process)
    assert (hello.nic_name, hello.nic_guid, hello.nic_rate_bytes_per_s) == (nic_name, guid, rate)
    assert _native.hello_version_error(hello) is None


def test_welcome_and_nic_reply_round_trip() -> None:
    welcome = _native.welcome_decode(_native.welcome_encode(error=-13, client_id=7, reason="not you" * 20))
    assert (welcome.error, welcome.client_id, welcome.segment_bytes) == (-13, 7, _native.SEGMENT_BYTES)
    assert welcome.reason == ("not you" * 20)[:63]
    assert _native.nic_reply_decode(_native.nic_reply_encode(error=-28, nic=3))[1:] == (-28, 3)


def test_another_version_is_explained() -> None:
    hello = _native.hello_decode(_native.hello_encode(HelloKind.ATTACH, major=_native.ABI_MAJOR + 1))
    assert "ABI" in (_native.hello_version_error(hello) or "")
    for minor in (_native.ABI_MINOR - 1, _native.ABI_MINOR + 1):
        hello = _native.hello_decode(_native.hello_encode(HelloKind.ATTACH, minor=minor))
        assert _native.hello_version_error(hello) is None


@given(st.binary(max_size=300))
def test_foreign_bytes(data: bytes) -> None:
    for decode in (_native.hello_decode, _native.welcome_decode, _native.nic_reply_decode):
        with pytest.raises(ValueError, match=r"magic|bytes, expected"):
            decode(data)


@given(st.binary(min_size=_native.HELLO_BYTES - 8, max_size=_native.HELLO_BYTES - 8))
def test_foreign_bytes_behind_a_good_magic(data: bytes) -> None:
    hello = _native.hello_decode(_native.ABI_MAGIC.to_bytes(8, "little") + data)
    assert len(hello.process.encode("utf-8", "replace")) <= 3 * 32


def test_a_name_that_is_too_long_is_named() -> None:
    with pytest.raises(ValueError, match=r"nic_name: .* is 32 bytes, at most 31"):
        _native.hello_encode(HelloKind.NIC, nic_name="x" * 32)

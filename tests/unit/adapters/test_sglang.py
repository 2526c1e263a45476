"""The SGLang plugin on its published interface (registry, names and attributes of 0.5): SGLang itself needs a GPU."""

from __future__ import annotations

from types import SimpleNamespace as Thing

import pytest

from mooncake_adapter.blocks import Blocks
from mooncake_adapter.metadata import MetadataSources, request_number
from mooncake_adapter.sglang import plugin
from mooncake_adapter.sglang.plugin import Rooms, hooks, supported_version
from mooncake_adapter.warn_once import WarnOnce

ITEM = 1000


@pytest.fixture
def sources() -> MetadataSources:
    return MetadataSources(WarnOnce())


@pytest.fixture
def hooked(sources: MetadataSources) -> dict[str, object]:
    once = WarnOnce()
    return {target.rpartition(".")[2]: function for target, function, _ in hooks(Rooms(sources, once), once)}


def manager() -> Thing:
    """Two layers: keys of both, then values of both, ten pages each."""
    pointers = [10_000, 30_000, 50_000, 70_000]
    return Thing(kv_args=Thing(kv_data_ptrs=pointers, kv_data_lens=[10 * ITEM] * 4, kv_item_lens=[ITEM] * 4))


def test_pages_belong_to_their_room_with_its_deadline(sources: MetadataSources, hooked: dict[str, object]) -> None:
    sampling = Thing(custom_params={"ttft_slo_ms": 250})
    hooked["handle_generate_request"](None, Thing(bootstrap_room=7, sampling_params=sampling))  # type: ignore[operator]
    hooked["register_buffer_to_engine"](None, manager())  # type: ignore[operator]
    hooked["add_transfer_request"](manager(), 7, [2, 3], slice(0, 2), True)  # type: ignore[operator]
    for pointer, layer in ((10_000, 0), (30_000, 1), (50_000, 0), (70_000, 1)):
        found = sources.of(pointer + 2 * ITEM + 5)
        assert (found.request_id, found.layer) == (request_number("room-7"), layer)
        assert found.deadline_ns > 0
    assert sources.of(10_000 + 5 * ITEM).request_id == 0


def test_a_room_that_never_arrived_has_no_deadline(sources: MetadataSources, hooked: dict[str, object]) -> None:
    hooked["register_buffer_to_engine"](None, manager())  # type: ignore[operator]
    hooked["add_transfer_request"](manager(), 8, [0], slice(0, 1), True)  # type: ignore[operator]
    assert sources.of(10_000).request_id == request_number("room-8")
    assert sources.of(10_000).deadline_ns == 0


def test_a_room_that_is_forgotten_for_the_next_costs_no_look_at_every_page(
    sources: MetadataSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    monkeypatch.setattr(plugin, "ROOMS_MAX", 2)
    monkeypatch.setattr(Blocks, "take", lambda self, metadata: looked.append(metadata))
    rooms = Rooms(sources, WarnOnce())
    rooms.registered(None, manager())
    for room in range(8):
        rooms.arrived(None, Thing(bootstrap_room=room))
        rooms.sent(manager(), room, [room % 4])
        assert sources.of(10_000 + room % 4 * ITEM).request_id == request_number(f"room-{room}")
    assert (len(rooms._rooms), looked) == (2, [])


def test_what_is_gathered_for_a_room_is_the_rooms_until_the_next(
    sources: MetadataSources, hooked: dict[str, object]
) -> None:
    strategy = Thing(staging_buffer=Thing(get_ptr=lambda: 500_000, size_bytes=4096))
    for room in (7, 8):
        hooked["_do_staging_transfer"](None, strategy, Thing(room=room), [1, 2])  # type: ignore[operator]
        assert sources.of(500_000 + 4095).request_id == request_number(f"room-{room}")
    assert sources.of(500_000 + 4096).request_id == 0


def test_an_unexpected_sglang_is_reported_once_and_goes_on(
    hooked: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        hooked["register_buffer_to_engine"](None, Thing())  # type: ignore[operator]
        hooked["add_transfer_request"](manager(), 9, None, None, True)  # type: ignore[operator]
        hooked["handle_generate_request"](None, Thing())  # type: ignore[operator]
    assert len(caplog.records) == 2


def test_another_sglang_is_reported_once_and_goes_by_rules(caplog: pytest.LogCaptureFixture) -> None:
    once = WarnOnce()
    assert supported_version("0.5.23", once)
    assert supported_version("0.5.0rc1", once)
    assert not caplog.records
    assert not any(supported_version(version, once) for version in ("0.50.1", "0.6.0", "1.0", "unknown"))
    assert len(caplog.records) == 1
    assert "tested: 0.5" in caplog.text


def test_hooks_are_of_the_registrys_kinds() -> None:
    once = WarnOnce()
    found = hooks(Rooms(MetadataSources(once), once), once)
    assert [kind for _, _, kind in found] == ["BEFORE", "AFTER", "AFTER", *["BEFORE"] * 4]
    assert sum("NixlKVManager" in target for target, _, _ in found) == 3

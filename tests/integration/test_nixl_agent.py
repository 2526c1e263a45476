"""NIXL's agent, adapted: the wheels of two versions over UCX's TCP transport, with a session that permits by script."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, cast

import pytest

from bench.ports import free_port
from mfsd.policy.types import Stage
from mooncake_adapter.metadata import Metadata, request_number
from mooncake_adapter.session import Holder
from tests.support.lmcache_parts import backend
from tests.support.nixl_world import SIZE, World, WorldProcess
from tests.support.waiting import eventually
from tests.support.wheels import NIXL_VERSIONS, nixl_wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86_64"),
]
MIB = 1 << 20
TCP = {"UCX_TLS": "tcp", "NIXL_LOG_LEVEL": "FATAL", "MFS_NIXL": "1"}


@pytest.fixture(scope="module", params=NIXL_VERSIONS)
def any_version(request: pytest.FixtureRequest) -> Iterator[WorldProcess]:
    with WorldProcess(nixl_wheel(request.param), TCP) as process:
        yield process


# ---- the same to a program -------------------------------------------------------------------------------------------


def surface(world: World) -> None:
    import inspect

    stock, adapted = world.stock_class, world.adapted_class
    for name in (name for name in dir(stock) if not name.startswith("_")):
        mine, theirs = getattr(adapted, name), getattr(stock, name)
        assert mine.__doc__ == theirs.__doc__, name
        assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters), name
    assert adapted.__name__ == "nixl_agent" and issubclass(adapted, stock)
    assert [name for name in world.own.get_plugin_list() if "MFS" in name] == []
    assert list(world.own.backends) == ["UCX"]
    handle = world.handle("WRITE", "peer", MIB)
    assert isinstance(handle, world.api.nixl_xfer_handle)
    assert world.own.query_xfer_backend(handle) == "UCX"


def test_every_public_name_text_and_parameter_is_the_wheels(any_version: WorldProcess) -> None:
    any_version.run(surface)


def errors(world: World) -> None:
    import nixl_cu12._bindings as bindings

    local, remote = world.lists("peer", MIB)
    with pytest.raises(KeyError):
        world.own.initialize_xfer("ADD", local, remote, "peer")
    with pytest.raises(bindings.nixlNotFoundError):
        world.own.initialize_xfer("WRITE", local, remote, "none")
    handle = world.handle("WRITE", "peer", MIB)
    with pytest.raises(bindings.nixlNotPostedError):
        world.own.check_xfer_state(handle)
    world.session.hold = lambda message: True
    assert world.own.transfer(handle) == "PROC"
    with pytest.raises(bindings.nixlRepostActiveError):
        world.own.transfer(handle)
    world.session.tasks[0].permitted.set()
    assert world.finish(handle) == "DONE"
    world.session.hold = lambda message: False
    assert world.own.transfer(handle) in ("PROC", "DONE"), "a handle may be posted again"
    assert world.finish(handle) == "DONE"
    world.own.release_xfer_handle(handle)


def test_errors_are_the_wheels_own(any_version: WorldProcess) -> None:
    any_version.run(errors)


# ---- permits ---------------------------------------------------------------------------------------------------------


def held(world: World) -> None:
    world.fill(1)
    world.session.hold = lambda message: True
    handle = world.handle("WRITE", "peer", MIB, notification=b"there")
    assert world.own.transfer(handle) == "PROC"
    assert world.own.check_xfer_state(handle) == "PROC"
    assert not world.same("peer", MIB)
    world.session.tasks[0].permitted.set()
    assert eventually(lambda: world.same("peer", MIB)), "posted though the program asks no more"
    assert eventually(world.notified) == [b"there"]
    assert eventually(lambda: "complete" in world.session.tasks[0].life), "given back though the program asks no more"
    assert world.own.check_xfer_state(handle) == "DONE"
    world.own.release_xfer_handle(handle)


def test_nothing_is_posted_before_its_permit_and_no_call_waits_for_it(any_version: WorldProcess) -> None:
    any_version.run(held)


def read(world: World) -> None:
    world.fill(2, "peer")
    handle = world.handle("READ", "peer", MIB)
    world.own.transfer(handle)
    assert world.finish(handle) == "DONE"
    assert world.same("peer", MIB)
    (task,) = world.session.tasks
    assert (task.transfer.incoming, task.transfer.stage, task.transfer.size_bytes) == (True, 3, MIB)
    assert task.life[-1] == "complete"
    world.own.release_xfer_handle(handle)


def test_a_read_asks_for_the_direction_that_its_bytes_take(any_version: WorldProcess) -> None:
    any_version.run(read)


def cut_by_indices(world: World) -> None:
    world.fill(3)
    world.sources.ranges.add(world.area.ctypes.data, SIZE, Metadata(7, layer=5, deadline_ns=0))
    world.session.hold = lambda message: len(world.session.tasks) == 1  # the second piece
    handle = world.handle("WRITE", "peer", 48 * MIB, pieces=48, notification=b"all there")
    assert world.own.transfer(handle) == "PROC"
    eventually(lambda: world.session.tasks[0].life[-1:] == ["complete"])
    assert world.notified() == []
    assert len(world.session.tasks) == 2, "the one with the notification asks when the others have arrived"
    world.session.tasks[1].permitted.set()
    assert world.finish(handle) == "DONE"
    assert eventually(world.notified) == [b"all there"]
    assert world.same("peer", 48 * MIB)
    assert [task.transfer.size_bytes for task in world.session.tasks] == [16 * MIB] * 3
    assert {(task.transfer.request_id, task.transfer.layer) for task in world.session.tasks} == {(7, 5)}
    world.own.release_xfer_handle(handle)


def test_a_large_handle_is_cut_and_its_notification_comes_last(any_version: WorldProcess) -> None:
    any_version.run(cut_by_indices)


def cut_one_descriptor(world: World) -> None:
    world.fill(4)
    handle = world.own.initialize_xfer("WRITE", *world.lists("peer", 40 * MIB), "peer", b"one")
    world.own.transfer(handle)
    assert world.finish(handle) == "DONE"
    assert world.same("peer", 40 * MIB)
    assert [task.transfer.size_bytes for task in world.session.tasks] == [16 * MIB, 16 * MIB, 8 * MIB]
    assert eventually(world.notified) == [b"one"]
    world.own.release_xfer_handle(handle)


def test_one_large_descriptor_is_cut(any_version: WorldProcess) -> None:
    any_version.run(cut_one_descriptor)


def two_requests(world: World) -> None:
    world.fill(5)
    start = world.area.ctypes.data
    world.sources.ranges.add(start, MIB, Metadata(1, deadline_ns=11))
    world.sources.ranges.add(start + MIB, MIB, Metadata(2))
    handle = world.handle("WRITE", "peer", 2 * MIB, pieces=8)
    world.own.transfer(handle)
    assert world.finish(handle) == "DONE"
    assert world.same("peer", 2 * MIB)
    seen = [(t.transfer.request_id, t.transfer.deadline_ns, t.transfer.size_bytes) for t in world.session.tasks]
    assert seen == [(1, 11, MIB), (2, 0, MIB)]
    world.session.tasks.clear()
    token = world.sources.call.set(Metadata(9, stage=3))
    again = world.handle("WRITE", "peer", 2 * MIB, pieces=8)
    world.sources.call.reset(token)
    world.own.transfer(again)
    assert world.finish(again) == "DONE"
    assert world.session.requests() == [9], "an engine that knows the call knows all of it"


def test_a_handle_that_mixes_requests_is_cut_by_request(any_version: WorldProcess) -> None:
    any_version.run(two_requests)


def lmcache(world: World) -> None:
    import asyncio

    known = request_number("chat-7")
    seen = {"p2p_backend": [(1, known), (int(Stage.BACKGROUND), 0)], "pd_backend": [(3, 0), (1, 0)]}
    for module, expected in seen.items():
        made: list[Any] = []

        def agent(*arguments: Any, module: str = module, made: list[Any] = made) -> Any:
            made.append(backend(module, world.adapted_class, *arguments))
            return made[0].transfer_channel.nixl_agent

        own, peer = world.make(module, agent), world.agents["peer"]
        own.add_remote_agent(peer.get_agent_metadata())
        peer.add_remote_agent(own.get_agent_metadata())
        world.session.tasks.clear()
        lists = [
            own.prep_xfer_dlist(agent_name, [(world.areas[area].ctypes.data, MIB, 0)], "DRAM")
            for agent_name, area in (("", module), ("peer", "peer"))
        ]
        asyncio.run(made[0]._handle_batched_lookup_and_get("chat-7", *lists))
        asyncio.run(made[0]._handle_batched_lookup_and_put("10.0.0.7", *lists))
        tasks = [task.transfer for task in world.session.tasks]
        assert [(one.stage, one.request_id) for one in tasks] == expected, module
        assert [one.incoming for one in tasks] == [False, True]


def test_lmcaches_peers_write_what_is_reused_and_read_in_the_background(any_version: WorldProcess) -> None:
    any_version.run(lmcache)


# ---- the configuration of the agent ----------------------------------------------------------------------------------


def synchronized(world: World) -> None:
    """A thread of the adapter's posts what is permitted later, so that no agent may do without synchronization."""
    api = world.api
    modes, bindings = api.nixl_thread_sync_t, api.nixlBind
    shared, strict = modes.NIXL_THREAD_SYNC_RW, modes.NIXL_THREAD_SYNC_STRICT
    given: list[tuple[Any, bool]] = []

    class Noting:
        def __getattr__(self, name: str) -> Any:
            return getattr(bindings, name)

        def nixlAgent(self, name: str, config: Any) -> Any:
            given.append((config.syncMode, config.useListenThread))
            return bindings.nixlAgent(name, config)

    api.nixlBind = Noting()
    try:
        for asked, listening in product((None, *modes), (False, True)):
            config = api.nixl_agent_config(
                backends=[],
                enable_listen_thread=listening,
                listen_port=free_port(),
                sync_mode=asked,
            )
            world.adapted_class(f"{asked} {listening}", config)
            expected = shared if asked is shared else strict
            assert given[-1] == (expected.value, listening), asked
            assert config.sync_mode is asked, "the program's own is left as it is"
        world.adapted_class("none given")
        assert given[-1] == (strict.value, False)
    finally:
        api.nixlBind = bindings


def test_no_agent_is_without_synchronization(any_version: WorldProcess) -> None:
    any_version.run(synchronized)


# ---- what may go wrong -----------------------------------------------------------------------------------------------


def released(world: World) -> None:
    world.fill(6)
    world.session.hold = lambda message: True
    handle = world.handle("WRITE", "peer", MIB, notification=b"never")
    world.own.transfer(handle)
    world.own.release_xfer_handle(handle)
    assert world.session.tasks[0].life == ["cancel"]
    world.session.tasks[0].permitted.set()
    world.session.hold = lambda message: False
    after = world.handle("WRITE", "peer", 4096, notification=b"after")
    world.own.transfer(after)
    assert world.finish(after) == "DONE"
    assert eventually(world.notified) == [b"after"]
    assert not world.same("peer", MIB)


def test_a_released_handle_is_never_posted(any_version: WorldProcess) -> None:
    any_version.run(released)


def hold_ends(world: World) -> None:
    world.fill(7)
    world.sources.lease_s = 0.4
    world.session.hold = lambda message: True
    handle = world.handle("WRITE", "peer", MIB)
    world.own.transfer(handle)
    assert world.finish(handle) == "DONE", "posted though no permit came"
    assert world.same("peer", MIB)


def test_a_hold_is_bounded_by_a_part_of_the_lease(any_version: WorldProcess) -> None:
    any_version.run(hold_ends)


def lease_over(world: World) -> None:
    world.fill(8)
    world.session.hold = lambda message: True
    handle = world.handle("WRITE", "peer", MIB)
    world.own.transfer(handle)
    with handle.transfer.lock:  # the process stands still, and comes back after the lease
        handle.transfer.lease_until_s = 0.0
        world.session.tasks[0].permitted.set()
    assert world.finish(handle) == "ERR"
    assert world.session.tasks[0].life == ["cancel"]
    assert not world.same("peer", MIB)
    assert len(world.once.texts) == 1 and "lease" in world.once.texts[0]


def test_nothing_is_posted_after_the_lease(any_version: WorldProcess) -> None:
    any_version.run(lease_over)


def broken(world: World) -> None:
    world.fill(9)

    def fails(message: Any) -> Any:
        raise OSError("the daemon is gone")

    world.session.submit_transfer = fails  # type: ignore[assignment,method-assign]
    for _ in range(2):
        handle = world.handle("WRITE", "peer", MIB)
        world.own.transfer(handle)
        assert world.finish(handle) == "DONE"
    assert world.same("peer", MIB)
    assert len(world.once.texts) == 1 and "the daemon is gone" in world.once.texts[0]


def test_a_broken_session_is_reported_once_and_transfers_go_on(any_version: WorldProcess) -> None:
    any_version.run(broken)


def unscheduled(world: World) -> None:
    world.fill(10)
    world.session.scheduled = False
    handle = world.handle("WRITE", "peer", 48 * MIB, pieces=3, notification=b"x")
    world.own.transfer(handle)
    assert world.finish(handle) == "DONE"
    assert world.same("peer", 48 * MIB) and not world.session.tasks
    assert eventually(world.notified) == [b"x"]
    world.own.release_xfer_handle(handle)


def test_without_a_daemon_the_program_does_it_all(any_version: WorldProcess) -> None:
    any_version.run(unscheduled)


def dropped(world: World) -> None:
    world.fill(11)
    world.session.hold = lambda message: True
    handle = world.handle("WRITE", "peer", MIB)
    kept = handle.transfer
    world.own.transfer(handle)
    del handle
    world.session.tasks[0].permitted.set()
    assert eventually(lambda: world.same("peer", MIB))
    assert eventually(lambda: kept.closed)


def test_a_handle_that_the_program_loses_is_released_when_it_has_arrived(any_version: WorldProcess) -> None:
    any_version.run(dropped)


def failed(world: World) -> None:
    world.fill(12)
    scheduling = world.own._mfs.scheduling
    binding = scheduling._binding

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: "failed") if name == "postXferReq" else getattr(binding, name)

    handle = world.handle("WRITE", "peer", MIB)
    scheduling._binding = Failing()
    try:
        assert world.own.transfer(handle) == "ERR"
    finally:
        scheduling._binding = binding
    assert world.session.tasks[0].life[-1] == "cancel"
    world.own.release_xfer_handle(handle)


def test_the_permit_of_what_fails_is_given_back_and_not_as_arrived(any_version: WorldProcess) -> None:
    any_version.run(failed)


# ---- lanes -----------------------------------------------------------------------------------------------------------


def routed(world: World) -> None:
    for wire_class, lane in ((0, "UCX_MFS0"), (2, "UCX_MFS2"), (7, "UCX_MFS7"), (6, None), (4, None)):
        world.session.class_of = lambda message, granted=wire_class: granted
        first = world.handle("WRITE", "peer", 4096)
        world.own.transfer(first)
        assert world.finish(first) == "DONE"
        assert first.transfer.cached == {}, "no transfer waits for a lane to be connected"
        connected = world.own._mfs.lanes.is_connected
        assert lane is None or eventually(partial(connected, "peer", lane))
        world.fill(20 + wire_class)
        handle = world.handle("WRITE", "peer", MIB, notification=b"n")
        world.own.transfer(handle)
        assert world.finish(handle) == "DONE"
        assert list(handle.transfer.cached) == ([lane] if lane else [])
        assert world.same("peer", MIB) and eventually(world.notified) == [b"n"]
        world.own.release_xfer_handle(handle)
    assert world.once.texts == []


def behind(world: World) -> None:
    order: list[str] = []
    scheduling = world.own._mfs.scheduling
    binding, begin = scheduling._binding, scheduling.warmer.begin

    class Noting:
        def __getattr__(self, name: str) -> Any:
            if name == "postXferReq":
                order.append("posted")
            return getattr(binding, name)

    def noting(*arguments: Any) -> Any:
        order.append("connecting")
        return begin(*arguments)

    world.session.class_of = lambda message: 1
    scheduling._binding, scheduling.warmer.begin = Noting(), noting
    try:
        handle = world.handle("WRITE", "peer", 4096)
        world.own.transfer(handle)
    finally:
        scheduling._binding, scheduling.warmer.begin = binding, begin
    assert order == ["posted", "connecting"]
    assert world.finish(handle) == "DONE"
    assert eventually(partial(world.own._mfs.lanes.is_connected, "peer", "UCX_MFS1"))


def test_a_lane_is_connected_behind_the_transfer_that_wants_it(any_version: WorldProcess) -> None:
    any_version.run(behind)


def test_a_transfer_takes_the_lane_of_its_class(any_version: WorldProcess) -> None:
    any_version.run(routed)


def stock_peer(world: World) -> None:
    world.fill(30)
    world.own._mfs.lanes.met("stock", world.agents["stock"].get_agent_metadata())
    assert len(world.once.texts) == 1 and "0 of the 4 lanes" in world.once.texts[0]
    world.session.class_of = lambda message: 0
    for operation in ("WRITE", "READ"):
        handle = world.handle(operation, "stock", MIB, notification=b"n")
        world.own.transfer(handle)
        assert world.finish(handle) == "DONE"
        assert handle.transfer.cached == {}
        assert world.same("stock", MIB)
        assert eventually(lambda: world.notified("stock")) == [b"n"]
    assert len(world.session.tasks) == 2, "permitted all the same"
    assert len(world.once.texts) == 1


def test_a_peer_without_mfs_is_sent_to_as_ever(any_version: WorldProcess) -> None:
    any_version.run(stock_peer)


def notified_alone(world: World) -> None:
    assert world.own._mfs.lanes.handles
    for peer in ("peer", "stock"):
        world.own.send_notif(peer, b"one")
        assert eventually(world.agents[peer].get_new_notifs) == {"own": [b"one"]}
        world.agents[peer].send_notif("own", b"other")
        assert eventually(world.own.get_new_notifs) == {peer: [b"other"]}


def test_a_notification_without_a_transfer_arrives(any_version: WorldProcess) -> None:
    any_version.run(notified_alone)


def mismatch(world: World) -> None:
    """The peer's metadata names a lane that it does not have for its memory."""
    world.fill(31)
    lanes = world.own._mfs.lanes
    before = dict(lanes._peers)
    lanes._peers["stock"] = frozenset(lanes.handles)
    world.session.class_of = lambda message: 0
    for _ in range(2):
        handle = world.handle("WRITE", "stock", MIB)
        world.own.transfer(handle)
        assert world.finish(handle) == "DONE"
    lanes._peers = before
    assert world.same("stock", MIB)
    assert len(world.once.texts) == 1 and "its transfers use the program's own backend" in world.once.texts[0]


def test_a_lane_that_leads_nowhere_is_left_with_one_warning(any_version: WorldProcess) -> None:
    any_version.run(mismatch)


def no_aliases(world: World) -> None:
    assert world.own._mfs.lanes.handles == {}
    world.fill(32)
    world.session.class_of = lambda message: 0
    handle = world.handle("WRITE", "peer", MIB)
    world.own.transfer(handle)
    assert world.finish(handle) == "DONE"
    assert world.same("peer", MIB) and len(world.session.tasks) == 1


def test_an_alias_that_nixl_does_not_know_means_no_lanes(capfd: pytest.CaptureFixture[str]) -> None:
    """NIXL has looked for its plugins before the adapter was there."""
    with WorldProcess(nixl_wheel(), TCP, early=True) as process:
        process.run(no_aliases)
    assert capfd.readouterr().err.count("cannot open the lane of class 0 (backend UCX_MFS0: nixlNotFoundError") == 1


def test_a_class_for_the_whole_host_means_no_lanes(capfd: pytest.CaptureFixture[str]) -> None:
    with WorldProcess(nixl_wheel(), {**TCP, "UCX_IB_TRAFFIC_CLASS": "106"}) as process:
        process.run(no_aliases)
    assert capfd.readouterr().err.count("UCX_IB_TRAFFIC_CLASS=106 sets the class of every engine") == 1


def has_lanes(world: World) -> None:
    import os

    assert len(world.own._mfs.lanes.handles) == 4
    assert os.environ["UCX_IB_TRAFFIC_CLASS"] == "106", "what the program starts has it still"


def test_a_class_that_mfs_run_has_set_for_the_others_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    with WorldProcess(
        nixl_wheel(), {**TCP, "UCX_IB_TRAFFIC_CLASS": "106", "MFS_SET_CLASSES": "UCX_IB_TRAFFIC_CLASS"}
    ) as process:
        process.run(has_lanes)
    assert "sets the class of every engine" not in capfd.readouterr().err


def other_version(world: World) -> None:
    from mooncake_adapter.nixl import agent, versions

    class Changed(world.stock_class):  # type: ignore[name-defined]
        def transfer(self, handle: Any, urgency: int) -> str:
            return ""

    Changed.__module__ = world.stock_class.__module__
    no_session = Holder(lambda: cast(Any, world.session))
    assert agent.adapted(Changed, no_session, world.sources, world.once) is Changed
    assert (
        len(world.once.texts) == 1
        and "nixl_agent.transfer is missing or has unexpected parameters" in world.once.texts[0]
    )
    world.once._said.clear()
    versions.distribution_version = lambda module: "9.1.0"
    assert agent.adapted(world.stock_class, no_session, world.sources, world.once) is world.stock_class
    assert "NIXL 9.1.0 was not tested" in world.once.texts[1]


def test_another_version_is_reported_once_and_runs_unscheduled(any_version: WorldProcess) -> None:
    any_version.run(other_version)


def telemetry(world: World) -> None:
    world.make("measured", world.adapted_class, capture_telemetry=True)
    measured, area = world.agents["measured"], world.areas["measured"]
    measured.add_remote_agent(world.agents["peer"].get_agent_metadata())
    world.agents["peer"].add_remote_agent(measured.get_agent_metadata())
    lists = [
        measured.get_xfer_descs([(base, size, 0)], "DRAM")
        for base in (area.ctypes.data, world.areas["peer"].ctypes.data)
        for size in (40 * MIB,)
    ]
    handle = measured.initialize_xfer("WRITE", *lists, "peer")
    measured.transfer(handle)
    assert eventually(lambda: measured.check_xfer_state(handle) != "PROC")
    found = measured.get_xfer_telemetry(handle)
    assert (found.totalBytes, found.descCount) == (40 * MIB, 3)
    assert found.xferDuration > 0 and found.postDuration >= 0


def test_telemetry_of_pieces_is_that_of_the_whole(any_version: WorldProcess) -> None:
    any_version.run(telemetry)

"""Several coordinators and a real etcd: leaders are killed, stopped, cut off, and no stale decision is applied."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mfsd.coordinator.election import KEY, Election, Role
from mfsd.coordinator.etcd import Etcd, EtcdError, Key
from mfsd.node.log import Log
from tests.support.cluster import TAKEOVER_S, Coordinator, Node, Process, etcd, in_loop, until
from tests.support.running_clock import RunningClock
from tests.support.waiting import TIMEOUT_S, eventually

CONFIG = '[coordinator]\nheartbeat = "200ms"\n[policy]\ndrop_budget = 0.5\n'


@contextmanager
def two_coordinators(folder: Path) -> Iterator[tuple[Coordinator, Coordinator, Process]]:
    """The leader, the other one, and etcd."""
    with (
        etcd(folder) as (endpoint, server),
        Coordinator(folder, etcd=endpoint, config=CONFIG) as first,
    ):
        first.wait_lead()
        with Coordinator(folder, etcd=endpoint, config=CONFIG) as second:
            second.wait_line("event=stands-by")
            yield first, second, server


@in_loop
async def test_daemons_find_the_leader_from_any_address(tmp_path: Path) -> None:
    with two_coordinators(tmp_path) as (leader, other, _):
        async with Node("a", other.address) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            assert a.link.status().leader == leader.address
            assert other.status().leader == leader.address
            assert not other.status().leads


async def takeover_s(folder: Path) -> float:
    """From the leader's death to the next leader's order; nothing may be lost meanwhile."""
    folder.mkdir()
    with two_coordinators(folder) as (leader, other, _):
        async with Node("a", leader.address, other.address) as a, Node("b", leader.address, other.address) as b:
            a.arrive(1, 60)
            a.arrive(2, 30)
            b.arrive(3, 10)
            await until(lambda: a.received.batches() == [2, 1] and b.received.batches() == [3], "the order")
            term = a.link.status().term
            with RunningClock() as clock:
                leader.process.kill()
                a.arrive(4, 20)  # without a leader: reported later
                await until(
                    lambda: (
                        all(n.received.changes[-1].term > term for n in (a, b)) and a.received.batches() == [4, 2, 1]
                    ),
                    "the next leader's order",
                )
                took_s = clock.ran_s()
            assert min(n.received.changes[-1].term for n in (a, b)) > term
            assert a.received.lost == b.received.lost == 0, "the last order held meanwhile"
            return took_s


@in_loop
async def test_a_killed_leader_is_replaced_in_time(tmp_path: Path) -> None:
    """A busy machine may take longer for once."""
    took_s = [await takeover_s(tmp_path / str(number)) for number in range(3)]
    assert min(took_s) <= TAKEOVER_S, took_s


@in_loop
async def test_a_leader_that_goes_in_peace_hands_over_at_once(tmp_path: Path) -> None:
    with two_coordinators(tmp_path) as (leader, other, _):
        async with Node("a", leader.address, other.address) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            term = a.link.status().term
            with RunningClock() as clock:
                leader.process.terminate()
                await until(lambda: a.received.changes[-1].term > term, "the next leader's order")
                assert clock.ran_s() <= TAKEOVER_S
            assert leader.wait_end() == 0
            assert a.link.status().leader == other.address


@in_loop
async def test_a_stopped_leader_decides_nothing_when_it_wakes(tmp_path: Path) -> None:
    with two_coordinators(tmp_path) as (leader, other, _):
        async with Node("a", leader.address, other.address) as a, Node("stuck", leader.address) as stuck:
            # `stuck` knows of no other coordinator, as if cut off from all but the stale one
            a.arrive(1, 60)
            stuck.arrive(2, 60)
            await until(lambda: a.received.batches() == [1] and stuck.received.batches() == [2], "the order")
            term = a.link.status().term
            leader.process.send_signal(signal.SIGSTOP)
            try:
                other.wait_lead()
                await until(lambda: a.received.changes[-1].term > term, "the next leader's order")
                a.arrive(3, 30)
                stuck.arrive(4, 30)  # waits in the stopped leader's socket
                await until(lambda: a.received.batches() == [3, 1], "the next leader's decision")
            finally:
                leader.process.send_signal(signal.SIGCONT)
            leader.wait_line("event=lead-lost")
            await until(lambda: stuck.received.batches() == [4, 2], "redirected to the leader by the stale one")
            assert stuck.received.changes[-1].term == a.received.changes[-1].term
            terms = [term for term, _ in a.received.order_at_s]
            assert terms == sorted(terms), "no order of a smaller term after one of a greater"
            stale = [c for c in stuck.received.changes if c.term == term and 4 in c.ranks]
            assert not stale, "the stale leader placed a batch"


@in_loop
async def test_a_leader_without_etcd_stops_before_its_lease_can_end(tmp_path: Path) -> None:
    with two_coordinators(tmp_path) as (leader, other, server):
        async with Node("a", leader.address, other.address) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            server.process.send_signal(signal.SIGSTOP)
            try:
                leader.wait_line("event=lead-lost")
                assert not leader.status().leads
                a.arrive(2, 30)
                assert a.received.batches() == [1], "the last order holds"
            finally:
                server.process.send_signal(signal.SIGCONT)
            await until(lambda: a.received.batches() == [2, 1], "a leader again")


@in_loop
async def test_a_leaders_key_that_is_taken_away_ends_the_lead(tmp_path: Path) -> None:
    """An operator deletes it, or another cluster's tool does."""
    import grpc.aio

    from mfsd.proto import etcd_pb2 as pb

    with etcd(tmp_path) as (endpoint, _), Coordinator(tmp_path, etcd=endpoint, config=CONFIG) as alone:
        term = alone.wait_lead()
        async with grpc.aio.insecure_channel(endpoint) as channel:
            delete: Any = channel.unary_unary(
                "/etcdserverpb.KV/DeleteRange", request_serializer=pb.DeleteRangeRequest.SerializeToString
            )
            await delete(pb.DeleteRangeRequest(key=KEY.encode()))
        alone.wait_line("event=lead-lost")
        await until(lambda: alone.status().leads and alone.status().term > term, "a new lead with a greater term")


def test_a_restarted_leader_waits_for_its_former_lease(tmp_path: Path) -> None:
    with etcd(tmp_path) as (endpoint, _):
        with Coordinator(tmp_path, etcd=endpoint, config=CONFIG) as first:
            term = first.wait_lead()
        with Coordinator(tmp_path, etcd=endpoint, config=CONFIG, port=first.port) as again:
            assert again.wait_lead() > term


class LosesAnAnswer(Etcd):
    """Its first creation succeeds, but its answer is lost: as from an etcd whose disk is slow for a moment."""

    lost = False

    async def create(self, key: str, value: str, lease: int) -> Key | None:
        mine = await super().create(key, value, lease)
        if not self.lost:
            self.lost = True
            raise EtcdError("the answer came too late")
        return mine


@in_loop
async def test_a_lead_whose_answer_was_lost_does_not_wait_for_its_own_lease(tmp_path: Path) -> None:
    with etcd(tmp_path) as (endpoint, _):
        election = Election(LosesAnAnswer([endpoint]), "127.0.0.1:7400", 10 * int(TIMEOUT_S), Log("error"))
        roles: list[Role] = []
        running = asyncio.create_task(election.run(roles.append))
        await until(lambda: election.valid(), "the lead")
        found = await (client := Etcd([endpoint])).get(KEY)
        assert found is not None and election.role.term == found.create_revision
        assert [role.leads for role in roles] == [True], "and is told of no leader before"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await client.get(KEY) is None
        await client.close()


def test_without_etcd_it_says_so_and_waits(tmp_path: Path) -> None:
    with Coordinator(tmp_path, etcd="127.0.0.1:1", config=CONFIG) as coordinator:
        line = coordinator.wait_line("event=etcd-unreachable")
        assert "127.0.0.1:1" in line
        assert not coordinator.status().leads


@pytest.mark.slow
def test_terms_only_grow_over_many_failovers(tmp_path: Path) -> None:
    """Leaders are killed in turn; each has a greater term than all before."""
    terms = []
    with etcd(tmp_path) as (endpoint, _):
        coordinators = [Coordinator(tmp_path, etcd=endpoint, config=CONFIG) for _ in range(4)]
        try:
            for coordinator in coordinators:
                coordinator.wait_line("event=ready")
            alive = list(coordinators)
            while alive:
                leader = eventually(lambda: next((c for c in alive if c.status().leads), None), "a leader")
                terms.append(leader.status().term)
                alive.remove(leader)
                leader.process.kill()
        finally:
            for coordinator in coordinators:
                coordinator.__exit__(None, None, None)
    assert terms == sorted(set(terms))
    assert len(terms) == 4


@in_loop
async def test_an_etcd_that_is_down_is_passed_over_for_the_next_endpoint(tmp_path: Path) -> None:
    with etcd(tmp_path) as (endpoint, _):
        client = Etcd(["127.0.0.1:1", endpoint])
        try:
            lease, ttl_s = await client.grant(2)
            assert ttl_s >= 2
            mine = await client.create("/test/key", "me", lease)
            assert mine is not None
            assert await client.create("/test/key", "you", lease) is None
            found = await client.get("/test/key")
            assert found is not None
            assert (found.value, found.create_revision) == ("me", mine.create_revision)
            assert await client.renew(lease) >= 2
            await client.revoke(lease)
            assert await client.get("/test/key") is None, "the key goes with its lease"
        finally:
            await client.close()

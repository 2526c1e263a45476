"""Elects the leader by a key in etcd, created by the winner and bound to its lease (design, faults 6 to 8).

The term is the key's create revision: etcd assigns each revision once, so every leader has a greater term than all
before it. A leader believes in its lease only while `valid` returns True. By the leader's own clock that always ends
before etcd can end the lease: the time to live is counted from before the renewal was sent, less a margin.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from mfsd.coordinator.etcd import Etcd, EtcdError, LeaseLost

KEY = "/mfs/coordinator/leader"
LOOK_S = 0.1
"""How often a follower checks whether there is a leader."""
RENEWALS_PER_TTL = 6
MARGIN = 0.1
"""Share of the time to live by which a leader stops early."""


class Role(Struct, frozen=True):
    """What this coordinator is at the moment."""

    leads: bool
    leader: str = ""
    """HOST:PORT; empty: none known."""
    authority: str = ""
    term: int = 0


class Logger(Protocol):
    def info(self, event: str, **values: object) -> None: ...
    def warning(self, event: str, **values: object) -> None: ...
    def error(self, event: str, **values: object) -> None: ...


class Electorate(Protocol):
    """Determines a coordinator's role."""

    role: Role

    def valid(self) -> bool:
        """Whether this coordinator may decide right now."""

    def outbid(self, authority: str, term: int) -> bool:
        """A daemon has followed this term. Returns True if our own term has been raised above it."""

    async def run(self, changed: Callable[[Role], None]) -> None:
        """Calls `changed` with every new role, until cancelled; then gives up the lead."""


def boot_clock_ns() -> int:
    """A clock that also runs while the host sleeps, as etcd's leases do."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Alone:
    """A lone coordinator, which leads from start to end. Its term is the wall clock at its start. If that clock has
    gone back, daemons report the greater term that they have followed, and the coordinator raises its term above it."""

    def __init__(self, address: str, wall_clock_ns: Callable[[], int] = time.time_ns) -> None:
        self.role = Role(True, address, "alone", max(1, wall_clock_ns()))
        self._changed: Callable[[Role], None] | None = None

    def valid(self) -> bool:
        return True

    def outbid(self, authority: str, term: int) -> bool:
        if authority != self.role.authority or term <= self.role.term:
            return False
        self.role = Role(True, self.role.leader, authority, term + 1)
        if self._changed is not None:
            self._changed(self.role)
        return True

    async def run(self, changed: Callable[[Role], None]) -> None:
        self._changed = changed
        changed(self.role)
        await asyncio.Event().wait()


class Election:
    """One of several coordinators."""

    def __init__(
        self,
        etcd: Etcd,
        address: str,
        lease_ttl_s: int,
        log: Logger,
        clock_ns: Callable[[], int] = boot_clock_ns,
    ) -> None:
        """address: where daemons reach this coordinator."""
        self.role = Role(False)
        self._etcd = etcd
        self._address = address
        self._lease_ttl_s = lease_ttl_s
        self._log = log
        self._clock_ns = clock_ns
        self._valid_until_ns = 0
        self._changed: Callable[[Role], None] = lambda _role: None
        self._lease: int | None = None
        self._problem = ""

    def valid(self) -> bool:
        return self.role.leads and self._clock_ns() < self._valid_until_ns

    def outbid(self, authority: str, term: int) -> bool:
        return False  # only etcd assigns terms

    async def run(self, changed: Callable[[Role], None]) -> None:
        self._changed = changed
        try:
            while True:
                try:
                    await self._follow()
                    await self._lead()
                except EtcdError as error:
                    self._trouble(error)
                    await asyncio.sleep(LOOK_S)
        finally:
            self._become(Role(False))
            await asyncio.shield(self._release())
            await self._etcd.close()

    async def _follow(self) -> None:
        """Returns once this coordinator has created the key."""
        while True:
            leader = await self._etcd.get(KEY)
            self._fine()
            if leader is None or leader.lease == self._lease:
                if await self._campaign():
                    return
                continue
            if leader.value == self._address:
                # the key of an earlier run of this process, whose lease ends by itself
                self._become(Role(False, "", _authority(leader.cluster_id), leader.create_revision))
            else:
                self._become(Role(False, leader.value, _authority(leader.cluster_id), leader.create_revision))
            await asyncio.sleep(LOOK_S)

    async def _campaign(self) -> bool:
        sent_ns = self._clock_ns()
        if self._lease is None:
            self._lease, ttl_s = await self._etcd.grant(self._lease_ttl_s)
        else:
            ttl_s = await self._renewed()
            if ttl_s == 0:
                return False
        mine = await self._etcd.create(KEY, self._address, self._lease) or await self._etcd.get(KEY)
        if mine is None or mine.lease != self._lease:  # the key is ours if an earlier answer was lost
            return False
        self._valid_until_ns = sent_ns + _believed_ns(ttl_s)
        self._become(Role(True, self._address, _authority(mine.cluster_id), mine.create_revision))
        return True

    async def _renewed(self) -> int:
        """Renews the lease; returns its time to live in seconds, 0 if it has ended."""
        assert self._lease is not None
        try:
            return await self._etcd.renew(self._lease)
        except LeaseLost:
            self._lease = None
            return 0

    async def _lead(self) -> None:
        """Returns when the lead is lost. Nothing needs etcd between two renewals."""
        why = "the lease was not renewed in time"
        pause_s = interval_s = self._lease_ttl_s / RENEWALS_PER_TTL
        while self.valid():
            await asyncio.sleep(pause_s)
            pause_s = LOOK_S  # until a renewal succeeds
            if not self.valid():
                break
            sent_ns = self._clock_ns()
            try:
                ttl_s = await self._renewed()
                key = await self._etcd.get(KEY) if ttl_s else None
            except EtcdError as error:
                self._trouble(error)
                continue
            self._fine()
            if key is None or key.create_revision != self.role.term:
                why = "the lease has ended or the leader's key was taken away"
                break
            self._valid_until_ns = sent_ns + _believed_ns(ttl_s)
            pause_s = interval_s
        self._valid_until_ns = 0
        self._log.warning("lead-lost", term=self.role.term, reason=why)
        self._become(Role(False))
        await self._release()

    async def _release(self) -> None:
        """Ends the lease, so that another coordinator can lead at once."""
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(EtcdError):  # it ends by itself
                await self._etcd.revoke(lease)

    def _become(self, role: Role) -> None:
        if not role.leads:
            self._valid_until_ns = 0
        if role != self.role:
            self.role = role
            self._changed(role)

    def _trouble(self, error: EtcdError) -> None:
        if str(error) != self._problem:
            self._problem = str(error)
            self._log.error("etcd-unreachable", problem=error, remedy="check [coordinator] etcd and that etcd runs")
        if self.role.leader and not self.role.leads:
            self._become(Role(False))

    def _fine(self) -> None:
        if self._problem:
            self._log.info("etcd-answers")
        self._problem = ""


def _authority(cluster_id: int) -> str:
    return f"etcd:{cluster_id:x}"


def _believed_ns(ttl_s: int) -> int:
    return int(ttl_s * 1e9 * (1 - MARGIN))

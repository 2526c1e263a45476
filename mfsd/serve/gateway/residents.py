"""Starts an engine when a request wants its model; stops it when another one needs its memory or no request wants it.

Which one gives way is the rule of mfsd.policy.workflow.residency, without host memory to sleep in: an engine runs, or
its model is on disk. An engine with requests is never stopped, so no request is lost by it; but it is given no more
once another one has waited for its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from mfsd.policy.route import Call, Choice, Role, eligible
from mfsd.policy.workflow import HOLD_S, ModelProfile, Residence, Residency, Runs, held_for
from mfsd.serve.gateway.backend import Backend
from mfsd.serve.gateway.metrics import Metrics
from mfsd.serve.gateway.poll import Log
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.replicas import LiveReplica, ReplicaSet, Stage
from mfsd.serve.gateway.settings import GatewaySettings

LOOK_S: Final = 2.0
RETRY_S: Final = 10.0
"""After a start that failed."""
UNLIMITED_BYTES: Final = 1 << 62


class _Life:
    """One process, from the decision to start it until nothing is left of it."""

    def __init__(self, replica: LiveReplica) -> None:
        self.replica, self.backend = replica, Backend(replica.settings.command)
        self.task: asyncio.Task[None]
        self.begun_s: float | None = None
        self.served_s: float | None = None
        """Since when it runs."""
        self.wanted_gone = False

    @property
    def has_served(self) -> bool:
        return self.served_s is not None

    @property
    def runs(self) -> Runs:
        replica, served_s = self.replica, math.inf if self.served_s is None else self.served_s
        return Runs(replica.name, replica.requests, replica.used_s, served_s, replica.settings.memory_bytes)

    def idle(self, now_s: float) -> bool:
        """It runs without requests; those that it was started for are given to it just after it has."""
        replica, served_s = self.replica, self.served_s
        if replica.stage is not Stage.RUNS or replica.requests or served_s is None:
            return False
        return replica.used_s > served_s or now_s - served_s >= HOLD_S


class Residents:
    def __init__(
        self, settings: GatewaySettings, replicas: ReplicaSet, log: Log, metrics: Metrics, wake: Callable[[], None]
    ) -> None:
        """wake: is called when calls that wait may have a chance, or none any more."""
        self._settings, self._log, self._wake = settings.residency, log, wake
        self._changes = metrics.engines
        self._own = {replica.name: replica for replica in replicas.all if replica.settings.command}
        self._lives: dict[str, _Life] = {}
        self._retry_s: dict[str, float] = {}
        self._short_s: dict[str, float] = {}
        """Engines that are wanted and find no memory: since when."""
        self._asked: set[str] = set()
        """Those of them that calls have asked for since the last tick."""
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        self._memory = Residency(
            {name: _profile(name, replica.settings.memory_bytes) for name, replica in self._own.items()},
            gpu_bytes=self._settings.memory_bytes or UNLIMITED_BYTES,
            host_bytes=0,
            disk_bytes=UNLIMITED_BYTES,
            on_disk=self._own,
        )

    async def begin(self) -> None:
        """After the first poll: an engine that answers, or is silent where something listens, has been started by
        another program, which sees to it."""
        replicas = list(self._own.values())
        there = await asyncio.gather(*(self._there(replica) for replica in replicas))
        for replica, is_there in zip(replicas, there, strict=True):
            if is_there:
                self._memory.found(replica.name)
                self._log.warning("engine-not-ours", replica=replica.name, url=replica.url)
            else:
                self._is(replica, Stage.STOPPED)

    @staticmethod
    async def _there(replica: LiveReplica) -> bool:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            return replica.healthy or await _listens(replica)
        return False

    def wanted(self, call: Call, prompt: Prompt, role: Role, among: Collection[str] | None = None) -> bool:
        """Whether the call may wait for an engine, which is started where there is memory for it. among: the names of
        those that it may have; None: all."""
        able = [
            msgspec.structs.replace(replica.view(prompt), healthy=True)
            for replica in self._own.values()
            if (replica.stage is not Stage.RUNS or replica.held)
            and (among is None or replica.name in among)
            and self._now_s() >= self._retry_s.get(replica.name, 0.0)
        ]
        found = eligible(call, able, role)
        if isinstance(found, Choice) or self._closing:
            return False
        chosen = [self._own[one.name] for one in found]
        if all(replica.stage is Stage.STOPPED for replica in chosen):
            self._make_run(chosen[0])
        return True

    def tick(self) -> None:
        """With each poll."""
        now_s = self._now_s()
        for life in list(self._lives.values()):
            replica = life.replica
            if replica.stage is Stage.STARTS and life.begun_s is not None:
                if now_s - life.begun_s > self._settings.start_max_s:
                    self._failed(replica, f"it does not answer {self._settings.start_max_s:g} s after its start")
                    self._stop(life)
            elif replica.stage is Stage.RUNS:
                if life.served_s is None:
                    life.served_s = replica.used_s = now_s
                elif replica.requests:
                    replica.used_s = now_s
                elif 0 < self._settings.idle_s <= now_s - replica.used_s:
                    self._stop(life)

        for replica in self._own.values():
            if replica.stage is Stage.RUNS and not replica.healthy and replica.name not in self._lives:
                self._look(replica)
        self._short_s = {name: since_s for name, since_s in self._short_s.items() if name in self._asked}
        self._asked.clear()
        self._hold(now_s)

    async def close(self) -> None:
        self._closing = True
        for look in self._looks.values():
            look.cancel()
        lives = list(self._lives.values())
        for life in lives:
            self._stop(life)
        await asyncio.gather(*(life.task for life in lives), return_exceptions=True)

    # ---- one engine --------------------------------------------------------------------------------------------------

    def _make_run(self, replica: LiveReplica) -> None:
        """As soon as those that give way are gone; not yet, where those that could have requests."""
        running = [one for one in self._own.values() if one.stage in (Stage.RUNS, Stage.STARTS)]
        for one in sorted(running, key=lambda one: one.used_s):
            self._memory.used(one.name)
        now_s = self._now_s()
        idle = {name for name, life in self._lives.items() if life.idle(now_s)}
        moves = self._memory.activate(replica.name, 0, busy={one.name for one in running} - idle)
        if moves is None:
            self._short_s.setdefault(replica.name, now_s)
            self._asked.add(replica.name)
            return
        self._short_s.pop(replica.name, None)
        for move in moves:
            if move.target is not Residence.RUNNING:
                self._stop(self._lives[move.model])
        going = [one.task for one in self._lives.values() if one.replica.stage is Stage.STOPS]
        self._is(replica, Stage.STARTS)
        life = self._lives[replica.name] = _Life(replica)
        life.task = asyncio.create_task(self._live(life, going))

    def _hold(self, now_s: float) -> None:
        """Those of which others have waited for the memory long enough, no more than it takes."""
        held: set[str] = set()
        running = [life.runs for life in self._lives.values() if not life.replica.away]
        for name, since_s in self._short_s.items():
            wants = self._own[name].settings.memory_bytes - self._memory.headroom_bytes(0)
            held.update(held_for(wants, since_s, running, now_s))
        for replica in self._own.values():
            if (replica.name in held) and not replica.held:
                self._log.info("engine-held", replica=replica.name, wanted=",".join(self._short_s))
            replica.held = replica.name in held

    def _look(self, replica: LiveReplica) -> None:
        """An engine that another program started answers no more. Where nothing listens it has ended, and the gateway
        may start it; one that is only silent still has its memory."""
        if replica.name not in self._looks:
            task = self._looks[replica.name] = asyncio.create_task(self._ended(replica))
            task.add_done_callback(lambda _: self._looks.pop(replica.name, None))

    async def _ended(self, replica: LiveReplica) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            if not await _listens(replica):
                self._is(replica, Stage.STOPPED)
                self._memory.sleep(replica.name)
                self._log.warning("engine-ended", replica=replica.name, how="nothing listens where it did")
                self._changes.labels(replica.name, "ended").inc()
                self._wake()

    async def _live(self, life: _Life, going: list[asyncio.Task[None]]) -> None:
        replica = life.replica
        try:
            if going:  # their memory is free only then
                await asyncio.wait(going)
            how = "before it was started" if life.wanted_gone else await self._run(life)
        except OSError as error:
            how = " ".join(str(error).split())
        finally:
            self._gone(life)
        if life.wanted_gone:
            self._log.info("engine-stopped", replica=replica.name, how=how)
            self._changes.labels(replica.name, "stopped").inc()
        elif life.has_served:
            self._log.warning("engine-ended", replica=replica.name, how=how)
            self._changes.labels(replica.name, "ended").inc()
        else:
            self._failed(replica, how)
        self._wake()

    async def _run(self, life: _Life) -> str:
        name, command = life.replica.name, life.replica.settings.command
        life.begun_s = self._now_s()
        self._log.info("engine-starts", replica=name, command=" ".join(command))
        self._changes.labels(name, "started").inc()
        how = await life.backend.run()
        self._ends(life)
        await life.backend.gone()
        return how

    def _stop(self, life: _Life) -> None:
        if life.wanted_gone:
            return
        life.wanted_gone = True
        life.replica.down("")
        life.replica.held = False
        self._is(life.replica, Stage.STOPS)
        life.backend.terminate()
        killer = asyncio.get_running_loop().call_later(self._settings.stop_max_s, life.backend.kill)
        life.task.add_done_callback(lambda _: killer.cancel())

    def _ends(self, life: _Life) -> None:
        """It serves no more, and may still have memory."""
        if life.served_s is None and life.replica.stage is Stage.RUNS:
            life.served_s = self._now_s()
        life.replica.down("")
        life.replica.held = False
        self._is(life.replica, Stage.STOPS)

    def _gone(self, life: _Life) -> None:
        name = life.replica.name
        self._ends(life)
        self._is(life.replica, Stage.STOPPED)
        self._memory.sleep(name)  # to disk, since there is no host memory
        del self._lives[name]

    def _failed(self, replica: LiveReplica, problem: str) -> None:
        self._retry_s[replica.name] = self._now_s() + RETRY_S
        self._log.warning("engine-failed", replica=replica.name, problem=problem)
        self._changes.labels(replica.name, "failed").inc()

    @staticmethod
    def _is(replica: LiveReplica, stage: Stage) -> None:
        replica.stage, replica.problem = stage, stage.value

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


async def _listens(replica: LiveReplica) -> bool:
    """Whether something does. OSError or TimeoutError where that cannot be found out."""
    host, _, port = replica.endpoint.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), LOOK_S)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


def _profile(name: str, memory_bytes: int) -> ModelProfile:
    """What residency reads of it."""
    return ModelProfile(
        name=name,
        weights_bytes=max(1, memory_bytes),
        context_bytes=0,
        kv_bytes_per_token=1,
        prefill_fixed_s=0.0,
        prefill_s_per_token=0.0,
        decode_s_per_token=0.0,
    )

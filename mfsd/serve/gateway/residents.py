"""Starts or wakes an engine when a request wants its model; puts it to sleep or stops it when another one needs its
memory or no request wants it.

mfsd.policy.workflow.residency decides which engine gives way: it runs, sleeps, or its model is on disk. An engine with
requests never gives way, so no request is lost. But it gets no more requests once another engine has waited long enough
for its memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import msgspec

from mfsd.policy.route import Call, Choice, Role, eligible
from mfsd.policy.workflow import ModelProfile, Move, Residence, Residency, held_for, only_memory
from mfsd.serve.gateway.foreign import Foreign
from mfsd.serve.gateway.life import Life
from mfsd.serve.gateway.metrics import Metrics
from mfsd.serve.gateway.poll import Log
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.replicas import LiveReplica, ReplicaSet, Stage
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings
from mfsd.serve.gateway.sleep import CannotSleep, Sleeper

RETRY_S: Final = 10.0
"""Pause after a failed start."""
UNLIMITED_BYTES: Final = 1 << 62
RUNNING: Final = (Stage.RUNS, Stage.STARTS, Stage.WAKES)
STARTABLE: Final = (Stage.STOPPED, Stage.SLEEPS)


class Residents:
    def __init__(
        self,
        settings: GatewaySettings,
        replicas: ReplicaSet,
        log: Log,
        metrics: Metrics,
        sleeper: Sleeper,
        wake: Callable[[], None],
    ) -> None:
        """wake: called when waiting calls may get a place, or can get none any more."""
        self._settings, self._log, self._sleeper, self._wake = settings.residency, log, sleeper, wake
        self._changes = metrics.engines
        self._own = {replica.name: replica for replica in replicas.all if replica.settings.command}
        self._lives: dict[str, Life] = {}
        self._retry_s: dict[str, float] = {}
        self._short_s: dict[str, float] = {}
        """Engines that are wanted but have no memory -> since when."""
        self._asked: set[str] = set()
        """Those of these engines that calls have asked for since the last tick."""
        self._foreign = Foreign(self._foreign_ended)
        self._closing = False
        self._memory = Residency(
            {name: _profile(replica.settings) for name, replica in self._own.items()},
            gpu_bytes=self._settings.memory_bytes or UNLIMITED_BYTES,
            host_bytes=self._settings.host_memory_bytes,
            disk_bytes=UNLIMITED_BYTES,
            on_disk=self._own,
            processes=True,
            sleepless=[name for name, replica in self._own.items() if replica.settings.sleep is None],
        )

    async def begin(self) -> None:
        """Call it after the first poll. An engine that answers, or whose address something listens on, was started by
        another program, which manages it."""
        replicas = list(self._own.values())
        there = await asyncio.gather(*(self._foreign.there(replica) for replica in replicas))
        for replica, is_there in zip(replicas, there, strict=True):
            if is_there:
                self._memory.found(replica.name)
                self._log.warning("engine-not-ours", replica=replica.name, url=replica.url)
            else:
                self._is(replica, Stage.STOPPED)

    def wanted(self, call: Call, prompt: Prompt, role: Role, among: Collection[str] | None = None) -> bool:
        """Whether the call may wait for an engine, which is woken or started if there is memory for it. among: names of
        the replicas that the call may go to; None: all."""
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
        if all(replica.stage in STARTABLE for replica in chosen):
            self._make_run(min(chosen, key=lambda replica: replica.stage is not Stage.SLEEPS))
        return True

    def tick(self) -> None:
        """Stops engines that do not start, and puts idle ones to sleep or stops them. Call it with each poll."""
        now_s = self._now_s()
        for life in list(self._lives.values()):
            replica = life.replica
            if replica.stage is Stage.STARTS and life.begun_s is not None:
                if now_s - life.begun_s > self._settings.start_max_s:
                    self._failed(
                        replica, f"the engine does not answer {self._settings.start_max_s:g} s after its start"
                    )
                    self._stop(life)
            elif replica.stage is Stage.RUNS:
                if life.served_s is None:
                    life.serves(now_s)
                elif replica.requests:
                    replica.used_s = now_s
                elif 0 < self._settings.idle_s <= now_s - replica.used_s:
                    self._order()
                    self._give_way(self._memory.sleep(replica.name))

        for replica in self._own.values():
            if replica.stage is Stage.RUNS and not replica.healthy and replica.name not in self._lives:
                self._foreign.check(replica)
        self._short_s = {name: since_s for name, since_s in self._short_s.items() if name in self._asked}
        self._asked.clear()
        self._hold(now_s)

    async def close(self) -> None:
        self._closing = True
        self._foreign.close()
        lives = list(self._lives.values())
        for life in lives:
            self._stop(life)
        changes = [life.change for life in lives if life.change is not None]
        await asyncio.gather(*(life.task for life in lives), *changes, return_exceptions=True)

    # ---- one engine --------------------------------------------------------------------------------------------------

    def _make_run(self, replica: LiveReplica) -> None:
        """Starts or wakes an engine as soon as those that give way have. Nothing happens yet if those that would have
        to give way may have requests."""
        self._order()
        now_s = self._now_s()
        running = {one.name for one in self._own.values() if one.stage in RUNNING}
        idle = {name for name, life in self._lives.items() if life.idle(now_s)}
        moves = self._memory.activate(replica.name, 0, busy=running - idle)
        if moves is None:
            self._short_s.setdefault(replica.name, now_s)
            self._asked.add(replica.name)
            return
        self._short_s.pop(replica.name, None)
        self._give_way(moves)
        going = [task for life in self._lives.values() if (task := life.giving_way) is not None]
        asleep = self._lives.get(replica.name)
        if asleep is not None:
            asleep.served_s = None
            self._is(replica, Stage.WAKES)
            asleep.change = asyncio.create_task(self._wakes(asleep, going))
            return
        self._is(replica, Stage.STARTS)
        life = self._lives[replica.name] = Life(replica)
        life.task = asyncio.create_task(self._live(life, going))

    def _order(self) -> None:
        """Says to the memory which engines were used the longest ago."""
        for one in sorted(self._own.values(), key=lambda one: one.used_s):
            self._memory.used(one.name)

    def _give_way(self, moves: Iterable[Move]) -> None:
        """Puts engines to sleep and stops others, as decided. Those that fall asleep wait for the host memory of those
        that stop."""
        targets = {move.model: move.target for move in moves}
        for name, target in targets.items():
            if target not in (Residence.RUNNING, Residence.SLEEPING):
                self._stop(self._lives[name])
        stopping = [life.task for life in self._lives.values() if life.replica.stage is Stage.STOPS]
        for name, target in targets.items():
            if target is Residence.SLEEPING:
                life = self._lives[name]
                self._leaves(life, Stage.SLEEPS)
                life.change = asyncio.create_task(self._sleeps(life, stopping))

    def _hold(self, now_s: float) -> None:
        """Holds calls back from engines for whose memory others have waited long enough; from no more than needed."""
        held: set[str] = set()
        running = [life.runs for life in self._lives.values() if life.replica.stage in RUNNING]
        for name, since_s in self._short_s.items():
            held.update(held_for(self._memory.lacks_bytes(name), since_s, running, now_s))
        for replica in self._own.values():
            if (replica.name in held) and not replica.held:
                self._log.info("engine-held", replica=replica.name, wanted=",".join(self._short_s))
            replica.held = replica.name in held

    def _foreign_ended(self, replica: LiveReplica) -> None:
        self._is(replica, Stage.STOPPED)
        self._memory.stop(replica.name)
        self._log.warning("engine-ended", replica=replica.name, how="nothing listens on its port any more")
        self._changes.labels(replica.name, "ended").inc()
        self._wake()

    async def _live(self, life: Life, going: list[asyncio.Task[None]]) -> None:
        replica = life.replica
        try:
            if going:  # their memory is free only after they have ended
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

    async def _run(self, life: Life) -> str:
        name, command = life.replica.name, life.replica.settings.command
        life.begun_s = self._now_s()
        self._log.info("engine-starts", replica=name, command=" ".join(command))
        self._changes.labels(name, "started").inc()
        how = await life.backend.run()
        self._ends(life)
        await life.backend.gone()
        return how

    async def _sleeps(self, life: Life, stopping: list[asyncio.Task[None]]) -> None:
        if stopping:
            await asyncio.wait(stopping)
        if await self._done(life, "sleep", self._sleeper.sleep):
            self._log.info("engine-sleeps", replica=life.replica.name)
            self._changes.labels(life.replica.name, "slept").inc()

    async def _wakes(self, life: Life, going: list[asyncio.Task[None]]) -> None:
        if going:
            await asyncio.wait(going)
        if await self._done(life, "wake", self._sleeper.wake):
            self._log.info("engine-woken", replica=life.replica.name)
            self._changes.labels(life.replica.name, "woken").inc()
            life.serves(self._now_s())
            self._is(life.replica, Stage.RUNS)
            life.replica.up()
        self._wake()

    async def _done(self, life: Life, what: str, call: Callable[[LiveReplica, float], Awaitable[None]]) -> bool:
        """Puts an engine to sleep or wakes it; returns whether it does. One that fails is stopped, since nothing says
        what it has left."""
        try:
            if not life.over:
                await call(life.replica, self._settings.sleep_max_s)
        except CannotSleep as error:
            if not life.over:
                self._log.warning("engine-failed", replica=life.replica.name, problem=f"{what}: {error}")
                self._changes.labels(life.replica.name, "failed").inc()
                self._stop(life)
        if life.over:
            await asyncio.wait({life.task})
        return not life.over

    def _stop(self, life: Life) -> None:
        if life.wanted_gone:
            return
        life.wanted_gone = True
        self._ends(life)
        life.backend.terminate()
        killer = asyncio.get_running_loop().call_later(self._settings.stop_max_s, life.backend.kill)
        life.task.add_done_callback(lambda _: killer.cancel())

    def _ends(self, life: Life) -> None:
        """Marks an engine that serves no more but may still have memory."""
        life.has_served = life.has_served or life.replica.stage is Stage.RUNS
        life.over = True
        self._leaves(life, Stage.STOPS)
        self._memory.stop(life.replica.name)

    def _leaves(self, life: Life, stage: Stage) -> None:
        """Lets an engine get no more requests. The cache of its engine counts as lost."""
        life.replica.down("")
        life.replica.held = False
        self._is(life.replica, stage)

    def _gone(self, life: Life) -> None:
        self._ends(life)
        self._is(life.replica, Stage.STOPPED)
        del self._lives[life.replica.name]

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


def _profile(replica: ReplicaSettings) -> ModelProfile:
    """Returns the profile of an engine's model, as far as residency reads it. Whatever memory it has beside weights and
    context is for KV."""
    weights_bytes = replica.weights_bytes or max(1, replica.memory_bytes)
    pool_bytes = max(0, replica.memory_bytes - weights_bytes - replica.sleeping_bytes)
    return only_memory(replica.shown_name, weights_bytes, replica.sleeping_bytes, pool_bytes)

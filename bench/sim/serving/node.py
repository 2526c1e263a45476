"""Engines of several models on one node that has memory for some of them: an engine is started, or woken, when a call
wants its model, and the least recently used one gives way. It sleeps if there is host memory for its weights.

The rules are the gateway's (mfsd.serve.gateway.residents): `Residency` and `held_for`. An engine with calls never gives
way, but gets no new ones once another engine has waited for its memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum

from bench.sim.serving.config import NodeConfig
from bench.sim.serving.live import Live
from bench.sim.serving.replica import Replica
from bench.sim.serving.work import Call
from mfsd.policy.workflow import ModelProfile, Move, Residence, Residency, Runs, activation_s, held_for

HOLD_CHECK = -1
"""Passed to `due` if no engine has been loaded."""
HOLD_CHECK_S = 1.0
"""Interval of checks whether engines are to be held, while one waits for memory."""
DISK_BYTES = 1 << 62


class Stage(Enum):
    STOPPED = 0
    """Or asleep."""
    STARTS = 1
    RUNS = 2


class _Engine:
    def __init__(self, replica: Replica) -> None:
        self.replica, self.stage, self.held = replica, Stage.STOPPED, False
        self.name = model_name(replica.number)
        self.waiting: list[Live] = []
        """Calls that it has not been given yet."""
        self.requests = 0
        self.used_s = self.served_s = 0.0

    @property
    def idle(self) -> bool:
        return self.stage is Stage.RUNS and not self.requests


def model_name(number: int) -> str:
    """Returns the name of the model that a replica serves; a call's `model`."""
    return f"model {number}"


class Node:
    """Call `arrives` and `ended` when a call does, and `due` at every requested wake-up."""

    def __init__(self, config: NodeConfig, replicas: Sequence[Replica], wake: Callable[[float, int], None]) -> None:
        """wake: takes a time, and what to pass to `due` then."""
        self._bytes, self._wake = config.weights_bytes, wake
        self._engines = [_Engine(replica) for replica in replicas]
        self._by_name = {engine.name: engine for engine in self._engines}
        profile = ModelProfile(
            name="",
            weights_bytes=config.weights_bytes,
            context_bytes=0,
            kv_bytes_per_token=1,
            prefill_fixed_s=0.0,
            prefill_s_per_token=0.0,
            decode_s_per_token=0.0,
        )
        self._loads_s = {of: activation_s(profile, of, config.speeds) for of in (Residence.DISK, Residence.SLEEPING)}
        """How long it takes to start an engine, and to wake one."""
        self._copy_s = config.weights_bytes / config.speeds.host_bytes_per_s
        """How long it takes to fall asleep."""
        self._free_s = 0.0
        """When all that fall asleep do sleep."""
        models = dict.fromkeys(self._by_name, profile)
        gpu_bytes, host_bytes = config.running * self._bytes, config.host_bytes
        self._memory = Residency(models, gpu_bytes, host_bytes, DISK_BYTES, on_disk=models, processes=True)
        self._short_s: dict[str, float] = {}
        """Wanted engines for which there is no memory: since when."""
        self._wake_set = False

    def serves(self, call: Call) -> int:
        """Returns the replica of the call's model. Raises ValueError if there is none."""
        engine = self._by_name.get(call.model)
        if engine is None:
            raise ValueError(f"model is {call.model!r}: use one of {', '.join(self._by_name)}")
        return engine.replica.number

    def arrives(self, live: Live, number: int, now_s: float) -> None:
        engine = self._engines[number]
        if engine.stage is Stage.RUNS and not engine.held:
            self._give(engine, live, now_s)
            return
        engine.waiting.append(live)
        if engine.stage is Stage.STOPPED:
            self._make_run(engine, now_s)

    def ended(self, number: int, now_s: float) -> None:
        """A call of the replica has ended."""
        engine = self._engines[number]
        engine.requests -= 1
        engine.used_s = now_s
        if engine.requests == 0:
            for name in sorted(self._short_s, key=lambda name: self._short_s[name]):
                self._make_run(self._by_name[name], now_s)

    def due(self, what: int, now_s: float) -> set[int]:
        """Returns the replicas that have something new to plan. what: the replica whose engine has been loaded, or
        HOLD_CHECK."""
        if what == HOLD_CHECK:
            return self._hold_for_waiting(now_s)
        engine = self._engines[what]
        engine.stage, engine.served_s = Stage.RUNS, now_s
        self._give_all(engine, now_s)
        return {what}

    def _give(self, engine: _Engine, live: Live, now_s: float) -> None:
        engine.requests += 1
        engine.used_s = now_s
        live.record.waited_s = now_s - live.arrival_s
        engine.replica.arrive(live, now_s)

    def _give_all(self, engine: _Engine, now_s: float) -> None:
        waiting, engine.waiting = engine.waiting, []
        for live in waiting:
            self._give(engine, live, now_s)

    def _make_run(self, engine: _Engine, now_s: float) -> None:
        """Starts or wakes the engine, or waits if those that could give way have calls."""
        on = [one for one in self._engines if one.stage is not Stage.STOPPED]
        for one in sorted(on, key=lambda one: one.used_s):
            self._memory.used(one.name)
        moves = self._memory.activate(engine.name, 0, busy={one.name for one in on if not one.idle})
        if moves is None:
            self._short_s.setdefault(engine.name, now_s)
            if not self._wake_set:
                self._wake_set = True
                self._wake(now_s + HOLD_CHECK_S, HOLD_CHECK)
            return
        self._short_s.pop(engine.name, None)
        gone = self._give_way(moves, now_s)
        self._load(engine, moves[-1].source, now_s)
        for one in gone:
            if one.waiting:  # it was held
                self._make_run(one, now_s)

    def _give_way(self, moves: Sequence[Move], now_s: float) -> list[_Engine]:
        """Puts engines to sleep and stops others; returns those that ran."""
        ran = [self._by_name[move.model] for move in moves if move.source is Residence.RUNNING]
        for one in ran:
            one.stage, one.held = Stage.STOPPED, False
            one.replica.memory.forget()
        targets = {move.model: move.target for move in moves}
        if Residence.SLEEPING in targets.values():
            self._free_s = max(self._free_s, now_s + self._copy_s)
        return ran

    def _load(self, engine: _Engine, source: Residence, now_s: float) -> None:
        engine.stage, engine.served_s = Stage.STARTS, math.inf
        totals, load_s = engine.replica.totals, self._loads_s[source]
        if source is Residence.SLEEPING:
            totals.wakes += 1
        else:
            totals.loads += 1
        totals.loading_s += load_s
        self._wake(max(now_s, self._free_s) + load_s, engine.replica.number)

    def _hold_for_waiting(self, now_s: float) -> set[int]:
        running = [
            Runs(one.name, one.requests, one.used_s, one.served_s, self._bytes)
            for one in self._engines
            if one.stage is not Stage.STOPPED
        ]
        held = set[str]()
        for name, since_s in self._short_s.items():
            held.update(held_for(self._memory.lacks_bytes(name), since_s, running, now_s))
        seen: set[int] = set()
        for engine in self._engines:
            engine.held = engine.name in held
            if engine.stage is Stage.RUNS and not engine.held and engine.waiting:
                self._give_all(engine, now_s)
                seen.add(engine.replica.number)
        self._wake_set = bool(self._short_s)
        if self._wake_set:
            self._wake(now_s + HOLD_CHECK_S, HOLD_CHECK)
        return seen

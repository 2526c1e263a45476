"""Engines of several models on one node that has memory for some of them, by the rules of bench.sim.residents. One that
gives way sleeps if there is host memory for its weights, and is woken from there; others are started from disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.sim.residents import Residents
from bench.sim.serving.config import NodeConfig
from bench.sim.serving.live import Live
from bench.sim.serving.replica import Replica
from bench.sim.serving.work import Call
from mfsd.policy.workflow import Move, Residence, Residency, activation_s, only_memory

HOLD_CHECK = -1
"""Passed to `due` if no engine has been loaded."""
DISK_BYTES = 1 << 62


def model_name(number: int) -> str:
    """Returns the name of the model that a replica serves; a call's `model`."""
    return f"model {number}"


class Node:
    """Call `arrives` and `ended` when a call does, and `due` at every requested wake-up. The other methods are what
    `Residents` asks of a place."""

    def __init__(self, config: NodeConfig, replicas: Sequence[Replica], wake: Callable[[float, int], None]) -> None:
        """wake: takes a time, and what to pass to `due` then."""
        self._wake = wake
        self._replicas = {model_name(replica.number): replica for replica in replicas}
        profile = only_memory("", config.weights_bytes)
        self._loads_s = {of: activation_s(profile, of, config.speeds) for of in (Residence.DISK, Residence.SLEEPING)}
        """How long it takes to start an engine, and to wake one."""
        self._copy_s = config.weights_bytes / config.speeds.host_bytes_per_s
        """How long it takes to fall asleep."""
        self._free_s = 0.0
        """When all that fall asleep do sleep."""
        models = dict.fromkeys(self._replicas, profile)
        gpu_bytes, host_bytes = config.running * config.weights_bytes, config.host_bytes
        memory = Residency(models, gpu_bytes, host_bytes, DISK_BYTES, on_disk=models, processes=True)
        self._residents: Residents[Live] = Residents(self, models, memory, config.weights_bytes)

    def serves(self, call: Call) -> int:
        """Returns the replica of the call's model. Raises ValueError if there is none."""
        replica = self._replicas.get(call.model)
        if replica is None:
            raise ValueError(f"model is {call.model!r}: use one of {', '.join(self._replicas)}")
        return replica.number

    def arrives(self, live: Live, number: int, now_s: float) -> None:
        self._residents.arrives(model_name(number), live, now_s)

    def ended(self, number: int, now_s: float) -> None:
        """A call of the replica has ended."""
        self._residents.ended(model_name(number), now_s)

    def due(self, what: int, now_s: float) -> set[int]:
        """Returns the replicas that have something new to plan. what: the replica whose engine has been loaded, or
        HOLD_CHECK."""
        if what == HOLD_CHECK:
            return {self._replicas[model].number for model in self._residents.hold_for_waiting(now_s)}
        self._residents.loaded(model_name(what), now_s)
        return {what}

    def give(self, model: str, asked: Live, now_s: float) -> None:
        asked.record.waited_s = now_s - asked.arrival_s
        self._replicas[model].arrive(asked, now_s)

    def load(self, model: str, moves: Sequence[Move], now_s: float) -> None:
        targets = {move.model: move.target for move in moves}
        if Residence.SLEEPING in targets.values():
            self._free_s = max(self._free_s, now_s + self._copy_s)
        replica, source = self._replicas[model], moves[-1].source
        if source is Residence.SLEEPING:
            replica.totals.wakes += 1
        else:
            replica.totals.loads += 1
        replica.totals.loading_s += self._loads_s[source]
        self._wake(max(now_s, self._free_s) + self._loads_s[source], replica.number)

    def stop(self, model: str) -> None:
        self._replicas[model].memory.forget()

    def check_at(self, at_s: float) -> None:
        self._wake(at_s, HOLD_CHECK)

"""Which models of a node stay where: GPU, host memory, disk, or only remote storage (Maestro III-C, algorithm 1).

Weights cascade. What gives way on the GPU goes to host memory, from there to disk. What finds no room on disk is
dropped, since remote storage has every model. Each tier gives up what was used the longest ago.

Where models are processes of live engines there is no CPU state: an engine runs, sleeps, or its process has ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

import msgspec

from mfsd.policy.estimate import transfer_ns
from mfsd.policy.types import NS_PER_S
from mfsd.policy.workflow.profile import ModelProfile


class Residence(str, Enum):
    """The five states, readiest first."""

    RUNNING = "running"
    """Weights and context on the GPU."""
    SLEEPING = "sleeping"
    """Weights in host memory, context still on the GPU."""
    CPU = "cpu"
    """Weights in host memory."""
    DISK = "disk"
    REMOTE = "remote"


class TierSpeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What an activation takes: bytes over the tier's bandwidth, and a fixed part. Both are measured."""

    host_bytes_per_s: int = 20_000_000_000
    """Host memory to GPU."""
    disk_bytes_per_s: int = 3_000_000_000
    """Disk to host memory."""
    remote_bytes_per_s: int = 1_000_000_000
    """Remote storage to host memory. On live nodes the outlook of the NICs gives it."""
    wake_s: float = 0.3
    """Fixed part if the context is still there."""
    start_s: float = 20.0
    """Fixed part if it is not: a process and its graphs."""


def activation_s(model: ModelProfile, state: Residence, speeds: TierSpeeds) -> float:
    """T_act: the time until the model computes on an idle node. Tiers load one after the other, as in algorithm 1."""
    if state is Residence.RUNNING:
        return 0.0
    took_s = speeds.wake_s if state is Residence.SLEEPING else speeds.start_s
    took_s += _seconds(model.weights_bytes, speeds.host_bytes_per_s)
    if state is Residence.DISK:
        took_s += _seconds(model.weights_bytes, speeds.disk_bytes_per_s)
    if state is Residence.REMOTE:
        took_s += _seconds(model.weights_bytes, speeds.remote_bytes_per_s)
    return took_s


def _seconds(size_bytes: int, bytes_per_s: int) -> float:
    return transfer_ns(size_bytes, bytes_per_s) / NS_PER_S


class Move(NamedTuple):
    """A change of state. `size_bytes`: weights that move for it; 0 if a copy is there already, or nothing is kept."""

    model: str
    source: Residence
    target: Residence
    size_bytes: int


class Residency:
    """The models of one node.

    Weights, contexts and KV share `gpu_bytes`. The caller says how much of it KV has, beside the pools of engines.
    """

    def __init__(
        self, models: Mapping[str, ModelProfile], gpu_bytes: int, host_bytes: int, disk_bytes: int,
        on_disk: Collection[str] = (), processes: bool = False, sleepless: Collection[str] = (),
    ) -> None:  # fmt: skip
        """processes: models are processes of engines. One that gives up its context ends, and nothing of it stays in
        host memory. One that has slept keeps its weights' place there until it ends: engines pin that memory, and
        neither vLLM nor SGLang returns it as they wake. sleepless: models that go from the GPU to disk."""
        self._models = dict(models)
        self.gpu_bytes, self.host_bytes, self.disk_bytes = gpu_bytes, host_bytes, disk_bytes
        self._state: OrderedDict[str, Residence] = OrderedDict((name, Residence.REMOTE) for name in models)
        """Least recently used first."""
        self._on_disk: set[str] = set()
        self._processes, self._sleepless = processes, frozenset(sleepless)
        self._pinned: set[str] = set()
        """Models whose weights have a place in host memory in any state."""
        for name in on_disk:
            if self.disk_used_bytes + models[name].weights_bytes > disk_bytes:
                raise ValueError(f"on_disk has {name}: disk_bytes, {disk_bytes}, does not hold it")
            self._on_disk.add(name)
            self._state[name] = Residence.DISK

    def state(self, model: str) -> Residence:
        return self._state[model]

    @property
    def states(self) -> dict[str, Residence]:
        """Least recently used first."""
        return dict(self._state)

    @property
    def gpu_used_bytes(self) -> int:
        """M_res: weights, contexts and pools of running models, contexts of sleeping ones."""
        used = 0
        for name, state in self._state.items():
            if state is Residence.RUNNING:
                used += self._running_bytes(name)
            elif state is Residence.SLEEPING:
                used += self._models[name].context_bytes
        return used

    @property
    def host_used_bytes(self) -> int:
        held = (Residence.SLEEPING, Residence.CPU)
        there = (name for name, state in self._state.items() if state in held or name in self._pinned)
        return sum(self._models[name].weights_bytes for name in there)

    @property
    def disk_used_bytes(self) -> int:
        return sum(self._models[name].weights_bytes for name in self._on_disk)

    def headroom_bytes(self, kv_used_bytes: int) -> int:
        """R_head = M_total - M_res - M_kv."""
        return self.gpu_bytes - self.gpu_used_bytes - kv_used_bytes

    def lacks_bytes(self, model: str) -> int:
        """What the model lacks of GPU memory to run, even without the contexts of all others that sleep; 0 or less:
        nothing. No KV is counted."""
        asleep = [name for name, state in self._state.items() if state is Residence.SLEEPING]
        needs = 0 if self._state[model] is Residence.RUNNING else self._running_bytes(model)
        return needs - self.headroom_bytes(0) - sum(self._models[name].context_bytes for name in asleep)

    def used(self, model: str) -> None:
        """Records that a stage of the model runs, so that it gives way last."""
        self._state.move_to_end(model)

    def activate(self, model: str, kv_bytes: int, busy: Collection[str] = ()) -> list[Move] | None:
        """Algorithm 1: makes the model run beside `kv_bytes` of KV memory, in use or about to be.

        `busy` models are not moved. Returns None, and changes nothing, if that is impossible.
        """
        before, disk, pinned = OrderedDict(self._state), set(self._on_disk), set(self._pinned)
        moves: list[Move] = []
        busy = {*busy, model}
        source = self._state[model]
        if source is not Residence.RUNNING:
            self._state[model] = Residence.RUNNING
        if not self._make_room(kv_bytes, busy, moves):
            self._state, self._on_disk, self._pinned = before, disk, pinned
            return None
        if source is not Residence.RUNNING:
            moves.append(Move(model, source, Residence.RUNNING, self._models[model].weights_bytes))
        self.used(model)
        return moves

    def found(self, model: str) -> None:
        """It runs already, and stays: whether there was room for it was not asked."""
        self._state[model] = Residence.RUNNING
        self.used(model)

    def sleep(self, model: str) -> list[Move]:
        """Level 1 of a degradation: an idle running model gives up its weights' memory."""
        moves: list[Move] = []
        if self._state[model] is Residence.RUNNING:
            self._to_host(model, Residence.SLEEPING, moves)
        return moves

    def evict_context(self, model: str) -> list[Move]:
        """Level 2: a sleeping model also gives up its context's memory."""
        if self._state[model] is not Residence.SLEEPING:
            return []
        if self._processes:
            return self.stop(model)
        self._state[model] = Residence.CPU
        return [Move(model, Residence.SLEEPING, Residence.CPU, 0)]

    def stop(self, model: str) -> list[Move]:
        """Level 3: a model gives up all of its memory."""
        moves: list[Move] = []
        if self._state[model] not in (Residence.DISK, Residence.REMOTE):
            self._to_disk(model, moves)
        return moves

    def _running_bytes(self, model: str) -> int:
        profile = self._models[model]
        return profile.weights_bytes + profile.context_bytes + profile.pool_bytes

    def _make_room(self, kv_bytes: int, busy: set[str], moves: list[Move]) -> bool:
        """Puts running models to sleep first, then evicts contexts of sleeping ones."""
        for victim in [n for n, s in self._state.items() if s is Residence.RUNNING and n not in busy]:
            if self.headroom_bytes(kv_bytes) >= 0:
                return True
            self._to_host(victim, Residence.SLEEPING, moves)
        for victim in [n for n, s in self._state.items() if s is Residence.SLEEPING and n not in busy]:
            if self.headroom_bytes(kv_bytes) >= 0:
                return True
            moves += self.evict_context(victim)
        return self.headroom_bytes(kv_bytes) >= 0

    def _to_host(self, model: str, target: Residence, moves: list[Move]) -> None:
        """Moves a model from the GPU to host memory, or below if host memory cannot hold it."""
        size = 0 if model in self._pinned else self._models[model].weights_bytes
        if model in self._sleepless or size > self._host_bytes_most():
            self._to_disk(model, moves)
            return
        for victim in [n for n, s in self._state.items() if s in (Residence.SLEEPING, Residence.CPU)]:
            if self.host_used_bytes + size <= self.host_bytes:
                break
            self._to_disk(victim, moves)
        moves.append(Move(model, self._state[model], target, self._models[model].weights_bytes))
        self._state[model] = target
        if self._processes:
            self._pinned.add(model)

    def _host_bytes_most(self) -> int:
        """Host memory that is free once nothing sleeps."""
        running = (name for name in self._pinned if self._state[name] is Residence.RUNNING)
        return self.host_bytes - sum(self._models[name].weights_bytes for name in running)

    def _to_disk(self, model: str, moves: list[Move]) -> None:
        """Moves a model to disk if it fits or is there already, else drops it. Its context goes as well."""
        size, source = self._models[model].weights_bytes, self._state[model]
        if model in self._on_disk:
            moves.append(Move(model, source, Residence.DISK, 0))
        elif self.disk_used_bytes + size <= self.disk_bytes:
            self._on_disk.add(model)
            moves.append(Move(model, source, Residence.DISK, size))
        else:
            moves.append(Move(model, source, Residence.REMOTE, 0))
        self._state[model] = Residence.DISK if model in self._on_disk else Residence.REMOTE
        self._pinned.discard(model)

"""A node: models in memory, KV of running stages, and one path between host memory and GPU."""

from __future__ import annotations

from typing import NamedTuple

from bench.sim.workflows.config import ClusterConfig
from bench.sim.workflows.models import MODELS
from mfsd.policy.workflow import (
    Candidate,
    Engine,
    EngineState,
    ModelProfile,
    Residence,
    Residency,
    activation_s,
    plan_degradation,
)

QUEUE_WEIGHT = 0.5
"""Weight of the current wait in the smoothed one; the paper gives no number."""


class Start(NamedTuple):
    """When a placed stage begins to compute, and whether a model had to move for it."""

    begin_s: float
    activated: bool


class Node:
    """All models are on its disk at the start. restart: one model at a time, and each switch starts a process."""

    def __init__(self, number: int, config: ClusterConfig, restart: bool = False) -> None:
        self.number, self._config, self._restart = number, config, restart
        self.rtt_s = config.remote_rtt_s if number >= config.nodes - config.remote_nodes else config.local_rtt_s
        self.residency = Residency(MODELS, config.gpu_bytes, config.host_bytes, config.disk_bytes, on_disk=MODELS)
        self.kv_bytes = 0
        """Reserved by running stages."""
        self.stages = dict.fromkeys(MODELS, 0)
        """Running stages, by model."""
        self._path_free_s = 0.0
        self._queue_s = dict.fromkeys(MODELS, 0.0)
        """Smoothed wait of each model's stages."""
        self._ready_s = dict.fromkeys(MODELS, 0.0)

    @property
    def running(self) -> int:
        return sum(self.stages.values())

    @property
    def busy(self) -> set[str]:
        return {name for name, count in self.stages.items() if count}

    def candidate(self, model: ModelProfile, need_bytes: int, now_s: float, interrupt_s: float) -> Candidate | None:
        """Returns the node as its runtime reports it for a stage; None if it has no slot, or not enough memory even
        with all idle models asleep."""
        if self.running >= self._config.slots or (self._restart and self.busy - {model.name}):
            return None
        state = self.residency.state(model.name)
        headroom = self.residency.headroom_bytes(self.kv_bytes)
        own = 0 if state is Residence.RUNNING else model.weights_bytes
        own += model.context_bytes if own and state is not Residence.SLEEPING else 0
        missing = need_bytes + own - headroom
        disruption_s, freed = 0.0, 0
        if missing > 0:
            host_free_bytes = self._config.host_bytes - self.residency.host_used_bytes
            plan = plan_degradation(missing, self._engines(model.name), host_free_bytes, interrupt_s)
            if plan is None:
                return None
            disruption_s, freed = plan.cost_s, plan.freed_bytes
        activation = activation_s(model, state, self._config.speeds)
        queue_s = max(0.0, (self._ready_s[model.name] if not own else self._path_free_s) - now_s)
        self._queue_s[model.name] += QUEUE_WEIGHT * (queue_s - self._queue_s[model.name])
        return Candidate(
            self.number,
            1e3 * self.rtt_s,
            headroom - own + freed,
            1e3 * self._queue_s[model.name],
            1e3 * activation,
            1e3 * disruption_s,
        )

    def start(self, model: ModelProfile, need_bytes: int, now_s: float) -> Start | None:
        """Makes the model run and reserves the KV memory; returns None if it cannot."""
        source = self.residency.state(model.name)
        if self._restart and source is not Residence.RUNNING:
            self._stop_others(model.name)
        moves = self.residency.activate(model.name, self.kv_bytes + need_bytes, self.busy)
        if moves is None:
            return None
        self.kv_bytes += need_bytes
        self.stages[model.name] += 1
        if source is not Residence.RUNNING:
            speeds = self._config.speeds
            out = sum(m.size_bytes for m in moves if m.model != model.name and m.target is not Residence.DISK)
            begin_s = max(now_s, self._path_free_s) + out / speeds.host_bytes_per_s
            took_s = activation_s(model, source, speeds)
            fixed_s = speeds.wake_s if source is Residence.SLEEPING else speeds.start_s
            self._path_free_s = begin_s + took_s - fixed_s
            self._ready_s[model.name] = begin_s + took_s
        return Start(max(now_s, self._ready_s[model.name]), source is not Residence.RUNNING)

    def ended(self, model: str, need_bytes: int) -> None:
        self.kv_bytes -= need_bytes
        self.stages[model] -= 1

    def grow(self, model: str, more_bytes: int) -> bool:
        """Reserves more KV, putting idle models to sleep if needed; returns whether there is room."""
        return self.residency.activate(model, self.kv_bytes + more_bytes, self.busy) is not None

    def _stop_others(self, model: str) -> None:
        for name, state in self.residency.states.items():
            if name != model and state is Residence.RUNNING:
                self.residency.sleep(name)
            self.residency.evict_context(name)

    def _engines(self, model: str) -> list[Engine]:
        """Returns what may give way: idle and sleeping models, least recently used first."""
        engines = []
        for name, state in self.residency.states.items():
            if name == model or self.stages[name] or state not in (Residence.RUNNING, Residence.SLEEPING):
                continue
            profile = MODELS[name]
            engines.append(
                Engine(
                    model=name,
                    state=EngineState.IDLE if state is Residence.RUNNING else EngineState.SLEEPING,
                    weights_bytes=profile.weights_bytes,
                    context_bytes=profile.context_bytes,
                    reload_s=activation_s(profile, Residence.SLEEPING, self._config.speeds),
                    restart_s=self._config.speeds.start_s,
                )
            )
        return engines

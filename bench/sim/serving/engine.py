"""The simulation's clock: calls arrive, replicas step, and ended calls let the next ones of their programs arrive."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from bench.sim.serving.config import Apart, NodeConfig, ReplicaConfig
from bench.sim.serving.handover import Handovers
from bench.sim.serving.keeper import Keeper, Stored
from bench.sim.serving.live import Live
from bench.sim.serving.node import Node
from bench.sim.serving.outcome import Outcome, Record
from bench.sim.serving.planner import Journal
from bench.sim.serving.replica import Replica
from bench.sim.serving.router import Router, round_robin
from bench.sim.serving.work import Call, Program
from mfsd.policy.serve import Policy, ProgramTable, ServeConfig

ARRIVES, RETURNS, STEPPED, READS, TICKS, MOVED, LOADED = range(7)
"""Kinds of events, in the order in which simultaneous ones are handled."""


class Snapshot(NamedTuple):
    """A replica as a controller sees it; `arrived` and `ended` since the last snapshot."""

    replica: int
    policy: Policy
    waiting: int
    running: int
    waiting_tokens: int
    """Prompt tokens still to compute."""
    kv_used_tokens: int
    kv_tokens: int | None
    arrived: tuple[Record, ...]
    """Filled in as the calls proceed, so a control may keep them."""
    ended: tuple[Record, ...]
    prefill_s_per_token: float
    """As the replica believes."""


Control = Callable[[float, Sequence[Snapshot]], Mapping[int, ServeConfig]]
"""Called at intervals with all replicas; returns which of them are to plan by another configuration."""


class _Item:
    """A call to serve, and the calls that wait for its end."""

    __slots__ = ("call", "followers", "last_s", "missing", "position", "program")

    def __init__(self, call: Call, program: int, position: int) -> None:
        self.call, self.program, self.position = call, program, position
        self.followers: list[int] = []
        self.missing = len(call.after) if program >= 0 else 0
        self.last_s = 0.0


class Simulation:
    def __init__(
        self,
        configs: Sequence[ReplicaConfig],
        work: Sequence[Call | Program],
        seed: int,
        router: Router,
        control: Control | None = None,
        control_every_s: float = 30.0,
        journal: Journal | None = None,
        programs: ProgramTable | None = None,
        apart: Apart | None = None,
        node: NodeConfig | None = None,
    ) -> None:
        table = ProgramTable(configs[0].service) if programs is None else programs
        self.replicas = [Replica(n, config, seed, table, journal) for n, config in enumerate(configs)]
        self._router, self._control, self._every_s, self._table = router, control, control_every_s, table
        self._items: list[_Item] = []
        self._names: list[str] = []
        self.records: list[Record] = []
        self._events: list[tuple[float, int, int, object]] = []
        self._number = self._sequence = self._open = 0
        self._arrived: list[list[Record]] = [[] for _ in configs]
        self._ended: list[list[Record]] = [[] for _ in configs]
        self.now_s = 0.0
        for thing in work:
            self._add(thing)
        heapify(self._events)
        for replica in self.replicas:
            replica.later = self._later(replica)
        self._keep()
        self._handovers: Handovers | None = None
        if apart is not None:
            if control is not None:
                raise ValueError(
                    "control: it rules replicas by calls that arrive and end there; use none, or not apart"
                )
            self._handovers = Handovers(apart, self.replicas, lambda at_s: self._push(at_s, MOVED, None))
        self._node: Node | None = None
        if node is not None:
            if apart is not None or any(config.store is not None for config in configs):
                raise ValueError("node: its engines have no prefill replicas and no store; leave these out")
            self._node = Node(node, self.replicas, lambda at_s, what: self._push(at_s, LOADED, what))
        if control is not None:
            self._push(control_every_s, TICKS, None)
        self._check(configs)

    def _add(self, thing: Call | Program) -> None:
        first = len(self._items)
        if isinstance(thing, Call):
            self._items.append(_Item(thing, -1, 0))
            self._events.append((thing.arrival_s, ARRIVES, first, first))
            return
        program = len(self._names)
        self._names.append(f"program {program}")
        for position, call in enumerate(thing.calls):
            self._items.append(_Item(call, program, position))
            for before in call.after:
                self._items[first + before].followers.append(first + position)
            if not call.after:
                at = thing.arrival_s + call.gap_s
                self._events.append((at, ARRIVES, first + position, first + position))

    def _check(self, configs: Sequence[ReplicaConfig]) -> None:
        self._sequence, self._open = len(self._items), len(self._items)
        self.records = [Record(call=n) for n in range(len(self._items))]
        room = min((c.kv_tokens for c in configs if c.kv_tokens is not None), default=None)
        for number, item in enumerate(self._items):
            if self._node is not None:
                self._node.serves(item.call)
            needs = item.call.prompt_tokens + item.call.output_tokens
            if room is not None and needs > room:
                raise ValueError(
                    f"call {number} needs {needs} tokens of KV: kv_tokens is {room}; use more, or leave it out"
                )

    def _push(self, at_s: float, kind: int, what: object) -> None:
        self._sequence += 1
        heappush(self._events, (at_s, kind, self._sequence, what))

    def _keep(self) -> None:
        """Gives replicas that have a store a shared one."""
        configs = [replica.config.store for replica in self.replicas]
        stored = next((Stored(config) for config in configs if config is not None), None)
        for replica, config in zip(self.replicas, configs, strict=True):
            if config is not None and stored is not None:
                memory, totals, token_s = replica.memory, replica.totals, replica.token_s
                wake = self._wakes(replica)
                replica.keeper = Keeper(replica.number, config, stored, memory, totals, token_s, replica.queue, wake)

    def _wakes(self, replica: Replica) -> Callable[[float], None]:
        return lambda at_s: self._push(at_s, READS, replica)

    def _later(self, replica: Replica) -> Callable[[float, Live], None]:
        return lambda at_s, live: self._push(at_s, RETURNS, (replica, live))

    def run(self, until_s: float | None) -> None:
        events, fresh = self._events, set[int]()
        while events and self._open:
            now_s, kind, _, what = heappop(events)
            if until_s is not None and now_s > until_s:
                self.now_s = until_s
                break
            self.now_s = now_s
            if kind == STEPPED:
                self._stepped(what, now_s)  # type: ignore[arg-type]
                fresh.add(what.number)  # type: ignore[attr-defined]
            elif kind == ARRIVES:
                fresh.add(self._arrive(what, now_s))  # type: ignore[arg-type]
            elif kind == READS:
                what.keeper.due(now_s)  # type: ignore[attr-defined]
                fresh.add(what.number)  # type: ignore[attr-defined]
            elif kind == RETURNS:
                fresh.add(self._returned(*what))  # type: ignore[misc]
            elif kind == MOVED:
                assert self._handovers is not None
                fresh |= self._handovers.due(now_s)
            elif kind == LOADED:
                assert self._node is not None
                fresh |= self._node.due(what, now_s)  # type: ignore[arg-type]
            else:
                self._tick(now_s)
            if events and events[0][0] == now_s:
                continue  # all simultaneous events are handled before any replica plans
            for number in sorted(fresh):
                replica = self.replicas[number]
                if not replica.busy:
                    end_s = replica.begin(now_s)
                    if end_s is not None:
                        self._push(end_s, STEPPED, replica)
            fresh.clear()
        for replica in self.replicas:
            replica.stop(self.now_s)

    def _arrive(self, number: int, now_s: float) -> int:
        item = self._items[number]
        call, program = item.call, item.program
        at, name = 0, self._names[program] if program >= 0 else ""
        if self._node is not None:
            at = self._node.serves(call)
        elif len(self.replicas) > 1:
            replicas = self.replicas
            at = self._router(call, name, lambda: [replica.view(call, name) for replica in replicas], self._table)
        record = self.records[number]
        record.program, record.position, record.replica, record.arrival_s = program, item.position, at, now_s
        record.tier, record.importance = call.tier, call.importance
        record.prompt_tokens, record.output_tokens = call.prompt_tokens, call.output_tokens
        record.ttft_slo_s, record.tbt_slo_s, record.ttlt_slo_s = call.ttft_s, call.tbt_s, call.ttlt_s
        live = Live(self._number, call, now_s, record, name)
        self._number += 1
        if self._control is not None:
            self._arrived[at].append(record)
        if self._node is not None:
            self._node.arrives(live, at, now_s)
        else:
            self.replicas[at].arrive(live, now_s)
        return at

    @staticmethod
    def _returned(replica: Replica, live: Live) -> int:
        replica.queue(live)
        return replica.number

    def _stepped(self, replica: Replica, now_s: float) -> None:
        for live in replica.finish(now_s):
            self._open -= 1
            if self._control is not None:
                self._ended[replica.number].append(live.record)
            returns_s = math.inf
            for follower in self._items[live.record.call].followers:
                item = self._items[follower]
                item.missing -= 1
                if item.missing == 0:
                    self._push(now_s + item.call.gap_s, ARRIVES, follower)
                    returns_s = min(returns_s, now_s + item.call.gap_s)
            if replica.keeper is not None:
                replica.keeper.ended(live, returns_s, now_s)
            if self._node is not None:
                self._node.ended(replica.number, now_s)
        if self._handovers is not None:
            self._handovers.stepped(replica, now_s)

    def _tick(self, now_s: float) -> None:
        assert self._control is not None
        for number, serve in self._control(now_s, [self._snapshot(replica) for replica in self.replicas]).items():
            self.replicas[number].rule(serve)
        self._push(now_s + self._every_s, TICKS, None)

    def _snapshot(self, replica: Replica) -> Snapshot:
        number = replica.number
        arrived, ended = tuple(self._arrived[number]), tuple(self._ended[number])
        self._arrived[number], self._ended[number] = [], []
        return Snapshot(
            number,
            replica.policy,
            len(replica.waiting),
            len(replica.prompts) + len(replica.decodes),
            replica.left_tokens,
            replica.kv_used,
            replica.kv_room,
            arrived,
            ended,
            replica.prefill_s_per_token,
        )


def simulate(
    config: ReplicaConfig | Sequence[ReplicaConfig],
    work: Sequence[Call | Program],
    seed: int = 1,
    *,
    replicas: int = 1,
    router: Router | None = None,
    until_s: float | None = None,
    control: Control | None = None,
    control_every_s: float = 30.0,
    journal: Journal | None = None,
    programs: ProgramTable | None = None,
    apart: Apart | None = None,
    node: NodeConfig | None = None,
) -> Outcome:
    """Serves the work: calls and programs in any mix and order. Raises ValueError if that cannot be simulated, or if a
    call exceeds the KV memory.

    config: of all replicas, or one for each; router: round robin by default; until_s: time to stop, where calls that
    have not ended are reported unfinished; control: asked every control_every_s which replicas change their
    configuration; journal: gets every view and plan (`replay`); programs: what calls inherit, by default what their
    programs have had; apart: some replicas compute prompts and the others decode, router then chooses among the former;
    node: each replica is the engine of a model and serves calls for it (`Call.model`), whatever the router.
    """
    began = time.process_time()
    configs = [config] * replicas if isinstance(config, ReplicaConfig) else list(config)
    if not configs:
        raise ValueError("config is empty: give one for each replica")
    simulation = Simulation(
        configs,
        work,
        seed,
        router or round_robin(apart.prefill if apart else len(configs)),
        control,
        control_every_s,
        journal,
        programs,
        apart,
        node,
    )
    simulation.run(until_s)
    return Outcome(
        seed=seed,
        records=simulation.records,
        replicas=[replica.totals for replica in simulation.replicas],
        end_s=simulation.now_s,
        cpu_s=time.process_time() - began,
    )

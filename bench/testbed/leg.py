"""One leg: one mode serves the requests of one round, from the start of its programs to the last byte."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.sim.cluster import Cluster, Request
from bench.sim.states import State
from bench.testbed.batches import Batch, Unit, batch_command, load_command, owner_host, rank_host, shipped_bytes
from bench.testbed.daemons import Daemons
from bench.testbed.hosts import Hosts, PortSample
from bench.testbed.marks import classes_of
from bench.testbed.modes import Mode
from bench.testbed.oracle import WEB, Oracle
from bench.testbed.placement import Placement, Ports
from bench.testbed.processes import LegError, Switchboard, Worker
from bench.testbed.scale import Scale
from bench.testbed.scenario import PREFILL_HOSTS, RANKS, UNITS, Scenario
from mfsd.policy.serve.fetch import Choice, ReuseRule, decide

DEVICE = "mfs0"
KV_QUEUE_PAIRS = 2
"""To each peer and class: as many as Mooncake's transfer engine opens to an endpoint."""
START_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 60.0
SAMPLE_NS = 100_000_000


class Served(msgspec.Struct):
    """What happened to a request. Times are of CLOCK_MONOTONIC."""

    number: int
    arrival_ns: int
    deadline_ns: int
    isolated_ns: int
    prefill_end_ns: int = 0
    kv_ns: int = 0
    kv_bytes: int = 0

    @property
    def first_token_ns(self) -> int:
        return max(self.prefill_end_ns, self.kv_ns)

    @property
    def done(self) -> bool:
        return self.prefill_end_ns > 0 and self.kv_ns > 0


class Load(msgspec.Struct):
    """Reused KV that a request fetched while it queued."""

    number: int
    size_bytes: int
    forecast_ns: int | None
    """Expected duration by the outlook page of the reader's daemon; None: unknown."""
    begun_ns: int
    ended_ns: int = 0
    asked_ns: int | None = None
    """The coordinator's answer, asked at the same moment as by a router; None: not asked, or unknown."""


class LegResult(msgspec.Struct):
    mode: str
    seed: int
    start_ns: int
    end_ns: int
    served: list[Served]
    collectives: list[tuple[int, int]]
    """When each began (its last rank had posted) and ended (its last rank had everything), ns."""
    port_bytes: dict[str, list[int]]
    """Bytes by class that the switch sent to each host."""
    samples: dict[str, list[PortSample]]
    workers_cpu_s: float
    mfs_cpu_s: float
    statistics: dict[str, int] = {}
    loads: list[Load] = []
    recomputed: int = 0
    """Requests that computed again what they could have fetched."""
    placed: dict[str, int] = {}
    """`Placement.counts` if decode workers are chosen by what their ports owe; else empty."""


Progress = Callable[[int, int], None]


class Leg:
    """Owns the programs of a leg. Use as a context manager; `run` serves the requests."""

    def __init__(
        self,
        hosts: Hosts,
        program: Path,
        mode: Mode,
        scenario: Scenario,
        cluster: Cluster,
        scale: Scale,
        oracle: bool = False,
    ) -> None:
        """`oracle`: the coordinator is also asked how long each load will take."""
        self.hosts, self.program, self.mode = hosts, program, mode
        self.scenario, self.cluster, self.scale = scenario, cluster, scale
        self.workers: list[Worker] = []
        self._oracle = Oracle() if oracle and mode.coordinator else None
        self._asked: dict[int, Future[int | None]] = {}
        self._ports: Ports | None = None
        self._placement = self._new_placement() if mode.by_backlog else None
        self._cleanup = ExitStack()
        self._classes_of = classes_of(mode, scenario, cluster)
        self._units = [Unit(cluster, scale, u, mode.scheduler) for u in range(UNITS)]
        self._rule = ReuseRule(mode.reuse)
        self._undecided: dict[int, State] = {}
        self._loads: dict[int, Load] = {}
        self._recomputed = 0
        self._served: dict[int, Served] = {}
        self._collectives: dict[int, list[list[int]]] = {}
        self._batches: dict[int, Batch] = {}
        self._result_collectives: list[tuple[int, int]] = []

    def __enter__(self) -> Leg:
        try:
            self._start()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def _new_placement(self) -> Placement:
        names = self.hosts.names[PREFILL_HOSTS : PREFILL_HOSTS + self.scenario.decode_hosts]
        return Placement([self.hosts.address(name) for name in names], round(self.scale.link_bits_per_s / 8))

    # ---- programs ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        tools = Path(sys.executable).parent
        prefill = self.hosts.names[:PREFILL_HOSTS]
        self.daemons = self._cleanup.enter_context(self._daemons(prefill))
        for index, name in enumerate(self.hosts.names):

            def launch(control: int, index: int = index, name: str = name) -> list[str]:
                inside = ["ip", "netns", "exec", self.hosts.namespace(name)]
                device = [str(tools / "mfs-soft-roce"), "--netdev", "eth0", "--device", DEVICE, "--"]
                preload = [str(tools / "mfs-run"), "--quiet", "--"] if self._asks(index) else []
                return [*inside, *device, *preload, *self._worker_command(index, name, control)]

            worker = Worker(name, launch, {"MFS_SOCKET": str(self.daemons.socket(name))})
            self.workers.append(worker)
            self._cleanup.callback(worker.stop, 1.0)
        self._board = Switchboard(self.workers)
        self._cleanup.callback(self._board.close)
        self._introduce()

    def _daemons(self, names: list[str]) -> Daemons:
        if self._oracle:
            self._cleanup.callback(self._oracle.close)
        if self._placement:
            self._ports = Ports(WEB)
            self._cleanup.callback(self._ports.close)
        asked = self._oracle or self._placement
        return Daemons(self.hosts, names, self.mode, DEVICE, self.scale, WEB if asked else "")

    def _asks(self, index: int) -> bool:
        """Whether the host posts work requests that a daemon schedules; the pool and decode workers post none."""
        return self.mode.scheduled and index < PREFILL_HOSTS

    def _worker_command(self, index: int, name: str, control: int) -> list[str]:
        mode = self.mode
        fixed = f"{mode.collective_class},{mode.reuse_class},{mode.collective_class},{mode.p2d_class}"
        command = [
            str(self.program),
            "--name",
            name,
            "--index",
            str(index),
            "--device",
            DEVICE,
            "--control",
            str(control),
        ]
        command += ["--dscp", ",".join(map(str, self.hosts.dscp)), "--classes", fixed]
        command += ["--message", str(self.scale.message_bytes), "--pool"]
        command += [",".join(map(str, self.scenario.pool_nics))]
        if self._asks(index):
            command.append("--scheduled")
        if not mode.apart:
            command.append("--one-lane")
        if mode.loads_alone:
            command.append("--loads-alone")
        if self.scenario.signals == "nccl":
            command.append("--nccl-signals")
        if index < PREFILL_HOSTS:
            command += ["--rank", str(index ^ 1)]
        for link in self._links(index):
            command += ["--link", link]
        return command

    def _links(self, index: int) -> list[str]:
        """Returns the queue pairs of a host, as main.c reads them."""

        def link(peer: int, stage: int, pairs: int, direction: str) -> str:
            lanes = self.mode.lanes(stage) if stage else [self.mode.collective_class]
            return f"{peer}:{stage}:{','.join(map(str, lanes))}:{pairs}:{direction}"

        ranks, pools = range(PREFILL_HOSTS), self.scenario.pool_nics
        if index in pools:
            return [link(rank, 1, KV_QUEUE_PAIRS, "serve") for rank in ranks]
        if index >= PREFILL_HOSTS:
            return [link(rank, 3, KV_QUEUE_PAIRS, "receive") for rank in ranks]
        decodes = range(PREFILL_HOSTS, PREFILL_HOSTS + self.scenario.decode_hosts)
        return [
            link(index ^ 1, 2, 1, "both"),
            *([link(index ^ 1, 0, 1, "control")] if self.scenario.signals == "nccl" else []),
            *(link(pool, 1, KV_QUEUE_PAIRS, "send") for pool in pools),
            *(link(decode, 3, KV_QUEUE_PAIRS, "send") for decode in decodes),
        ]

    def _introduce(self) -> None:
        """Passes every queue pair's address to its peer until all are connected."""
        deadline_ns = time.monotonic_ns() + int(START_TIMEOUT_S * 1e9)
        ready: set[int] = set()
        while len(ready) < len(self.workers):
            output = self._board.wait(deadline_ns)
            if not output and time.monotonic_ns() >= deadline_ns:
                missing = ", ".join(w.name for i, w in enumerate(self.workers) if i not in ready)
                raise LegError(f"{missing}: not connected after {START_TIMEOUT_S:.0f} s")
            for index, text in output:
                if text.startswith("to "):
                    _, peer, rest = text.split(" ", 2)
                    self.workers[int(peer)].tell(f"from {index} {rest}")
                elif text == "ready":
                    ready.add(index)

    # ---- serving -----------------------------------------------------------------------------------------------------

    def run(
        self,
        requests: list[Request],
        progress: Progress | None = None,
        watch: tuple[str, ...] = (),
        events: Sequence[tuple[float, Callable[[], None]]] = (),
    ) -> LegResult:
        """Serves all requests. Raises LegError if one is not served within a minute after the last arrival. `watch`:
        hosts whose switch port is sampled over time. `events`: what else is to happen, each with its time in
        seconds."""
        ports_before = {name: self.hosts.port_bytes(name) for name in self.hosts.names}
        workers_before_s, mfs_before_s = self._workers_cpu_s(), self.daemons.cpu_s()
        zero_ns = time.monotonic_ns() + 50_000_000
        arrivals = [(zero_ns + self.scale.ns(r.arrival_s), r) for r in requests]
        give_up_ns = arrivals[-1][0] + int(DRAIN_TIMEOUT_S * 1e9)
        samples: dict[str, list[PortSample]] = {name: [] for name in watch}
        next_sample_ns = zero_ns if watch else give_up_ns
        pending = sorted(events, key=lambda event: event[0])
        done, at = 0, 0
        while done < len(requests):
            now = time.monotonic_ns()
            while at < len(arrivals) and arrivals[at][0] <= now:
                self._arrived(arrivals[at][1], arrivals[at][0], zero_ns)
                at += 1
            if now >= next_sample_ns:
                for name in watch:
                    samples[name].append(PortSample(now, self.hosts.port_bytes(name)))
                next_sample_ns += SAMPLE_NS
            while pending and zero_ns + int(pending[0][0] * 1e9) <= now:
                pending.pop(0)[1]()
            if now >= give_up_ns:
                raise LegError(f"{self.mode.name}: {done} of {len(requests)} requests were served when time was up")
            wake_ns = min(arrivals[at][0] if at < len(arrivals) else give_up_ns, next_sample_ns)
            if pending:
                wake_ns = min(wake_ns, zero_ns + int(pending[0][0] * 1e9))
            for index, text in self._board.wait(wake_ns):
                done += self._heard(index, text, zero_ns)
                if progress:
                    progress(done, len(requests))
        end_ns = time.monotonic_ns()
        if not events:
            self.daemons.check()
        for number, load in self._loads.items():
            if number in self._asked:
                load.asked_ns = self._asked[number].result()
        return LegResult(
            mode=self.mode.name,
            seed=self.scenario.seed,
            start_ns=zero_ns,
            end_ns=end_ns,
            served=[self._served[r.number] for r in requests],
            collectives=self._result_collectives,
            port_bytes={
                name: [a - b for a, b in zip(self.hosts.port_bytes(name), before, strict=True)]
                for name, before in ports_before.items()
            },
            samples=samples,
            workers_cpu_s=self._workers_cpu_s() - workers_before_s,
            mfs_cpu_s=self.daemons.cpu_s() - mfs_before_s,
            statistics=self._statistics(),
            loads=list(self._loads.values()),
            recomputed=self._recomputed,
            placed=self._placement.counts if self._placement else {},
        )

    def _workers_cpu_s(self) -> float:
        return sum(w.cpu_s() for w in self.workers)

    def _statistics(self) -> dict[str, int]:
        """Returns the counters of the prefill workers, added up."""
        total: dict[str, int] = {}
        for worker in self.workers[:PREFILL_HOSTS]:
            worker.tell("statistics")
        received, deadline_ns = 0, time.monotonic_ns() + int(START_TIMEOUT_S * 1e9)
        while received < PREFILL_HOSTS:
            output = self._board.wait(deadline_ns)
            if not output:
                raise LegError("a worker does not tell its statistics")
            for _, text in output:
                kind, *words = text.split()
                received += kind == "statistics"
                for name, value in zip(words[::2], words[1::2], strict=True):
                    total[name] = total.get(name, 0) + int(value)
        return total

    def _arrived(self, request: Request, arrival_ns: int, zero_ns: int) -> None:
        self._served[request.number] = Served(
            request.number,
            arrival_ns,
            arrival_ns + self.scale.ns(request.budget_s),
            self.scale.ns(request.isolated_s),
        )
        expected = shipped_bytes(self.cluster, self.scale, request)
        if self._placement:
            reading = self._ports.latest if self._ports else None
            request = self._placement.place(request, expected, reading, time.monotonic_ns())
        self.workers[PREFILL_HOSTS + request.decode].tell(f"expect {request.number} {expected}")
        unit = self._units[request.unit]
        state = unit.arrived(request)
        if unit.loads_first and request.remote_tokens:
            self._ask(unit, state, zero_ns)
        if unit.running is None:
            self._next(unit, zero_ns)

    # ---- reuse that is loaded while a request queues -----------------------------------------------------------------

    def _now_s(self, zero_ns: int) -> float:
        """Returns the time in the cluster's seconds."""
        return (time.monotonic_ns() - zero_ns) / 1e9 / self.scale.time

    def _ask(self, unit: Unit, state: State, zero_ns: int) -> None:
        """Asks the reader, which knows what its daemon's page shows; without a daemon nothing is known."""
        request = state.request
        if not self.mode.scheduled:
            self._load(unit, state, None, zero_ns)
            return
        self._undecided[request.number] = state
        needed_ns = max(1, zero_ns + self.scale.ns(unit.needed_s(state, self._now_s(zero_ns))))
        owner, reader = owner_host(request), rank_host(unit.number, request.group)
        size = unit.load_bytes(request) * self.cluster.model.layers
        self.workers[reader].tell(f"forecast {request.number} {owner} {size} {needed_ns}")
        if self._oracle:
            ends = [self.hosts.address(self.hosts.names[host]) for host in (owner, reader)]
            self._asked[request.number] = self._oracle.ask(ends[0], ends[1], size, needed_ns)

    def _decide(self, number: int, forecast_ns: int, zero_ns: int) -> None:
        state = self._undecided.pop(number)
        unit = self._units[state.request.unit]
        known = forecast_ns if forecast_ns >= 0 else None
        fetch_s = None if known is None else known / 1e9 / self.scale.time
        if decide(self._rule, unit.view_of(state, fetch_s, self._now_s(zero_ns))).choice is not Choice.RECOMPUTE:
            self._load(unit, state, known, zero_ns)
            return
        self._recomputed += 1
        unit.recompute(state)
        if unit.running is None:
            self._next(unit, zero_ns)

    def _load(self, unit: Unit, state: State, forecast_ns: int | None, zero_ns: int) -> None:
        request, layers = state.request, self.cluster.model.layers
        size = unit.load_bytes(request)
        self._loads[request.number] = Load(request.number, size * layers, forecast_ns, time.monotonic_ns())
        needed_s, reuse_class = unit.needed_s(state, self._now_s(zero_ns)), self._classes_of(request)[0]
        self.workers[rank_host(unit.number, request.group)].tell(
            load_command(request, size, layers, self.scale, zero_ns, needed_s, reuse_class)
        )

    def _loaded(self, number: int, at_ns: int, host: int, zero_ns: int) -> None:
        self._loads[number].ended_ns = at_ns
        unit = self._units[host // RANKS]
        unit.loaded(number)
        if unit.running is None:
            self._next(unit, zero_ns)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _next(self, unit: Unit, zero_ns: int) -> None:
        batch = unit.next_batch(self._now_s(zero_ns))
        if batch is None:
            return
        self._batches[batch.number] = batch
        self._collectives[batch.number] = []
        wire_s = unit.wire_s(batch)
        for rank in range(RANKS):
            self.workers[rank_host(unit.number, rank)].tell(
                batch_command(batch, rank, self.scale, zero_ns, wire_s, self._classes_of)
            )
        if self._placement:
            now_ns = time.monotonic_ns()
            for part in batch.requests:
                self._placement.begun(part.request.number, part.push_bytes * batch.layers, now_ns)

    def _heard(self, index: int, text: str, zero_ns: int) -> int:
        """Handles a message of a worker; returns how many requests are served by it."""
        kind, _, rest = text.partition(" ")
        if kind == "kv":
            number, at_ns, size = map(int, rest.split())
            served = self._served[number]
            served.kv_ns, served.kv_bytes = at_ns, size
            if self._placement:
                self._placement.arrived(number)
            return int(served.done)
        if kind == "end":
            number, at_ns, *times = map(int, rest.split())
            batch = self._batches[number]
            batch.ended_ns.append(at_ns)
            self._collectives[number].append(times)
            return self._ended(batch, zero_ns) if len(batch.ended_ns) == RANKS else 0
        if kind == "forecast":
            number, forecast_ns = map(int, rest.split())
            self._decide(number, forecast_ns, zero_ns)
            return 0
        if kind == "loaded":
            number, at_ns = map(int, rest.split())
            self._loaded(number, at_ns, index, zero_ns)
            return 0
        raise LegError(f"{self.workers[index].name} says what the controller does not know: {text[:80]}")

    def _ended(self, batch: Batch, zero_ns: int) -> int:
        unit = self._units[batch.unit]
        unit.ended(self._now_s(zero_ns))
        self._next(unit, zero_ns)
        by_rank = self._collectives.pop(batch.number)
        # Each rank reports start, end, start, end ...: a collective began when the last rank had posted.
        latest = [max(times) for times in zip(*by_rank, strict=True)]
        self._result_collectives += zip(latest[::2], latest[1::2], strict=True)
        done = 0
        for part in batch.requests:
            if part.is_last:
                served = self._served[part.request.number]
                served.prefill_end_ns = max(batch.ended_ns)
                done += int(served.done)
        return done

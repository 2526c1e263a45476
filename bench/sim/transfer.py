"""`--router transfer`: each request goes, as it arrives, to the unit that production's rule of that name chooses then:
the least sum of wait, owed bytes and fetch.

The contents of a unit's queue are known exactly. What ports owe is known as the outlook says; `local` covers the ports
by which a unit receives, as reported to the gateway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bench.sim.cluster import Cluster, Request
from bench.sim.owed import Loads, OwedLoads
from bench.sim.reuse import ReuseConfig, error_of
from bench.sim.routing import Arriving, Fetched, loads_of, turns
from mfsd.policy.route import Call, Replica, Router, choose

if TYPE_CHECKING:
    from bench.sim.states import Batch, State

NS_PER_S = 1e9


class Engine(Protocol):
    """The part of the simulation that the router reads."""

    cluster: Cluster
    now: float
    early_fetch: bool
    queues: list[deque[State]]
    running: list[Batch | None]

    def next_group(self, unit: int) -> int: ...
    def until_layer_s(self, batch: Batch, layer: int) -> float: ...
    def reuse_left(self, state: State) -> float: ...


class Port(NamedTuple):
    """The link by which a fetch would end last."""

    rate: float  # bytes/s
    owed: float
    fetched: float  # bytes of the fetch itself that it carries

    @property
    def seconds(self) -> float:
        return (self.owed + self.fetched) / self.rate


class Transfer:
    """The choice for one part of the cluster."""

    def __init__(self, simulation: Engine, cluster: Cluster, config: ReuseConfig, owed: OwedLoads) -> None:
        self.simulation = simulation
        self.cluster = cluster
        self.config = config
        self.owed = owed

    def __call__(self, arriving: Arriving, fetched: Callable[[int], Fetched]) -> int:
        known = self.owed.known() if self.config.outlook != "none" else {}
        units = list(turns(self.cluster.units, arriving.shift))
        replicas = [
            self._replica(f"{turn:06}", self._request(arriving, unit, fetched(unit)), known)  # equal ones in that order
            for turn, unit in enumerate(units)
        ]
        choice = choose(Router.TRANSFER, Call(prompt_tokens=arriving.row.input_tokens), replicas)
        assert choice.replica is not None  # all are healthy and none is full
        return units[int(choice.replica)]

    def _request(self, arriving: Arriving, unit: int, fetched: Fetched) -> Request:
        """Returns the request as it would be at that unit."""
        nics, tokens = fetched
        number = self.cluster.first_unit + unit
        return Request(
            number=arriving.number,
            arrival_s=arriving.row.arrival_s,
            new_tokens=arriving.new_tokens,
            context_tokens=arriving.cached,
            unit=number,
            group=self.simulation.next_group(number),
            decode=0,
            owners=tuple(sorted(nics.items())),
            remote_tokens=tokens,
        )

    def _replica(self, name: str, request: Request, known: Loads) -> Replica:
        port = self._slowest(request, known)
        return Replica(
            name=name,
            wait_ns=round(NS_PER_S * self._wait_s(request.unit)),
            fetch_tokens=request.remote_tokens,
            fetch_bytes=round(port.fetched),
            port_rate_bytes_per_s=max(1, round(port.rate / error_of(self.config, request))),
            owed_bytes=round(port.owed),
        )

    def _slowest(self, request: Request, known: Loads) -> Port:
        """Returns the slowest of the ports by which the unit receives, and of the links of its fetch."""
        cluster, topology = self.cluster, self.cluster.topology
        loads = loads_of(cluster, request)
        own = {topology.nics + topology.port(nic) for nic in cluster.group_nics(request.unit, request.group)}
        seen = own if self.config.outlook == "local" else own | loads.keys()
        return max(
            (
                Port(topology.capacities[link], known.get(link, 0.0) if link in seen else 0.0, loads.get(link, 0.0))
                for link in sorted(own | loads.keys())
            ),
            key=lambda port: port.seconds,
        )

    def _wait_s(self, unit: int) -> float:
        """Returns the time until the unit has computed what it has, in batches formed first come first served."""
        cluster, seconds = self.cluster, 0.0
        running = self.simulation.running[unit]
        if running is not None:
            seconds = self.simulation.until_layer_s(running, running.layers)
        batch: list[tuple[int, int]] = []
        room = cluster.config.batch_tokens
        for state in self.simulation.queues[unit]:
            new = state.request.new_tokens - state.done_tokens
            if batch and new > room:
                seconds += cluster.batch_s(batch)
                batch, room = [], cluster.config.batch_tokens
            batch.append((new, state.request.context_tokens + state.done_tokens))
            room -= new
        return seconds + (cluster.batch_s(batch) if batch else 0.0)

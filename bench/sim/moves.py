"""Weights and swapped KV that move while requests are served.

A model that is started on a unit gets its weights from the memory of another server, and swapped KV is moved back.
These are transfers of gigabytes for which no layer of any batch waits, each with a deadline of its own. They come at
random, from a group of GPUs to one of another unit. MFS sends them as flows of the background class with that deadline
(mfsd.policy.workflow.flows). A program that marks all of its KV alike sends them as loads.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from bench.sim.states import QUEUED, Batch, Flow
from mfsd.policy.types import Stage

if TYPE_CHECKING:
    from bench.sim.cluster import Cluster
    from bench.sim.network import Network
    from bench.sim.topology import Path

MARKS = {"background": Stage.BACKGROUND, "load": Stage.REUSE}
"""How moves are marked."""


class Move(Flow):
    """All of one move; `message_bytes` are its bytes."""

    __slots__ = ("deadline_s", "mark", "owner")

    def __init__(self, path: Path, size: float, number: int, nowhere: Batch, mark: Stage, owner: MoveOwner) -> None:
        super().__init__(Stage.BACKGROUND, path, nowhere, None, size, number)
        self.mark = mark
        self.owner = owner
        self.deadline_s = 0.0


class MoveOwner(Protocol):
    """What has sent a move."""

    def ended(self, move: Move) -> None:
        """All of it has arrived."""


def nowhere(cluster: Cluster) -> Batch:
    """Returns a batch for moves, which belong to none that a queue knows."""
    batch = Batch(0, 0, [], cluster)
    batch.step = QUEUED
    return batch


class Events(Protocol):
    """The part of a simulation that moves need."""

    cluster: Cluster
    network: Network
    policy: Any
    now: float
    unfinished: int

    def at(self, time: float, act: Callable[[Any], None], what: Any) -> None: ...


class Moves:
    """The moves of one simulation; the same for every policy."""

    def __init__(self, simulation: Events) -> None:
        cluster = simulation.cluster
        config = cluster.config
        self.simulation = simulation
        self.mark = MARKS[config.moves_as]
        self.due = config.moves_due
        self.bytes_per_nic = config.moves_gb_per_nic * 1e9
        self.random = random.Random(f"moves {cluster.seed}")
        self.groups = [
            cluster.of(unit).group_nics(unit, group)
            for unit in range(cluster.all_units)
            for group in range(cluster.of(unit).model.groups)
        ]
        ports = cluster.topology.ports(range(cluster.topology.prefill_nics))
        per_move = self.bytes_per_nic * len(self.groups[0])
        self.pause_s = per_move / (config.moves_share * ports * cluster.link)
        self.nowhere = nowhere(cluster)
        self.number = 0
        self.begun: list[Move] = []
        self.took_s: dict[Move, float] = {}
        simulation.at(self.random.expovariate(1.0 / self.pause_s), self._begin, None)

    def _begin(self, _: object) -> None:
        simulation = self.simulation
        if not simulation.unfinished:
            return
        source, target = self.random.sample(self.groups, 2)
        pairs = [(out, into, 1.0 / len(target)) for out, into in zip(source, target, strict=True)]
        self.number += 1
        path = simulation.cluster.topology.path(pairs, connections=1.0, salt=self.number)
        move = Move(path, self.bytes_per_nic * len(target), self.number, self.nowhere, self.mark, self)
        move.posted_s = simulation.now
        move.deadline_s = simulation.now + self.due * move.message_bytes / path.isolated_rate
        move.order = simulation.policy.order_move(move)
        self.begun.append(move)
        simulation.network.send(move, move.message_bytes)
        simulation.at(simulation.now + self.random.expovariate(1.0 / self.pause_s), self._begin, None)

    def ended(self, move: Move) -> None:
        self.took_s[move] = self.simulation.now - move.posted_s
        self.simulation.network.end(move)

    def measure(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Returns, of the moves that began between these times, their number, how many were in time, and how long they
        took."""
        moves = [move for move in self.begun if begin_s <= move.posted_s <= end_s]
        took = [self.took_s[move] for move in moves]
        met = sum(move.posted_s + self.took_s[move] <= move.deadline_s for move in moves)
        return {
            "count": len(moves),
            "in_time": round(met / len(moves), 6) if moves else 1.0,
            "mean_s": round(sum(took) / len(took), 9) if took else 0.0,
        }

"""Units of the layer-level simulator that have memory for some of their models and switch between them.

The rules are production's (bench.sim.residents). A request waits until its unit runs its model: its reuse is not asked
for and it is in no batch before. Where weights come from another unit, each attention group of the unit gets its part
from the group at the same place of one other unit, drawn for each activation. These are the flows that
`mfsd.policy.workflow.weight_flows` gives, with its deadline: they are due when the most urgent request that waits must
begin to meet its own deadline, less what comes after them in the node. Where that can be met no more, they are due
after `moves_due` times what they take alone, as moves are (bench.sim.moves). What then is loaded to the GPUs, and what
gives way to host memory, crosses no NIC.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from bench.sim.moves import MARKS, Events, Move, nowhere
from bench.sim.residents import Residents
from bench.sim.states import State
from bench.sim.unit_models import UnitModels, profile_of
from mfsd.policy.workflow import Move as Change
from mfsd.policy.workflow import Residence, Residency, activation_s, weight_flows

if TYPE_CHECKING:
    from bench.sim.topology import Path


class Switching(Events, Protocol):
    """The part of a simulation that activations need."""

    def enqueue(self, state: State) -> None: ...


def name_of(model: int) -> str:
    return f"model {model}"


def of_one_model(ready: Sequence[State]) -> list[State]:
    """Returns those that can share a batch with the first one."""
    return [state for state in ready if state.request.model == ready[0].request.model]


class Activation:
    """A model that a unit begins to run."""

    def __init__(self, model: str, begun_s: float, after_s: float) -> None:
        self.model, self.begun_s = model, begun_s
        self.after_s = after_s  # from the last byte over the network until it runs
        self.due_s: float | None = None  # of its bytes that cross the network
        self.moving = 0  # flows that have not arrived
        self.there_s = begun_s
        self.runs_s = 0.0


class Activations:
    """The models of all units."""

    def __init__(self, simulation: Switching, models: UnitModels) -> None:
        self.simulation = simulation
        self.begun: list[Activation] = []
        self.waited_s: list[tuple[float, float]] = []
        """Of every request: its arrival, and how long it waited for its model."""
        self.units = [_Unit(self, simulation, unit, models) for unit in range(simulation.cluster.units)]

    def arrives(self, state: State) -> None:
        unit = self.units[state.request.unit]
        unit.residents.arrives(name_of(state.request.model), state, self.simulation.now)

    def computed(self, state: State) -> None:
        unit = self.units[state.request.unit]
        unit.residents.ended(name_of(state.request.model), self.simulation.now)

    def measure(self, begin_s: float, end_s: float) -> dict[str, float]:
        """Returns, of the activations that began between these times, how many, their mean time, and the share whose
        weights crossed the network in time; of the requests that came then, the share that waited for a model, and how
        long those did."""
        begun = [one for one in self.begun if begin_s <= one.begun_s <= end_s]
        sent = [one for one in begun if one.due_s is not None]
        met = sum(one.there_s <= one.due_s for one in sent if one.due_s is not None)
        waits = [waited for arrival, waited in self.waited_s if begin_s <= arrival <= end_s]
        long = [waited for waited in waits if waited > 0]
        return {
            "count": len(begun),
            "mean_s": _mean([one.runs_s - one.begun_s for one in begun]),
            "network_s": _mean([one.there_s - one.begun_s for one in sent]),
            "in_time": round(met / len(sent), 6) if sent else 1.0,
            "waiting": round(len(long) / len(waits), 6) if waits else 0.0,
            "wait_s": _mean(long),
        }


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 9) if values else 0.0


class _Unit:
    """One unit's models: a place of `Residents`."""

    def __init__(self, all_: Activations, simulation: Switching, unit: int, models: UnitModels) -> None:
        cluster = simulation.cluster
        self.all, self.simulation, self.unit = all_, simulation, unit
        self.mark, self.due = MARKS[cluster.config.moves_as], cluster.config.moves_due
        self.profile, self.speeds = profile_of(cluster.model), cluster.unit_speeds(models)
        weights = self.profile.weights_bytes
        names = dict.fromkeys((name_of(model) for model in range(models.count)), self.profile)
        in_host = models.weights_from == "host"
        memory = Residency(names, models.running * weights, in_host * models.count * weights, 0)
        for name in names if in_host else ():
            memory.found(name)
            memory.sleep(name)
        self.nowhere = nowhere(cluster)
        self.random = random.Random(f"weights {cluster.seed} {unit}")
        self.loading: dict[Move, Activation] = {}
        self.residents: Residents[State] = Residents(self, names, memory, weights)

    # -- a place

    def give(self, model: str, asked: State, now_s: float) -> None:
        arrival_s = asked.request.arrival_s
        self.all.waited_s.append((arrival_s, now_s - arrival_s))
        self.simulation.enqueue(asked)

    def load(self, model: str, moves: Sequence[Change], now_s: float) -> None:
        source = next(move.source for move in moves if move.model == model)
        remote = source is Residence.REMOTE
        # What has crossed the network is in host memory.
        after_s = activation_s(self.profile, Residence.CPU if remote else source, self.speeds)
        activation = Activation(model, now_s, after_s)
        self.all.begun.append(activation)
        paths = self._paths() if remote else []
        for flow in weight_flows(moves, self._due_s(activation, paths)):
            if flow.over_network:
                activation.due_s = flow.deadline_s
                self._send(activation, flow.size_bytes, paths)
        if not activation.moving:
            self._arrived(activation)

    def stop(self, model: str) -> None:
        """Nothing to do: KV lies in host memory."""

    def check_at(self, at_s: float) -> None:
        self.simulation.at(at_s, self._check, None)

    # -- weights

    def _due_s(self, activation: Activation, paths: Sequence[Path]) -> float:
        alone_s = max((self.profile.weights_bytes / len(paths) / path.isolated_rate for path in paths), default=0.0)
        waiting = [state.request for state in self.residents.waiting(activation.model)]
        due_s = min(one.deadline_s - one.isolated_s for one in waiting) - activation.after_s
        now_s = activation.begun_s
        return due_s if due_s >= now_s + alone_s else now_s + self.due * alone_s

    def _paths(self) -> list[Path]:
        """Returns a path for each group, from the same group of another unit."""
        cluster = self.simulation.cluster
        other = self.random.randrange(cluster.units - 1)
        source = other + (other >= self.unit)
        salt = len(self.all.begun)
        paths = []
        for group in range(cluster.model.groups):
            into = cluster.group_nics(self.unit, group)
            out = cluster.group_nics(source, group)
            pairs = [(one, other, 1.0 / len(into)) for one, other in zip(out, into, strict=True)]
            paths.append(cluster.topology.path(pairs, connections=1.0, salt=salt))
        return paths

    def _send(self, activation: Activation, size_bytes: int, paths: Sequence[Path]) -> None:
        simulation = self.simulation
        assert activation.due_s is not None
        for path in paths:
            move = Move(path, size_bytes / len(paths), len(self.all.begun), self.nowhere, self.mark, self)
            move.posted_s = simulation.now
            move.deadline_s = activation.due_s
            move.order = simulation.policy.order_move(move)
            self.loading[move] = activation
            activation.moving += 1
            simulation.network.send(move, move.message_bytes)

    def ended(self, move: Move) -> None:
        self.simulation.network.end(move)
        activation = self.loading.pop(move)
        activation.moving -= 1
        if not activation.moving:
            self._arrived(activation)

    def _arrived(self, activation: Activation) -> None:
        now_s = self.simulation.now
        activation.there_s = now_s
        activation.runs_s = now_s + activation.after_s
        self.simulation.at(activation.runs_s, self._runs, activation)

    def _runs(self, activation: Activation) -> None:
        self.residents.loaded(activation.model, self.simulation.now)

    def _check(self, _: object) -> None:
        self.residents.hold_for_waiting(self.simulation.now)

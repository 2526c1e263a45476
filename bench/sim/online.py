"""Gives requests their units as they arrive, not before the run (for values of `--router` other than locality).

Requests keep the decode worker and the deadline that they have with `--router locality`: a request that fetches less
does not get less time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from bench.sim.cluster import Cluster, ConfigError
from bench.sim.owed import OwedLoads
from bench.sim.reuse import ReuseConfig
from bench.sim.routing import Arrivals, Choose, Locality, loads_of
from bench.sim.transfer import Engine, Transfer

if TYPE_CHECKING:
    from bench.sim.states import State
    from bench.sim.workload import Row


class OnlineRouter:
    """Gives requests their units during a run. `rows`: of each part of the cluster, history first."""

    def __init__(self, simulation: Engine, config: ReuseConfig, rows: Sequence[Sequence[Row]], seed: int) -> None:
        cluster = simulation.cluster
        if not simulation.early_fetch:
            raise ConfigError(
                f"--router {config.router} --fetch {cluster.config.fetch}: which ports a request loads by must be "
                "known when it arrives; use --fetch loaded or queued"
            )
        self.simulation = simulation
        self.config = config
        self.owed = OwedLoads(simulation, config.age_s if config.outlook == "coordinator" else 0.0)
        self._choices = [self._choice(part) for part in cluster.parts]
        self._arrivals = [Arrivals(part, seed) for part in cluster.parts]
        self._rows: list[deque[Row]] = []
        for arrivals, of_part in zip(self._arrivals, rows, strict=True):
            self._rows.append(deque(row for row in of_part if row.arrival_s >= 0))
            for row in of_part:
                if row.arrival_s < 0:
                    arrivals.before_run(row)

    def _choice(self, part: Cluster) -> Choose:
        price = self.config.locality_price
        return Transfer(self.simulation, part, self.config, self.owed) if price is None else Locality(part, price)

    def place(self, state: State) -> None:
        """Sends the part's next request, which arrives now, to a unit."""
        cluster, before = state.cluster, state.request
        row = self._rows[cluster.number].popleft()
        sent = self._arrivals[cluster.number].arrive(row, self._choices[cluster.number])
        state.request = msgspec.structs.replace(
            before,
            unit=sent.unit,
            new_tokens=sent.new_tokens,
            context_tokens=sent.context_tokens,
            owners=sent.owners,
            remote_tokens=sent.remote_tokens,
            isolated_s=cluster.isolated_s(sent),
        )
        group = self.simulation.next_group(sent.unit)
        self.owed.sent(state, loads_of(cluster, msgspec.structs.replace(sent, group=group)))

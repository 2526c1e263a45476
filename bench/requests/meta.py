"""H-MAS' meta controller over simulated replicas: takes records, returns the next configuration."""

from __future__ import annotations

from collections.abc import Sequence

from bench.sim.serving import Control, Record, Snapshot
from bench.sim.serving.measure import first_late, tbt_s
from mfsd.policy.serve import ServeConfig
from mfsd.policy.serve.meta import MetaConfig, MetaState, Qos, Views, configured, decide
from mfsd.policy.serve.perceive import Outputs, cost_of

TICK_S = 1.0
PRIOR_TOKENS = 256.0


class Controller:
    """The controller of one replica; `tick` is called every TICK_S."""

    def __init__(self, config: MetaConfig, base: ServeConfig) -> None:
        self._config, self._base, self._now = config, base, base
        self._state = MetaState()
        self._qos = Qos(config)
        self._outputs = Outputs()
        self._undecided: dict[int, tuple[Record, float]] = {}
        """Calls whose first token is neither there nor late, with their T_tot."""
        self._waiting: dict[int, Record] = {}
        self.views = Views()
        """The latest."""

    def tick(self, now_s: float, seen: Snapshot) -> ServeConfig | None:
        for record in seen.arrived:
            self._came(record, now_s, seen.prefill_s_per_token)
        for number, (record, service_s) in list(self._undecided.items()):
            late = first_late(record) if record.first_token_s is not None else _overdue(record, now_s)
            if late or record.first_token_s is not None:
                self._qos.evaluated(now_s, record.tier, service_s, late)
                del self._undecided[number]
        for number, record in list(self._waiting.items()):
            if record.first_token_s is not None:
                self._qos.first_token(now_s, record.first_token_s - record.arrival_s)
                del self._waiting[number]
        for record in seen.ended:
            mean = tbt_s(record)
            slow = record.tbt_slo_s is not None and mean is not None and mean > record.tbt_slo_s
            self._qos.ended(now_s, not slow and not first_late(record), slow)
            self._outputs.ended(record.tier, record.tier, record.produced)
        return self._decided(now_s, seen.prefill_s_per_token)

    def _came(self, record: Record, now_s: float, each: float) -> None:
        perceived = self._outputs.perceive(record.tier, record.tier, None, PRIOR_TOKENS)
        cost = cost_of(
            record.arrival_s,
            record.prompt_tokens,
            perceived.output_tokens,
            record.ttft_slo_s or 0.0,
            record.tbt_slo_s or 0.0,
            each,
            self._base.decode_step_s,
        )
        self._qos.arrived(now_s, cost.total_s, perceived.known)
        self._undecided[record.call] = (record, cost.total_s)
        self._waiting[record.call] = record

    def _decided(self, now_s: float, each: float) -> ServeConfig | None:
        waiting = [r for r in self._waiting.values() if not _overdue(r, now_s)]
        queued_s = each * sum(r.prompt_tokens - r.computed_tokens for r in waiting)
        tightest_s = min((r.ttft_slo_s for r in waiting if r.ttft_slo_s is not None), default=0.0)
        self.views = self._qos.views(now_s, queued_s, tightest_s)
        decision, self._state = decide(self._config, self._state, self.views, now_s)
        if decision.decided:
            self._qos.decided()
        wanted = configured(self._base, decision)
        if wanted == self._now:
            return None
        self._now = wanted
        return wanted


def _overdue(record: Record, now_s: float) -> bool:
    return record.ttft_slo_s is not None and now_s > record.arrival_s + record.ttft_slo_s


def control(config: MetaConfig, base: ServeConfig) -> Control:
    """Returns a control of all replicas, with one controller each. `base` gives everything but the order."""
    of: dict[int, Controller] = {}

    def asked(now_s: float, replicas: Sequence[Snapshot]) -> dict[int, ServeConfig]:
        wanted = {
            seen.replica: of.setdefault(seen.replica, Controller(config, base)).tick(now_s, seen) for seen in replicas
        }
        return {replica: serve for replica, serve in wanted.items() if serve is not None}

    return asked

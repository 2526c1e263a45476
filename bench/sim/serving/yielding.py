"""Running calls that give their slots to calls of programs which have had less (Agentix 4.2, preemption)."""

from __future__ import annotations

from bench.sim.serving.live import Serving
from bench.sim.serving.planner import described
from mfsd.policy.serve import ServeConfig
from mfsd.policy.serve.programs import queue_of


def give_way(replica: Serving, serve: ServeConfig, now_s: float) -> None:
    """While all slots are taken and a waiting call is in an earlier queue than a running decode, evicts the decode of
    the latest queue, the youngest first."""
    free = serve.requests_max - len(replica.decodes) - len(replica.prompts)

    def queue(live: object) -> int:
        return queue_of(serve, described(live, replica.round, replica.busy_s, now_s))  # type: ignore[arg-type]

    waiting = sorted(queue(live) for live in replica.waiting.values())[max(0, free) :]
    running = sorted(((queue(live), n) for n, live in replica.decodes.items()), reverse=True)
    for (late, number), early in zip(running, waiting, strict=False):
        if early >= late:
            return
        replica.evict(replica.decodes[number], replica.config.eviction, now_s)

"""State that the gateway's pages share: settings, replicas, programs, the queue and counters."""

from __future__ import annotations

import asyncio
import math

import aiohttp

from mfsd.policy.route import Router
from mfsd.policy.serve import ProgramTable
from mfsd.serve.gateway.admission import Admission
from mfsd.serve.gateway.answer import Refused
from mfsd.serve.gateway.metrics import Metrics
from mfsd.serve.gateway.ongoing import Ongoing
from mfsd.serve.gateway.poll import Log, Poller
from mfsd.serve.gateway.predict import Predictions
from mfsd.serve.gateway.reconnect import Reconnect
from mfsd.serve.gateway.replicas import LiveReplica, ReplicaSet
from mfsd.serve.gateway.residents import Residents
from mfsd.serve.gateway.responses import Responses
from mfsd.serve.gateway.settings import GatewaySettings, Predict
from mfsd.serve.gateway.sleep import Sleeper
from mfsd.serve.gateway.status import GatewayStatus, ReplicaStatus
from mfsd.serve.gateway.upstream import Upstream
from mfsd.serve.history import Programs
from mfsd.serve.promise import Reader

CHUNKED = (Router.PREFIX, Router.TRANSFER)
"""Routers that use which replica has a prompt's beginning."""
STOPPED_RETRY_S = 1


class Gateway:
    """The gateway's state. Make it in the loop that serves."""

    def __init__(self, settings: GatewaySettings, session: aiohttp.ClientSession, log: Log) -> None:
        self.settings, self.log = settings, log
        self.replicas = ReplicaSet(settings)
        table = ProgramTable()
        self.programs = Programs(table)
        self.admission = Admission(settings, self.replicas, table)
        self.upstream = Upstream(session)
        self.responses = Responses()
        self.metrics = Metrics()
        self.poller = Poller(self.replicas, settings.state, session, log, self.metrics.forget)
        sleeper = Sleeper(session, self.poller.quiet)
        self.residents = Residents(settings, self.replicas, log, self.metrics, sleeper, self.admission.wake)
        self.admission.starts = self.residents.wanted
        self.predictions = Predictions(settings.predict, self.metrics, log) if settings.predict != Predict() else None
        self.reconnect = Reconnect(log, self.down, self.admission.wake)
        self.ongoing: set[Ongoing] = set()
        """Requests whose answer is not complete yet."""
        self.stopping = False
        self.chunked = settings.route.router in CHUNKED
        self._warned: set[str] = set()
        self._doubted: dict[str, asyncio.Task[None]] = {}
        self.reader = Reader(settings.serve, self.cannot_use)

    def cannot_use(self, kind: str, text: str) -> None:
        """Counts an unusable value; logs each kind once."""
        self.metrics.unusable.labels(kind.removeprefix("serve-")).inc()
        if kind not in self._warned:
            self._warned.add(kind)
            self.log.warning("unusable-word", problem=text)

    def down(self, replica: LiveReplica, problem: str) -> None:
        if replica.down(problem):
            self.log.warning("replica-down", replica=replica.name, url=replica.url, problem=problem)
        self.admission.wake()

    def doubt(self, replica: LiveReplica) -> None:
        """Asks a replica now, and not with the next poll, because a proxy may have failed to reach it."""
        if replica.healthy and replica.name not in self._doubted:
            task = self._doubted[replica.name] = asyncio.create_task(self._ask(replica))
            task.add_done_callback(lambda _: self._doubted.pop(replica.name, None))

    async def _ask(self, replica: LiveReplica) -> None:
        await self.poller.replica(replica)
        self.admission.wake()

    def end_all(self) -> None:
        """Ends all requests that have not ended in time."""
        if self.ongoing:
            self.log.warning("requests-ended", requests=len(self.ongoing), drain_s=self.settings.drain_s)
        for one in list(self.ongoing):
            one.end(Refused(503, "the gateway is stopping, and the request did not end in time; it may have run",
                            "server_error", "gateway_stopped", STOPPED_RETRY_S))  # fmt: skip

    def status(self) -> GatewayStatus:
        return GatewayStatus(
            router=self.settings.route.router.value,
            decode=self.settings.route.decode.value,
            queue=len(self.admission),
            queue_max=self.settings.admission.queue_max,
            programs=len(self.programs),
            coordinator=self.poller.coordinator,
            watched=bool(self.poller.watched),
            replicas=[_status(replica) for replica in self.replicas.all],
        )

    def metrics_text(self) -> bytes:
        metrics = self.metrics
        metrics.ready.set(self.replicas.ready)
        metrics.queue.set(len(self.admission))
        metrics.programs.set(len(self.programs))
        for replica in self.replicas.all:
            metrics.up.labels(replica.name).set(replica.healthy)
            metrics.load.labels(replica.name, "waiting").set(replica.waiting + replica.foreign_waiting)
            metrics.load.labels(replica.name, "running").set(replica.running + replica.foreign_running)
            read_bytes = replica.owed.read_bytes
            metrics.owed.labels(replica.name).set(math.nan if read_bytes is None else read_bytes)
        return metrics.text()


def _status(replica: LiveReplica) -> ReplicaStatus:
    return ReplicaStatus(
        name=replica.name,
        url=replica.url,
        role=replica.settings.role,
        healthy=replica.healthy,
        problem=replica.problem,
        stage=replica.stage,
        models=replica.models,
        tiers=replica.settings.tiers,
        waiting=replica.waiting + replica.foreign_waiting,
        running=replica.running + replica.foreign_running,
        requests_max=replica.settings.requests_max,
        waiting_tokens=replica.waiting_tokens,
        kv_used_share=replica.kv_used_share,
        token_us=replica.token_ns / 1e3,
        owed_bytes=replica.owed.read_bytes,
        sent=replica.sent,
        failed=replica.failed,
    )

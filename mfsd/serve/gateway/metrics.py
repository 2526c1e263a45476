"""The gateway's own Prometheus metrics."""

from __future__ import annotations

import contextlib

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

ANSWER_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
ERROR_BUCKETS_TOKENS = (4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16_384)
BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "mfs_gateway_requests", "Requests that ended, by tier and outcome.", ("tier", "outcome"), registry=registry
        )
        """Outcomes: answered (whatever the engine's status), refused, failed, withdrawn, error (the gateway's own)."""
        self.refused = Counter(
            "mfs_gateway_refused", "Requests that no engine was given, by reason.", ("reason",), registry=registry
        )
        self.sent = Counter("mfs_gateway_sent", "Calls sent to each replica.", ("replica",), registry=registry)
        self.answers = Counter(
            "mfs_gateway_answers",
            "Answers of each replica, by class of their status: 2xx, 4xx, 5xx.",
            ("replica", "status"),
            registry=registry,
        )
        self.sent_elsewhere = Counter(
            "mfs_gateway_sent_elsewhere",
            "Calls whose replica could not be connected to, so that another one got them; a proxy's included.",
            ("replica",),
            registry=registry,
        )
        self.picked = Counter(
            "mfs_gateway_picked", "Requests for which a proxy was told this replica.", ("replica",), registry=registry
        )
        self.engines = Counter(
            "mfs_gateway_engine_changes",
            "Processes of engines that have a command, by change: started, slept, woken, stopped, ended (by "
            "themselves), failed (to start, to sleep, to wake).",
            ("replica", "change"),
            registry=registry,
        )
        self.streams = Gauge(
            "mfs_gateway_ext_proc_streams", "Requests of proxies that are open now.", registry=registry
        )
        self.unusable = Counter(
            "mfs_gateway_unusable_words", "What requests said that could not be used.", ("word",), registry=registry
        )
        self.overhead = Histogram(
            "mfs_gateway_overhead_seconds",
            "From the end of a request's body until its call is handed on, without the time in the queue.",
            buckets=BUCKETS_S,
            registry=registry,
        )
        self.queue_wait = _answer_times("queue_wait", "Of calls that a replica was given: time in the queue.", registry)
        self.first_token = _answer_times(
            "first_token", "From a request's arrival to the first event of its streamed answer.", registry
        )
        self.duration = _answer_times(
            "duration", "From a request's arrival to the end of its answer, or until the client leaves.", registry
        )
        self.prediction_error = _prediction_error(registry)
        self.ready = Gauge(
            "mfs_gateway_ready", "Whether a replica answers, or is one that requests start.", registry=registry
        )
        self.queue = Gauge("mfs_gateway_queue", "Requests that wait in the gateway.", registry=registry)
        self.programs = Gauge("mfs_gateway_programs", "Programs in the table.", registry=registry)
        self.up = Gauge("mfs_gateway_replica_up", "Whether a replica answers.", ("replica",), registry=registry)
        self.load = Gauge(
            "mfs_gateway_replica_requests",
            "Requests at each replica: waiting and running, those of others included.",
            ("replica", "state"),
            registry=registry,
        )
        self.owed = Gauge(
            "mfs_gateway_port_owed_bytes", "What the port of a replica has still to receive; NaN: unknown.",
            ("replica",), registry=registry,
        )  # fmt: skip

    def forget(self, replica: str) -> None:
        """Removes a replica's metrics, so that addresses that come and go leave none behind."""
        for metric in (self.sent, self.sent_elsewhere, self.picked, self.up, self.owed):
            with contextlib.suppress(KeyError):
                metric.remove(replica)
        for status in range(1, 6):
            with contextlib.suppress(KeyError):
                self.answers.remove(replica, f"{status}xx")
        for state in ("waiting", "running"):
            with contextlib.suppress(KeyError):
                self.load.remove(replica, state)

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _answer_times(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(f"mfs_gateway_{name}_seconds", text, ("tier",), buckets=ANSWER_BUCKETS_S, registry=registry)


def _prediction_error(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "mfs_gateway_prediction_error_tokens",
        "How far expected lengths of answers were off: by the learned model, and by the mean that engines keep.",
        ("by",),
        buckets=ERROR_BUCKETS_TOKENS,
        registry=registry,
    )

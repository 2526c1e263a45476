"""Requests as OpenTelemetry spans: one for each request that has ended, and below it one for each stage and layer.

The official SDK and its OTLP/HTTP exporter do the work in a thread of the SDK. The daemon's loop hands over finished
spans, and only while fewer than QUEUE_MAX are on their way. Further ones are dropped and counted.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from mfsd._native import LEDGER_LAYER_REST, AccountCell
from mfsd.node.requests import Ended
from mfsd.node.status import STAGES

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

QUEUE_MAX = 8_192
"""Spans that may wait to be exported."""
LAYERS_MAX = 256
"""Most child spans of a request. With more pairs of stage and layer there is only one for each stage."""
EXPORT_S = 10.0
EXTRA = "OpenTelemetry's packages are missing: pip install 'mfsd[otel]'"


class Logger(Protocol):
    def info(self, event: str, **values: object) -> None: ...
    def warning(self, event: str, **values: object) -> None: ...


class MissingExtra(Exception):
    """The packages are not installed. ``str()`` names the remedy."""


def wanted(otlp: str, environment: Mapping[str, str]) -> bool:
    """Whether the configuration or OpenTelemetry's own variables ask for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if otlp:
        return True
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp" and any(environment.get(n) for n in names)


class Spans:
    """Makes spans of ended requests. `counts` by outcome: exported, failed, dropped."""

    def __init__(self, otlp: str, node: str, version: str, log: Logger) -> None:
        """`otlp`: URL of the receiver; empty: as OpenTelemetry's variables say. Raises MissingExtra."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingExtra(EXTRA) from error
        self._log = log
        self._made = 0
        self._counts: Counter[str] = Counter()
        self._logged = False
        exporter = OTLPSpanExporter(endpoint=f"{otlp.rstrip('/')}/v1/traces" if otlp else None, timeout=EXPORT_S)
        resource = Resource.create({"service.name": "mfsd", "service.version": version, "host.name": node})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(_counting(exporter, self._exported), max_queue_size=2 * QUEUE_MAX)
        )
        self._tracer = self._provider.get_tracer("mfsd", version)
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    @property
    def counts(self) -> dict[str, int]:
        return {outcome: self._counts[outcome] for outcome in ("exported", "failed", "dropped")}

    def ended(self, request: Ended) -> None:
        """Takes an ended request over. Never waits."""
        from opentelemetry import trace

        cells = _cells(request)
        pending = self._made - self._counts["exported"] - self._counts["failed"]
        if pending + 1 + len(cells) > QUEUE_MAX:
            self._counts["dropped"] += 1 + len(cells)
            return
        self._made += 1 + len(cells)
        ended = request.request
        begin_ns = min([ended.begin_ns, *(first for _, _, first, _, _ in cells)])
        attributes: dict[str, str | int | bool | float] = {
            "mfs.request_id": str(ended.request_id),
            "mfs.bytes": ended.size_bytes,
            "mfs.process": request.client.process,
            "mfs.unit": request.client.unit,
            "mfs.pruned": ended.pruned,
            "mfs.outcome": ended.verdict.name.lower(),
        }
        if ended.batch_id:
            attributes["mfs.batch_id"] = str(ended.batch_id)
        if ended.deadline_ns:
            attributes["mfs.spare_seconds"] = (ended.deadline_ns - ended.done_ns) / 1e9
        parent = self._tracer.start_span(
            "request", context=trace.set_span_in_context(trace.INVALID_SPAN), start_time=begin_ns + self._offset_ns,
            attributes=attributes,
        )  # fmt: skip
        inside = trace.set_span_in_context(parent)
        for stage, layer, first_ns, last_ns, cell in cells:
            span = self._tracer.start_span(
                stage if layer is None else f"{stage} layer {layer}",
                context=inside,
                start_time=first_ns + self._offset_ns,
                attributes={
                    "mfs.stage": stage,
                    **({} if layer is None else {"mfs.layer": layer}),
                    "mfs.bytes": cell.completed_bytes + cell.bypassed_bytes,
                    "mfs.tasks": cell.tasks,
                },
            )
            span.end(last_ns + self._offset_ns)
        parent.end(max([ended.end_ns, ended.done_ns]) + self._offset_ns)

    def close(self) -> None:
        """Sends the spans that wait, for as long as one export may take."""
        self._provider.shutdown()

    def _exported(self, spans: int, good: bool) -> None:
        """Runs in the SDK's thread, the only one that changes these two counts."""
        self._counts["exported" if good else "failed"] += spans
        if not good and not self._logged:
            self._logged = True
            self._log.warning("spans-failed", remedy="is telemetry.otlp a receiver of OTLP/HTTP? Failures are counted")


def _cells(request: Ended) -> list[tuple[str, int | None, int, int, AccountCell]]:
    """(stage, layer, first submission, last completion, counts) of everything that has moved."""
    moved = [c for c in request.account.cells if c.last_ns] if request.account is not None else []
    if len(moved) > LAYERS_MAX:
        by_stage: dict[int, AccountCell] = {}
        for c in moved:
            sum_ = by_stage.get(c.stage, c._replace(tasks=0, completed_bytes=0, bypassed_bytes=0))
            by_stage[c.stage] = sum_._replace(
                layer=LEDGER_LAYER_REST,
                tasks=sum_.tasks + c.tasks,
                completed_bytes=sum_.completed_bytes + c.completed_bytes,
                bypassed_bytes=sum_.bypassed_bytes + c.bypassed_bytes,
                first_ns=min(sum_.first_ns, c.first_ns),
                last_ns=max(sum_.last_ns, c.last_ns),
            )
        moved = list(by_stage.values())
    return [
        (
            STAGES[c.stage] if c.stage < len(STAGES) else str(c.stage),
            None if c.layer == LEDGER_LAYER_REST else c.layer,
            c.first_ns,
            c.last_ns,
            c,
        )
        for c in moved
    ]


def _counting(exporter: SpanExporter, count: Callable[[int, bool], None]) -> SpanExporter:
    """Wraps the exporter so that its outcomes are counted."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Counting(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = SpanExportResult.FAILURE
            with contextlib.suppress(Exception):  # any error costs these spans and nothing else
                result = exporter.export(spans)
            count(len(spans), result is SpanExportResult.SUCCESS)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Counting()


@contextlib.contextmanager
def exported(otlp: str, node: str, version: str, log: Logger) -> Iterator[Spans]:
    """Exports spans inside. Raises MissingExtra."""
    spans = Spans(otlp, node, version, log)
    log.info("spans", otlp=otlp or "as OTEL_EXPORTER_OTLP_ENDPOINT says")
    try:
        yield spans
    finally:
        spans.close()

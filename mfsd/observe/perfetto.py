"""Recordings as a trace that ui.perfetto.dev and chrome://tracing open: the Trace Event Format, JSON.

Each process of the trace is one daemon. It has:

* a thread for each batch, with one slice (`X`) for each layer;
* an asynchronous track (`b`, `n`, `e`, category `request`) for each request, from its announcement to its end, with
  instants for its deadline and its pruning;
* an asynchronous track (category `flow`) for each task, from submission to completion, in it `wait` until the
  permit and `send` from there, with instants for promotions;
* counters for each direction of each NIC: bytes that wait, and bytes permitted and not completed, by class;
* a thread with an instant for each time that the arbiter failed open.

Times are microseconds since `base_realtime_ns` of the file, by the host's CLOCK_REALTIME as it was when the recording
began. Identifiers are text, since they have 64 bits and a browser's numbers end at 2^53.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from mfsd.node.events import ENDS, OPEN_REASONS, Event, Kind
from mfsd.node.status import STAGES
from mfsd.observe.recording import Recorded

FAILED_OPEN_THREAD = 1
FIRST_BATCH_THREAD = 100
TIME_US_MAX = 2.0**63
_DIRECTIONS = ("out", "in")
_OUTCOMES = {Kind.COMPLETE: "complete", Kind.CANCEL: "cancelled", Kind.BYPASS: "failed open", Kind.DROP: "dropped"}

Json = dict[str, Any]


class Node(Struct, kw_only=True):
    """A daemon in a trace file."""

    pid: int
    """Process number in the trace."""
    node: str
    daemon_pid: int
    epoch: int
    lost_events: int
    monotonic_ns: int
    realtime_ns: int
    """Both clocks at the beginning, read within `uncertainty_ns`."""
    uncertainty_ns: int
    realtime_drift_ns: int


class About(Struct, kw_only=True):
    """What a trace file says about itself."""

    base_realtime_ns: Annotated[int, Meta(ge=0, le=2**62)]
    """CLOCK_REALTIME at time 0."""
    nodes: list[Node]


class Document(Struct, kw_only=True):
    """A trace file. Other keys of the format are not written; they are lost when files are merged."""

    traceEvents: list[Json]
    displayTimeUnit: str = "ms"
    mfs: About


class NotATrace(Exception):
    """The file was not written by `mfsctl trace record`. ``str()`` says what is wrong with it."""


def document(recordings: Sequence[Recorded], request_id: int = 0, batch_id: int = 0) -> Document:
    """One file of several daemons, with only one request or batch (0: with everything)."""
    base_ns = min(r.started.realtime_ns for r in recordings)
    events: list[Json] = []
    nodes = []
    for pid, recorded in enumerate(recordings, 1):
        started = recorded.started
        wanted = selected(recorded.events, request_id, batch_id) if request_id or batch_id else recorded.events
        nodes.append(
            Node(
                pid=pid,
                node=started.node,
                daemon_pid=started.pid,
                epoch=started.epoch,
                lost_events=recorded.lost,
                monotonic_ns=started.monotonic_ns,
                realtime_ns=started.realtime_ns,
                uncertainty_ns=started.uncertainty_ns,
                realtime_drift_ns=recorded.realtime_drift_ns,
            )
        )
        events += _Process(pid, recorded, base_ns, counters=not (request_id or batch_id)).events(wanted)
    return Document(traceEvents=events, mfs=About(base_realtime_ns=base_ns, nodes=nodes))


def selected(events: Sequence[Event], request_id: int, batch_id: int) -> list[Event]:
    """The events of the request and of its batches' layers, or of the batch and of its requests."""
    pairs = {(e.request_id, e.batch_id) for e in events if e.request_id and e.batch_id}
    requests = {r for r, b in pairs if b == batch_id} | {request_id}
    batches = {b for r, b in pairs if r == request_id} | {batch_id}

    def wanted(e: Event) -> bool:
        if e.request_id:
            return e.request_id in requests or (batch_id != 0 and e.batch_id == batch_id)
        if Kind.SUBMIT <= e.kind <= Kind.DROP:
            return batch_id != 0 and e.batch_id == batch_id
        return e.batch_id != 0 and e.batch_id in batches

    return [e for e in events if wanted(e)]


def merge(documents: Sequence[Document]) -> Document:
    """One file of several. Their hosts' clocks are assumed to agree."""
    base_ns = min(d.mfs.base_realtime_ns for d in documents)
    merged = Document(traceEvents=[], mfs=About(base_realtime_ns=base_ns, nodes=[]))
    for one in documents:
        shift_us = (one.mfs.base_realtime_ns - base_ns) / 1e3
        numbers: dict[int, int] = {}
        for node in one.mfs.nodes:
            numbers[node.pid] = len(merged.mfs.nodes) + 1
            merged.mfs.nodes.append(msgspec.structs.replace(node, pid=numbers[node.pid]))
        for event in one.traceEvents:
            moved = {**event, "pid": numbers.get(event.get("pid", 0), 0)}
            if "ts" in event:
                moved["ts"] = round(event["ts"] + shift_us, 3)
            merged.traceEvents.append(moved)
    return merged


def read(data: bytes) -> Document:
    """Reads a trace file. Raises NotATrace."""
    try:
        found = msgspec.json.decode(data, type=Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotATrace(f"not a file of mfsctl trace record: {error}") from error
    for event in found.traceEvents:
        if not isinstance(event.get("pid", 0), int):
            raise NotATrace("not a file of mfsctl trace record: an event's process is not a number")
        ts = event.get("ts", 0)
        if not isinstance(ts, (int, float)) or abs(ts) > TIME_US_MAX:
            raise NotATrace("not a file of mfsctl trace record: an event's time is not a number of microseconds")
    if not all(node.node.isprintable() for node in found.mfs.nodes):
        raise NotATrace("not a file of mfsctl trace record: a node's name has control characters")
    return found


class _Process:
    """One daemon's part of a trace."""

    def __init__(self, pid: int, recorded: Recorded, base_ns: int, counters: bool) -> None:
        self._pid, self._recorded, self._counters = pid, recorded, counters
        self._to_base_ns = recorded.started.realtime_ns - recorded.started.monotonic_ns - base_ns

    def events(self, events: Sequence[Event]) -> Iterator[Json]:
        started = self._recorded.started
        ordered = sorted(events, key=lambda e: e.time_ns)
        end_ns = max(started.monotonic_ns, ordered[-1].time_ns) if ordered else started.monotonic_ns
        yield self._meta("process_name", 0, name=f"{started.node} (mfsd {started.pid})")
        yield from self._batches(ordered, end_ns)
        yield from self._requests(ordered, end_ns)
        yield from self._flows(ordered, end_ns)
        if self._counters:
            yield from self._nics(ordered)
        yield from self._failures(ordered)

    # ---- batches and their layers ----------------------------------------------------------------

    def _batches(self, events: Iterable[Event], end_ns: int) -> Iterator[Json]:
        by_batch: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
        for e in events:
            if e.kind in (Kind.BATCH_BEGIN, Kind.BATCH_LAYER, Kind.BATCH_END):
                by_batch[e.client_id, e.batch_id].append(e)
        for tid, ((client, batch), steps) in enumerate(by_batch.items(), FIRST_BATCH_THREAD):
            unit = self._recorded.units.get(client) or self._process(client)
            yield self._meta("thread_name", tid, name=f"batch {batch} ({unit})")
            for step, after in zip(steps, [*steps[1:], None], strict=True):
                if step.kind != Kind.BATCH_END:
                    until_ns = end_ns if after is None else after.time_ns
                    yield {
                        **self._at(step.time_ns, "X", f"layer {step.layer}", tid),
                        "cat": "layer",
                        "dur": (until_ns - step.time_ns) / 1e3,
                        "args": {"batch": str(batch), "layer": step.layer, "layers": step.value},
                    }

    # ---- requests --------------------------------------------------------------------------------

    def _requests(self, events: Iterable[Event], end_ns: int) -> Iterator[Json]:
        by_request: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
        for e in events:
            if e.request_id:
                by_request[e.client_id, e.request_id].append(e)
        for (client, request), steps in by_request.items():
            track = {"cat": "request", "id2": {"local": f"{client}-{request}"}}
            name = f"request {request}"
            announced = [e for e in steps if e.kind == Kind.REQUEST_ANNOUNCED]
            done = [e.time_ns for e in steps if e.kind in (Kind.COMPLETE, Kind.BYPASS)]
            ended = [e.time_ns for e in steps if e.kind == Kind.REQUEST_ENDED]
            deadline_ns = next((e.deadline_ns for e in steps if e.deadline_ns), 0)
            facts: Json = {
                "request": str(request),
                "batch": next((str(e.batch_id) for e in steps if e.batch_id), None),
                "process": self._process(client),
                "budget_us": announced[0].value if announced else None,
            }
            outcome: Json = {"bytes": sum(e.bytes for e in steps if e.kind in (Kind.COMPLETE, Kind.BYPASS))}
            if deadline_ns and (done or ended):
                spare_ns = deadline_ns - (done or ended)[-1]
                outcome |= {"met": spare_ns >= 0, "spare_us": spare_ns / 1e3}
            last_ns = max([steps[-1].time_ns, *ended]) if ended or not announced else end_ns
            yield {**self._at(steps[0].time_ns, "b", name), **track, "args": facts}
            if deadline_ns:
                yield {
                    **self._at(deadline_ns, "n", "deadline"),
                    **track,
                    "args": {"request": str(request)},
                }
            for e in steps:
                if e.kind == Kind.REQUEST_PRUNED:
                    yield {**self._at(e.time_ns, "n", "pruned" if e.value else "restored"), **track, "args": {}}
            yield {**self._at(last_ns, "e", name), **track, "args": outcome}

    # ---- flows -----------------------------------------------------------------------------------

    def _flows(self, events: Iterable[Event], end_ns: int) -> Iterator[Json]:
        by_task: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
        for e in events:
            if Kind.SUBMIT <= e.kind <= Kind.DROP:
                by_task[e.client_id, e.task].append(e)
        for (client, task), steps in by_task.items():
            yield from self._flow(client, task, steps, end_ns)

    def _flow(self, client: int, task: int, steps: list[Event], end_ns: int) -> Iterator[Json]:
        first = steps[0]
        track = {"cat": "flow", "id2": {"local": f"{client}:{task & 0xFFFFFFFF}:{task >> 32}"}}
        name = f"{self._stage(first.stage)} layer {first.layer}"
        permit = next((e for e in steps if e.kind == Kind.PERMIT), None)
        over = next((e for e in steps if e.kind in ENDS), None)
        over_ns = end_ns if over is None else over.time_ns
        facts: Json = {
            "request": str(first.request_id) if first.request_id else None,
            "batch": str(first.batch_id) if first.batch_id else None,
            "stage": self._stage(first.stage),
            "layer": first.layer,
            "bytes": first.bytes,
            "nic": self._nic(first.nic),
            "direction": _DIRECTIONS[first.incoming],
            "process": self._process(client),
            "outcome": "open" if over is None else _OUTCOMES[Kind(over.kind)],
            "whole": first.kind == Kind.SUBMIT,
        }
        yield {**self._at(first.time_ns, "b", name), **track, "args": facts}
        if first.kind == Kind.SUBMIT:
            waited_ns = over_ns if permit is None else permit.time_ns
            yield {**self._at(first.time_ns, "b", "wait"), **track, "args": {}}
            for e in steps:
                if e.kind == Kind.PROMOTE:
                    to = "critical" if e.tier == 0 else f"level {e.level}"
                    yield {**self._at(e.time_ns, "n", f"promoted: {to}"), **track, "args": {"level": e.level}}
            yield {**self._at(waited_ns, "e", "wait"), **track, "args": {}}
        if permit is not None:
            granted: Json = {"class": permit.wire_class, "level": permit.level or None}
            yield {**self._at(permit.time_ns, "b", "send"), **track, "args": granted}
            yield {**self._at(over_ns, "e", "send"), **track, "args": {}}
        yield {**self._at(over_ns, "e", name), **track, "args": {}}

    # ---- NICs and failures -----------------------------------------------------------------------

    def _nics(self, events: Iterable[Event]) -> Iterator[Json]:
        """Counts only tasks whose submission was recorded, not what was there before."""
        waiting: defaultdict[int, int] = defaultdict(int)
        flying: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        state: dict[tuple[int, int], int | None] = {}
        for e in events:
            key = e.client_id, e.task
            if e.kind == Kind.SUBMIT:
                state[key] = None
                waiting[e.direction] += e.bytes
            elif key not in state or (e.kind != Kind.PERMIT and e.kind not in ENDS):
                continue
            elif e.kind == Kind.PERMIT:
                state[key] = e.wire_class
                waiting[e.direction] -= e.bytes
                flying[e.direction][e.wire_class] += e.bytes
            elif (wire_class := state.pop(key)) is None:
                waiting[e.direction] -= e.bytes
            else:
                flying[e.direction][wire_class] -= e.bytes
            name = f"{self._nic(e.nic)} {_DIRECTIONS[e.incoming]}"
            yield {**self._at(e.time_ns, "C", f"{name} waiting"), "args": {"bytes": waiting[e.direction]}}
            by_class = {f"class {c}": n for c, n in sorted(flying[e.direction].items())}
            if by_class:
                yield {**self._at(e.time_ns, "C", f"{name} permitted"), "args": by_class}

    def _failures(self, events: Iterable[Event]) -> Iterator[Json]:
        named = False
        for e in events:
            if e.kind not in (Kind.FAIL_OPEN, Kind.BYPASS):
                continue
            if not named:
                named = True
                yield self._meta("thread_name", FAILED_OPEN_THREAD, name="failed open")
            reason = "bypass" if e.kind == Kind.BYPASS else OPEN_REASONS[e.value] if e.value < 4 else str(e.value)
            yield {
                **self._at(e.time_ns, "i", f"failed open: {reason}", FAILED_OPEN_THREAD),
                "cat": "failed open",
                "s": "p",
                "args": {"process": self._process(e.client_id)},
            }

    # ---- words -----------------------------------------------------------------------------------

    def _at(self, monotonic_ns: int, phase: str, name: str, tid: int = 0) -> Json:
        ts = round((monotonic_ns + self._to_base_ns) / 1e3, 3)
        return {"ph": phase, "name": name, "ts": ts, "pid": self._pid, "tid": tid}

    def _meta(self, what: str, tid: int, **arguments: object) -> Json:
        return {"ph": "M", "name": what, "pid": self._pid, "tid": tid, "args": arguments}

    def _process(self, client: int) -> str:
        return self._recorded.processes.get(client) or f"client {client}"

    def _nic(self, nic: int) -> str:
        return self._recorded.nics.get(nic) or f"nic {nic}"

    def _stage(self, stage: int) -> str:
        return STAGES[stage] if stage < len(STAGES) else f"stage {stage}"

"""The status of an engine, for the files that `mfsctl serve` reads and for its metrics."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_left
from collections import Counter
from typing import Final

import msgspec

from mfsd.policy.serve import ServeConfig
from mfsd.serve.engine import Engine
from mfsd.serve.history import Programs
from mfsd.serve.requests import Entry
from mfsd.serve.status_files import FORMAT, pid_namespace

REQUESTS_MAX: Final = 1000
PROGRAMS_MAX: Final = 200


class TierStatus(msgspec.Struct, frozen=True):
    met: int = 0
    """Requests that ended in time."""
    late: int = 0
    no_deadline: int = 0
    aborted: int = 0
    tokens: int = 0
    waiting: int = 0
    running: int = 0
    paused: int = 0
    """Requests here that are paused by the latest plan. The next two are also by that plan."""
    relegated: int = 0
    lost: int = 0


class ProgramStatus(msgspec.Struct, frozen=True):
    """A program that has requests here now."""

    program: str
    requests: int
    waiting: int
    service_s: float
    """Service of its calls that have ended and of those here now."""
    wait_s: float


class RequestStatus(msgspec.Struct, frozen=True):
    request: str
    state: str
    """computing, paused, waiting, held, lost or relegated."""
    tier: str
    importance: int
    age_s: float
    due_in_s: float | None
    """Time until its first token is due; negative: late. None: it has no deadline, or it has its first token."""
    prompt_tokens: int
    output_tokens: int
    expected_tokens: float
    step_tokens: int
    """Its tokens in the latest step."""
    service_s: float
    tenant: str = ""
    program: str = ""
    session: str = ""
    parent: str = ""
    role: str = ""
    application: str = ""
    ttft_s: float | None = None
    tbt_s: float | None = None
    ttlt_s: float | None = None
    first_token_after_s: float | None = None
    late_tokens: int = 0
    due_earlier: int = 0
    """Number of waiting requests whose first token is due before that of this request."""


class StepStatus(msgspec.Struct, frozen=True):
    number: int = 0
    prefill_tokens: int = 0
    decodes: int = 0
    chunk_tokens: int = 0
    estimate_s: float = 0.0
    error_median: float | None = None
    """Median of (measured - estimate) / measured in the latest steps."""
    error_p90: float | None = None
    """90th percentile of its absolute value."""


class EngineStatus(msgspec.Struct, frozen=True):
    engine: str
    pid: int
    at_unix_s: float
    up_s: float
    config: ServeConfig
    gave_up: bool
    """Plans failed, and the engine is first come first served until it restarts."""
    waiting: int
    running: int
    paused: int
    lost: int
    relegated: int
    step: StepStatus
    tiers: dict[str, TierStatus]
    counts: dict[str, int]
    unusable: dict[str, int]
    """Number of requests' values that could not be used, by word."""
    reuse: dict[str, int] = {}
    """Decisions on reuse of KV in a store, by choice; empty if there are no such decisions."""
    programs: tuple[ProgramStatus, ...] = ()
    requests: tuple[RequestStatus, ...] = ()
    requests_left_out: int = 0
    pid_namespace: int = 0
    """PID namespace in which `pid` counts; 0: not known."""
    format: int = FORMAT


def status_of(engine: Engine, pid: int, started_s: float) -> EngineStatus:
    """Returns the engine's status. May be called beside the engine's own thread: each request is shown as before or
    after a concurrent change, and no table that may grow is iterated over."""
    now_s = engine.clock()
    entries = list(engine.entries.values())
    states = states_of(engine)
    names = engine.running
    running = sum(entry.name in names for entry in entries)
    plan = engine.latest.plan if engine.latest is not None else None
    shown = entries[:REQUESTS_MAX]
    dues = sorted(entry.due_s for entry in entries if entry.first_token_s is None)
    return EngineStatus(
        engine=engine.name,
        pid=pid,
        at_unix_s=time.time(),
        up_s=now_s - started_s,
        config=engine.config,
        gave_up=engine.gave_up,
        waiting=len(entries) - running,
        running=running,
        paused=len(plan.paused) if plan else 0,
        lost=len(plan.lost) if plan else 0,
        relegated=len(plan.relegated) if plan else 0,
        step=_step(engine),
        tiers=tiers_of(engine),
        counts=dict(engine.counts),
        unusable=dict(engine.reader.unusable),
        reuse=dict(engine.reuse_counts()),
        programs=_programs(engine.programs, entries, names, now_s),
        requests=tuple(_request(engine, entry, states, dues, now_s) for entry in shown),
        requests_left_out=len(entries) - len(shown),
        pid_namespace=pid_namespace(),
    )


def tiers_of(engine: Engine) -> dict[str, TierStatus]:
    states, running = states_of(engine), engine.running
    here = {state: Counter[str]() for state in ("waiting", "running", "paused", "relegated", "lost")}
    for entry in list(engine.entries.values()):
        here["running" if entry.name in running else "waiting"][entry.wanted.tier] += 1
        planned = here.get(states.get(entry.number, ""))
        if planned is not None:
            planned[entry.wanted.tier] += 1
    names = sorted({*engine.tiers, *here["waiting"], *here["running"]})
    found = {}
    for name in names:
        count = engine.tiers.get(name)
        had = (count.met, count.late, count.no_deadline, count.aborted, count.tokens) if count else (0,) * 5
        found[name] = TierStatus(*had, *(counts[name] for counts in here.values()))
    return found


def states_of(engine: Engine) -> dict[int, str]:
    """Returns the states of the requests in the latest plan, by number. All other requests wait."""
    latest = engine.latest
    if latest is None:
        return {}
    plan = latest.plan
    states = {one.request_id: "computing" for one in plan.scheduled}
    for name in ("held", "paused", "relegated", "lost"):
        states |= {number: name for number in getattr(plan, name) if states.get(number) != "computing"}
    return states


def _step(engine: Engine) -> StepStatus:
    errors = list(engine.steps.errors)
    plan = engine.latest.plan if engine.latest is not None else None
    return StepStatus(
        number=engine.state.step,
        prefill_tokens=plan.load.prefill_tokens if plan else 0,
        decodes=plan.load.decodes if plan else 0,
        chunk_tokens=plan.chunk_tokens if plan else 0,
        estimate_s=plan.step_s if plan else 0.0,
        error_median=statistics.median(errors) if errors else None,
        error_p90=sorted(map(abs, errors))[len(errors) * 9 // 10] if errors else None,
    )


def _programs(
    programs: Programs, entries: list[Entry], running: frozenset[str], now_s: float
) -> tuple[ProgramStatus, ...]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.program:
            groups.setdefault(entry.program, []).append(entry)
    found = [
        ProgramStatus(
            program,
            len(group),
            sum(entry.name not in running for entry in group),
            programs.so_far_s((entry.inherited, entry.service_s) for entry in group),
            max(entry.inherited.wait_s for entry in group)
            + sum(max(0.0, now_s - entry.arrival_s - entry.service_s) for entry in group),
        )
        for program, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.service_s, one.program))[:PROGRAMS_MAX])


def _request(engine: Engine, entry: Entry, states: dict[int, str], dues: list[float], now_s: float) -> RequestStatus:
    wanted, first_s = entry.wanted, entry.first_token_s
    tokens = engine.latest.tokens if engine.latest is not None else {}
    due = entry.due_s - now_s if first_s is None and entry.has_deadline else None
    return RequestStatus(
        request=entry.name,
        state=states.get(entry.number, "waiting"),
        tier=wanted.tier,
        importance=wanted.importance,
        age_s=now_s - entry.arrival_s,
        due_in_s=due,
        prompt_tokens=entry.prompt_tokens,
        output_tokens=entry.outputs,
        expected_tokens=entry.expected,
        step_tokens=tokens.get(entry.name, 0),
        service_s=entry.service_s,
        tenant=wanted.tenant,
        program=entry.program,
        session=wanted.session,
        parent=wanted.parent,
        role=wanted.role,
        application=wanted.application,
        ttft_s=wanted.ttft_s,
        tbt_s=wanted.tbt_s,
        ttlt_s=wanted.ttlt_s,
        first_token_after_s=None if first_s is None else first_s - entry.arrival_s,
        late_tokens=entry.late_tokens,
        due_earlier=bisect_left(dues, entry.due_s) if first_s is None else 0,
    )

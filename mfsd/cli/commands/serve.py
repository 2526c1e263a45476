"""``mfsctl serve``: what the request tier of this node's engines decides. Reads what the engines publish; only `queue`
asks the daemon."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from mfsd.cli.daemon_call import EXIT_REFUSED, EXIT_UNREACHABLE, ask_or_exit
from mfsd.cli.output import Cell, Column, Form, Row, output_options, print_table, printed
from mfsd.cli.program import ProgramGroup, daemon_command
from mfsd.node.control import QueuedRequest, QueueReply, QueueRequest
from mfsd.observe.format import byte_count, count, duration, share
from mfsd.policy.serve import Policy
from mfsd.serve.publish import AUTO, read_all, want
from mfsd.serve.status import EngineStatus, RequestStatus
from mfsd.serve.status_files import FOLDER_VARIABLE, folders

FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help=f"Folder in which engines publish. Default: ${FOLDER_VARIABLE}, else the user's own; for root, those of all "
    "users.",
)


@click.group(
    cls=ProgramGroup,
    epilog="""\b
Examples:
  mfsctl serve status               engines, tiers and how many are in time
  mfsctl serve queue                requests that queue, as announced to the daemon
  mfsctl serve programs             sessions and the service they have had
  mfsctl serve policy               the policy and its numbers
  mfsctl serve policy edf           another policy, while engines serve
  mfsctl serve explain cmpl-4711    why a request waits
  mfsctl serve status --json        the same for programs
""",
)
def serve() -> None:
    """Show and set what the request scheduler does in the engines of this node. Only the queue needs a daemon. See
    docs/serve.md."""


def _engines(folder: Path | None) -> list[EngineStatus]:
    """Ends the program if there is no engine."""
    where = [folder] if folder else folders()
    engines, complaints = read_all(where)
    for complaint in complaints:
        click.echo(f"mfsctl: {complaint}", err=True)
    if not engines:
        places = ", ".join(map(str, where))
        click.echo(
            f"mfsctl: no engine publishes in {places}; start one as docs/serve.md says, or see --folder", err=True
        )
        sys.exit(EXIT_UNREACHABLE)
    return engines


ENGINE_COLUMNS = (
    Column("ENGINE"),
    Column("POLICY"),
    Column("STATE"),
    Column("WAITING", right=True),
    Column("RUNNING", right=True),
    Column("PAUSED", right=True),
    Column("LOST", right=True),
    Column("RELEGATED", right=True),
    Column("CHUNK", right=True),
    Column("STEP", right=True),
    Column("ERROR", right=True),
    Column("PLANS", right=True, wide=True),
    Column("FAILED", right=True, wide=True),
    Column("FIRST COME", right=True, wide=True),
    Column("UP", right=True, wide=True),
)
TIER_COLUMNS = (
    Column("ENGINE"),
    Column("TIER", cut=True),
    Column("IN TIME", right=True),
    Column("MET", right=True),
    Column("LATE", right=True),
    Column("NO DEADLINE", right=True),
    Column("ABORTED", right=True),
    Column("WAITING", right=True),
    Column("RUNNING", right=True),
    Column("TOKENS", right=True),
)


@serve.command(
    epilog="""\b
Examples:
  mfsctl serve status
  mfsctl serve status -o wide
  mfsctl serve status --json
"""
)
@FOLDER
@output_options
def status(form: Form, folder: Path | None) -> None:
    """Show the engines, their queues and how many requests of each tier were in time.

    \b
    CHUNK      prompt tokens that the latest step had room for
    STEP       its estimated time, margin included
    ERROR      median of (measured - estimate) / measured
    LOST       cannot be in time even alone; served last
    RELEGATED  set aside so that others are in time
    """
    engines = _engines(folder)
    if printed(engines, form):
        return
    print_table(ENGINE_COLUMNS, [_engine_row(engine) for engine in engines], form)
    rows = [row for engine in engines for row in _tier_rows(engine)]
    if rows:
        click.echo()
        print_table(TIER_COLUMNS, rows, form)
    for engine in engines:
        if engine.reuse:
            decided = ", ".join(f"{count(number)} {choice}" for choice, number in sorted(engine.reuse.items()))
            click.echo(f"\n{engine.engine}: decisions about reuse that a store has: {decided}")
    for engine in engines:
        if engine.unusable:
            words = ", ".join(f"{word} {number}" for word, number in sorted(engine.unusable.items()))
            click.echo(f"\n{engine.engine}: could not use {words}; its log says why")


def _engine_row(engine: EngineStatus) -> Row:
    idle_s = time.time() - engine.at_unix_s
    state: str | Cell = "serving" if idle_s < 5 else f"idle {duration(idle_s)}"
    if engine.gave_up:
        state = Cell("first come", "red")
    error = engine.step.error_median
    return [
        engine.engine,
        engine.config.policy.value,
        state,
        *map(count, (engine.waiting, engine.running, engine.paused, engine.lost, engine.relegated)),
        count(engine.step.chunk_tokens),
        duration(engine.step.estimate_s),
        "-" if error is None else f"{error:+.0%}",
        *(count(engine.counts.get(name, 0)) for name in ("plans", "failed_plans", "first_come_steps")),
        duration(engine.up_s),
    ]


def _tier_rows(engine: EngineStatus) -> list[Row]:
    return [
        [
            engine.engine,
            name,
            share(tier.met / (tier.met + tier.late)) if tier.met + tier.late else "-",
            *map(count, (tier.met, tier.late, tier.no_deadline, tier.aborted, tier.waiting, tier.running, tier.tokens)),
        ]
        for name, tier in engine.tiers.items()
    ]


PROGRAM_COLUMNS = (
    Column("ENGINE"),
    Column("PROGRAM", cut=True),
    Column("CALLS", right=True),
    Column("WAITING", right=True),
    Column("SERVED", right=True),
    Column("WAITED", right=True),
)


@serve.command(
    epilog="""\b
Examples:
  mfsctl serve programs
  mfsctl serve programs --json
"""
)
@FOLDER
@output_options
def programs(form: Form, folder: Path | None) -> None:
    """Show the programs (sessions with their sub-sessions) that have requests now, most served first.

    \b
    SERVED  time of steps that computed its calls
    WAITED  time that its calls have waited
    """
    engines = _engines(folder)
    if printed({engine.engine: engine.programs for engine in engines}, form):
        return
    rows: list[Row] = [
        [
            engine.engine,
            one.program,
            count(one.requests),
            count(one.waiting),
            duration(one.service_s),
            duration(one.wait_s),
        ]
        for engine in engines
        for one in engine.programs
    ]
    if not rows:
        click.echo("No current request names a session.")
        return
    print_table(PROGRAM_COLUMNS, rows, form)


QUEUE_COLUMNS = (
    Column("PROCESS"),
    Column("REQUEST", right=True),
    Column("RANK", right=True),
    Column("SLACK", right=True),
    Column("NEEDED IN", right=True),
    Column("TOKENS", right=True),
    Column("FETCHES", right=True),
    Column("FROM", cut=True),
    Column("STATE"),
)


@serve.command(
    epilog="""\b
Examples:
  mfsctl serve queue
  mfsctl serve queue --limit 20
  mfsctl serve queue --json
"""
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Show at most this many requests."
)
@output_options
@daemon_command
def queue(path: Path, form: Form, limit: int) -> None:
    """Show the requests that still queue at engines of this node, as the daemon knows them.

    \b
    RANK       place in the engine's own order; the smallest goes first
    SLACK      time until its first token is due; negative: late
    NEEDED IN  time until its fetched KV must be there: the earliest deadline of it and of those after it
    TOKENS     tokens to compute until its first token
    FETCHES    bytes that it will fetch before it runs
    FROM       ports that have these bytes; -: not known
    """
    reply = ask_or_exit(path, QueueRequest(limit), QueueReply)
    if printed(reply, form):
        return
    if not reply.requests:
        click.echo("No engine of this node has announced a request that queues.")
        return
    print_table(QUEUE_COLUMNS, [_queue_row(one) for one in reply.requests], form)
    if reply.total > len(reply.requests):
        click.echo(f"\n{count(reply.total - len(reply.requests))} more; see --limit")


def _queue_row(one: QueuedRequest) -> Row:
    owners = sorted({fetch.owner for fetch in one.fetches if fetch.owner})
    size_bytes = sum(fetch.size_bytes for fetch in one.fetches)
    return [
        one.process,
        str(one.request_id),
        str(one.rank),
        _signed(one.deadline_left_s),
        _signed(one.needed_in_s),
        count(one.tokens_left) if one.tokens_left else "-",
        byte_count(size_bytes) if size_bytes else "-",
        ", ".join(owners) or "-",
        "relegated" if one.relegated else "pruned" if one.pruned else "waiting",
    ]


def _signed(seconds: float | None) -> str | Cell:
    if seconds is None:
        return "-"
    return duration(seconds) if seconds >= 0 else Cell(f"-{duration(-seconds)}", "red")


POLICY_COLUMNS = (Column("ENGINE"), Column("NUMBER"), Column("VALUE"))


@serve.command(
    epilog="""\b
Examples:
  mfsctl serve policy
  mfsctl serve policy edf
  mfsctl serve policy auto
  mfsctl serve policy --folder /run/user/1000/mfs-serve
"""
)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--engine", metavar="ENGINE", help="Only this engine. Default: all that publish.")
@FOLDER
@output_options
def policy(form: Form, name: str | None, engine: str | None, folder: Path | None) -> None:
    """Show the policy and every number in force, or set the policy.

    \b
    NAME    the policy from the engine's next second on; a meta controller rests from then on
    auto    the policy of the engine's configuration again
    """
    engines = [one for one in _engines(folder) if engine is None or one.engine == engine]
    if not engines:
        click.echo(f"mfsctl: --engine {engine}: no such engine publishes; see mfsctl serve status", err=True)
        sys.exit(EXIT_REFUSED)
    if name is not None:
        _set_policy(name, engines, [folder] if folder else folders())
        return
    if printed({one.engine: one.config for one in engines}, form):
        return
    rows: list[Row] = []
    for one in engines:
        for field in one.config.__struct_fields__:
            value = getattr(one.config, field)
            rows.append([one.engine, field, str(getattr(value, "value", value))])
    print_table(POLICY_COLUMNS, rows, form)


def _set_policy(name: str, engines: list[EngineStatus], where: list[Path]) -> None:
    known = [*(one.value for one in Policy), AUTO]
    if name not in known:
        click.echo(f"mfsctl: policy {name}: use {', '.join(known)}", err=True)
        sys.exit(EXIT_REFUSED)
    failed = False
    for one in engines:
        try:
            found = want(where, one.engine, name)
        except OSError as error:
            click.echo(f"mfsctl: {one.engine}: {error.strerror}: {error.filename}; run as the engine's user", err=True)
            found, failed = True, True
        else:
            if found:
                click.echo(f"{one.engine}: {one.config.policy.value} -> {name}, within a second of serving")
        if not found:
            click.echo(f"mfsctl: {one.engine}: has ended", err=True)
            failed = True
    if failed:
        sys.exit(EXIT_REFUSED)


@serve.command(
    epilog="""\b
Examples:
  mfsctl serve explain cmpl-4711
  mfsctl serve explain cmpl-4711 --json
"""
)
@click.argument("request", metavar="REQUEST")
@FOLDER
@output_options
def explain(form: Form, request: str, folder: Path | None) -> None:
    """Explain what a request waits for, as of the engine's latest second. REQUEST is its name or the beginning of
    it."""
    engines = _engines(folder)
    found = [(engine, one) for engine in engines for one in engine.requests if one.request.startswith(request)]
    exact = [pair for pair in found if pair[1].request == request]
    found = exact or found
    if len(found) != 1:
        left_out = sum(engine.requests_left_out for engine in engines)
        known = f"{len(found)} requests begin with this" if found else "no engine has it now; it may have ended"
        more = f" ({left_out} more are not published)" if left_out else ""
        click.echo(f"mfsctl: request {request}: {known}{more}", err=True)
        sys.exit(EXIT_REFUSED)
    engine, one = found[0]
    if printed(one, form):
        return
    click.echo(click.style(f"{one.request} in {engine.engine}: {one.state}", bold=True))
    for line in reasons(engine, one):
        click.echo(f"  {line}")


def reasons(engine: EngineStatus, one: RequestStatus) -> list[str]:
    lines = [
        {
            "computing": f"computes {one.step_tokens} tokens in this step",
            "paused": "sits this step out with its KV kept: its slack outlasts the step, or others are more urgent",
            "held": "waits for KV memory or a slot",
            "lost": "cannot be in time even alone: served when nothing else is, and at every "
            f"{engine.config.overdue_every}th step once it is overdue",
            "relegated": "set aside so that others are in time, within the drop budget",
        }.get(one.state, "waits for its turn")
    ]
    if one.first_token_after_s is not None:
        late = f", {one.late_tokens} of them late" if one.late_tokens else ""
        lines.append(f"first token after {duration(one.first_token_after_s)}; {one.output_tokens} tokens so far{late}")
    elif one.due_in_s is not None:
        when = f"due in {duration(one.due_in_s)}" if one.due_in_s >= 0 else f"late by {duration(-one.due_in_s)}"
        lines.append(f"first token {when}; {one.due_earlier} that wait are due earlier")
    else:
        lines.append("has no deadline")
    slos = [f"{name} {duration(value)}" for name, value in _slos(one) if value is not None]
    lines.append(f"tier {one.tier}, importance {one.importance}" + "".join(f", {slo}" for slo in slos))
    expected = f"about {one.expected_tokens:.0f} expected"
    lines.append(f"{one.prompt_tokens} prompt tokens, {one.output_tokens} output tokens, {expected}")
    lines.append(f"here for {duration(one.age_s)}, served {duration(one.service_s)}")
    words = ("tenant", "application", "role", "session", "parent", "program")
    named = [f"{word} {getattr(one, word)}" for word in words if getattr(one, word)]
    return [*lines, ", ".join(named)] if named else lines


def _slos(one: RequestStatus) -> tuple[tuple[str, float | None], ...]:
    return (("first token", one.ttft_s), ("between tokens", one.tbt_s), ("last token", one.ttlt_s))

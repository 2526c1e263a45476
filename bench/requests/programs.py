"""Agentix's workloads: programs of several calls whose user waits for the last one.

chat: turns one after another, a Pareto number of them, lengths of ShareGPT's single turns, a pause before each.
tree-search: rounds of concurrent expansions; a round begins when the one before has ended.
best-of-n: concurrent candidates, then one call that reads them all.
mixed: a third each of the three above.
claudecode: coding sessions, one call after another on a growing context.

Structure and pauses are generated unless a folder of traces holds recorded sessions; the source says which.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from bench.requests.arrivals import poisson
from bench.requests.errors import UsageError
from bench.requests.lengths import Lengths, curve, published, trace_file
from bench.requests.settings import Settings
from bench.requests.workload import Workload
from bench.sim.serving import Call, Program
from bench.sim.workload import TraceError, number_of, records

NAMES = ("chat", "tree-search", "best-of-n", "mixed", "claudecode")
SESSIONS = "agentic_claudecode"
NEEDED = ("session_id", "turn", "input_length", "output_length", "ideal_hit_tokens")
"""Columns of recorded sessions."""
PAUSE_S = 5.0
"""Mean pause before a turn of a chat."""
ROUNDS = (2, 6)
"""Of a tree search: from, to."""
SESSION_CONTEXT_MAX = 500_000
"""Tokens at which a generated session ends: the 99th percentile of the recorded prompts."""
OUTPUT_MAX = 2000
"""Tokens of one call of a coding session."""


def generate(name: str, settings: Settings, qps: float, seed: int, seconds: float, traces: Path | None) -> Workload:
    """Returns programs that start within `seconds`, `qps` of them a second."""
    if name not in NAMES:
        raise UsageError(f"--workload {name}: use {', '.join(NAMES)}")
    chance = random.Random(f"{name} {seed}")
    starts = takewhile(lambda at: at < seconds, poisson(random.Random(f"arrivals {seed}"), qps))
    if name == "claudecode":
        sessions, source = _sessions(settings, seed, traces)
        return Workload([Program(arrival_s=at, calls=next(sessions)) for at in starts], source)
    lengths = Lengths("sharegpt-turns", traces)
    kinds = tuple(_MAKE) if name == "mixed" else (name,)
    programs = []
    for at in starts:
        kind = kinds[0] if len(kinds) == 1 else chance.choice(kinds)
        calls = _with_system(kind, _MAKE[kind](chance, lengths, settings), settings.system_tokens)
        programs.append(Program(arrival_s=at, calls=calls))
    return Workload(programs, f"structure generated; lengths {lengths.source}")


def _chat(chance: random.Random, lengths: Lengths, settings: Settings) -> tuple[Call, ...]:
    turns = min(settings.turns_max, int(chance.paretovariate(settings.turns_pareto)))
    calls: list[Call] = []
    context = 0
    for turn in range(turns):
        new, output = _draw(chance, lengths, settings)
        if calls and context + new > settings.context_max:
            break
        gap_s = 0.0 if turn == 0 else min(settings.gap_max_s, settings.gap_scale * chance.expovariate(1 / PAUSE_S))
        calls.append(_call(context + new, output, context, (turn - 1,) if turn else (), gap_s))
        context += new + output
    return tuple(calls)


def _tree(chance: random.Random, lengths: Lengths, settings: Settings) -> tuple[Call, ...]:
    """A round's calls extend one call of the round before, the one that a program would rate best."""
    question, _ = _draw(chance, lengths, settings)
    calls: list[Call] = []
    before: tuple[int, ...] = ()
    context, seen = question, 0
    for _ in range(chance.randint(*ROUNDS)):
        first = len(calls)
        for _ in range(settings.fan_out):
            _, output = _draw(chance, lengths, settings)
            calls.append(_call(context, output, seen, before))
        context += calls[first + chance.randrange(settings.fan_out)].output_tokens
        seen = context
        before = tuple(range(first, len(calls)))
    return tuple(calls)


def _best_of(chance: random.Random, lengths: Lengths, settings: Settings) -> tuple[Call, ...]:
    question, _ = _draw(chance, lengths, settings)
    outputs = [_draw(chance, lengths, settings)[1] for _ in range(settings.fan_out)]
    candidates = [_call(question, output, 0 if i == 0 else question) for i, output in enumerate(outputs)]
    judgement = _draw(chance, lengths, settings)[1]
    return (*candidates, _call(question + sum(outputs), judgement, question, tuple(range(len(outputs)))))


_MAKE: Mapping[str, Callable[[random.Random, Lengths, Settings], tuple[Call, ...]]] = {
    "chat": _chat,
    "tree-search": _tree,
    "best-of-n": _best_of,
}


def _with_system(kind: str, calls: tuple[Call, ...], tokens: int) -> tuple[Call, ...]:
    """Returns the same calls behind a prompt with which all of their kind begin."""
    if tokens == 0:
        return calls
    return tuple(
        msgspec.structs.replace(
            call,
            prompt_tokens=call.prompt_tokens + tokens,
            prefix_tokens=call.prefix_tokens + tokens if call.prefix_tokens else 0,
            shared=kind,
            shared_tokens=tokens,
        )
        for call in calls
    )


def _call(prompt: int, output: int, seen: int, after: tuple[int, ...] = (), gap_s: float = 0.0) -> Call:
    """`seen`: leading prompt tokens that the program's earlier calls had or produced."""
    return Call(prompt_tokens=prompt, output_tokens=output, prefix_tokens=min(seen, prompt), after=after, gap_s=gap_s)


def _draw(chance: random.Random, lengths: Lengths, settings: Settings) -> tuple[int, int]:
    tokens = lengths.draw(chance)
    return max(1, round(tokens.prompt * settings.prompt_scale)), max(1, round(tokens.output * settings.output_scale))


def _sessions(settings: Settings, seed: int, traces: Path | None) -> tuple[Iterator[tuple[Call, ...]], str]:
    """Returns sessions without end: recorded ones in a random order, repeated once all were used; or generated ones."""
    chance = random.Random(f"sessions {seed}")
    if traces is None:
        statistics = published()["claudecode"]
        return _generated(chance, statistics, settings), f"generated from quantiles: {statistics['source']}"
    path = trace_file(traces, SESSIONS)
    recorded = list(_recorded(path, settings).values())
    return _shuffled(chance, recorded), f"sessions of {path.name}, lengths / {settings.session_divisor:g}"


def _shuffled(chance: random.Random, sessions: list[tuple[Call, ...]]) -> Iterator[tuple[Call, ...]]:
    while True:
        yield from chance.sample(sessions, len(sessions))


def _recorded(path: Path, settings: Settings) -> dict[Any, tuple[Call, ...]]:
    """Returns the calls of the main agent of each session, which must be in the order of its turns. `agent` and
    `think_time` may be missing or null: the main agent, no pause. Raises TraceError with one line on bad input."""
    sessions: dict[Any, list[Call]] = {}
    turns: dict[Any, int] = {}
    for where, row in records(path, (*NEEDED, "agent", "think_time")):
        if row.get("agent"):
            continue
        for name in NEEDED:
            if name not in row:
                raise TraceError(f"{where}: no column {name}; add it, or leave --traces out for generated sessions")
        session = row["session_id"]
        if not isinstance(session, (int, str)):
            raise TraceError(f"{where}: session_id is {session!r:.80}; expected a number or a text")
        turn = number_of(row["turn"], where, "turn", int, 0)
        if turn <= turns.get(session, -1):
            raise TraceError(
                f"{where}: turn is {turn} after turn {turns[session]} of session {session}; sort the rows of each "
                "session by turn"
            )
        turns[session] = turn
        prompt = number_of(row["input_length"], where, "input_length", int, 1)
        seen = number_of(row["ideal_hit_tokens"], where, "ideal_hit_tokens", int, 0)
        output = number_of(row["output_length"], where, "output_length", int, 0)
        think_time = row.get("think_time")
        pause_s = 0.0 if think_time is None else number_of(think_time, where, "think_time", float, 0)
        calls = sessions.setdefault(session, [])
        calls.append(_session_call(len(calls), prompt, seen, output, pause_s, settings))
    if not sessions:
        raise TraceError(
            f"{path}: no row of a main agent (agent 0 or none), so no session; use a trace that has one, or leave "
            "--traces out for generated sessions"
        )
    return {session: tuple(calls) for session, calls in sessions.items()}


def _generated(chance: random.Random, statistics: dict[str, Any], settings: Settings) -> Iterator[tuple[Call, ...]]:
    first, new, output = curve(statistics["first_prompt"]), curve(statistics["new_tokens"]), curve(statistics["output"])
    turns, pause = curve(statistics["turns"]), curve(statistics["think_s"])
    while True:
        context = first.at(chance.random())
        calls: list[Call] = []
        for turn in range(max(1, round(turns.at(chance.random())))):
            added = context if turn == 0 else new.at(chance.random())
            if turn and context + added > SESSION_CONTEXT_MAX:
                break
            seen = 0.0 if turn == 0 else context
            context = seen + added
            produced = output.at(chance.random())
            calls.append(_session_call(turn, context, seen, produced, pause.at(chance.random()), settings))
        yield tuple(calls)


def _session_call(turn: int, prompt: float, seen: float, output: float, pause_s: float, settings: Settings) -> Call:
    length = max(1, int(prompt / settings.session_divisor * settings.prompt_scale))
    shared = min(length - 1, int(seen / settings.session_divisor * settings.prompt_scale))
    produced = max(1, min(OUTPUT_MAX, round(output * settings.output_scale)))
    gap_s = 0.0 if turn == 0 else min(settings.gap_max_s, settings.gap_scale * pause_s)
    return _call(length, produced, shared, (turn - 1,) if turn else (), gap_s)

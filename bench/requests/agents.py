"""Programs of agents: a model asks for a tool, waits for its result, and continues; a person waits for the answer.

coding: reads, searches, edits and runs tests in a repository, on a context that grows with every turn.
research: searches the web and reads pages, which are long.
desk: calls services with short answers and asks a person in between.
mixed: a third each of the three above.
claudecode: coding sessions of `--what programs`, whose pauses have no names (recorded ones with --traces).

Tools, their times and outputs, and how often an agent calls each are generated: medians and spreads are chosen by kind
and named in AGENTS; lengths and times are lognormal. What runs after a call is known when the call has ended, as an
engine reads it from the output (`Call.then`); how long it takes is not.
"""

from __future__ import annotations

import math
import random
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from bench.requests import programs
from bench.requests.arrivals import poisson
from bench.requests.errors import UsageError
from bench.requests.settings import Settings
from bench.requests.workload import Workload
from bench.sim.serving import Call, Program

PERSON = "person"
"""Who reads an answer and may ask again."""
SESSIONS = "claudecode"
SOURCE = "generated: agents, tools, their times and lengths"
SPREAD = 0.6
"""Of the logarithms of prompts and outputs."""
OUTPUT_LONGEST = 2000


class Tool(NamedTuple):
    share: float
    """Of an agent's calls, relative to the others."""
    gap_s: float
    """Median."""
    spread: float
    """Of the gap's logarithm: a script takes nearly the same each time, a person does not."""
    tokens: float
    """Median of its output."""


class Agent(NamedTuple):
    system_tokens: int
    """Instructions and descriptions of tools, shared by all agents of the kind."""
    task_tokens: float
    turns: float
    """Mean of a geometric distribution."""
    output_tokens: float
    tools: dict[str, Tool]


AGENTS = {
    "coding": Agent(2500, 400, 25, 120, {
        "read": Tool(4, 0.1, 0.5, 500), "search": Tool(3, 0.5, 0.6, 250), "edit": Tool(2, 0.2, 0.5, 80),
        "shell": Tool(2, 3.0, 1.2, 200), "test": Tool(2, 20.0, 0.3, 300), PERSON: Tool(1, 40.0, 1.2, 80),
    }),
    "research": Agent(1500, 200, 15, 250, {
        "web-search": Tool(3, 1.5, 0.5, 600), "page": Tool(4, 2.5, 0.8, 1500), PERSON: Tool(1, 45.0, 1.2, 60),
    }),
    "desk": Agent(1200, 150, 8, 80, {
        "service": Tool(4, 0.6, 0.7, 150), "query": Tool(2, 4.0, 0.5, 300), PERSON: Tool(2, 15.0, 1.0, 60),
    }),
}  # fmt: skip
NAMES = ("mixed", *AGENTS, SESSIONS)


def generate(name: str, settings: Settings, qps: float, seed: int, seconds: float, traces: Path | None) -> Workload:
    """Returns agents that start within `seconds`, `qps` of them a second."""
    if name not in NAMES:
        raise UsageError(f"--workload {name}: use {', '.join(NAMES)}")
    if name == SESSIONS:
        return programs.generate(name, settings, qps, seed, seconds, traces)
    if traces is not None:
        raise UsageError(f"--traces {traces}: of --what agents only --workload {SESSIONS} is recorded; leave it out")
    chance = random.Random(f"agents {name} {seed}")
    starts = takewhile(lambda at: at < seconds, poisson(random.Random(f"arrivals {seed}"), qps))
    kinds = tuple(AGENTS) if name == "mixed" else (name,)
    work = [Program(arrival_s=at, calls=_turns(chance.choice(kinds), chance, settings)) for at in starts]
    return Workload(work, SOURCE)


def _turns(kind: str, chance: random.Random, settings: Settings) -> tuple[Call, ...]:
    agent = AGENTS[kind]
    turns = min(settings.turns_max, 1 + int(chance.expovariate(1 / max(1e-9, agent.turns - 0.5))))
    tools, shares = list(agent.tools), [tool.share for tool in agent.tools.values()]
    calls: list[Call] = []
    gap_s, context, new = 0.0, agent.system_tokens, _tokens(chance, agent.task_tokens, settings.prompt_scale)
    while True:
        prompt = context + new
        output = min(OUTPUT_LONGEST, _tokens(chance, agent.output_tokens, settings.output_scale))
        then = chance.choices(tools, shares)[0]
        following = agent.tools[then]
        next_new = _tokens(chance, following.tokens, settings.prompt_scale)
        number = len(calls)
        last = number + 1 == turns or prompt + output + next_new > settings.context_max
        calls.append(
            Call(
                prompt_tokens=prompt,
                output_tokens=output,
                tier=kind,
                prefix_tokens=context if number else 0,
                shared=kind,
                shared_tokens=agent.system_tokens,
                after=(number - 1,) if number else (),
                gap_s=gap_s,
                then=PERSON if last else then,
            )
        )
        if last:
            return tuple(calls)
        gap_s = min(settings.gap_max_s, settings.gap_scale * _around(chance, following.gap_s, following.spread))
        context, new = prompt + output, next_new


def _tokens(chance: random.Random, median: float, scale: float) -> int:
    return max(1, round(scale * _around(chance, median, SPREAD)))


def _around(chance: random.Random, median: float, spread: float) -> float:
    return median * math.exp(spread * chance.gauss(0, 1))

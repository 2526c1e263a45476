"""Maestro's nine applications (table I) as templates: roles, models, fan-out and loops. The paper publishes their
names, kinds and shares; everything else here is generated, and the rows say so."""

from __future__ import annotations

import math
import random
import statistics
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

from bench.requests.arrivals import poisson
from bench.sim.workflows.models import MODELS
from mfsd.policy.workflow import exec_s

SOURCE = "generated: templates with the names, kinds and shares of Maestro's table I, lengths and structure our own"
TOOL_S = 1.0
"""Mean time of a tool after a stage that calls one."""
ISOLATED_RUNS = 200
INTERACTIVE_WAIT = 0.5
"""Share of the isolated median that an interactive job may wait in all its stages."""
BATCH_TIMES = 3.0
"""Multiple of the isolated 90th percentile by which a batch job has to end."""


class Role(NamedTuple):
    name: str
    model: str
    prompt: int
    """Mean tokens."""
    output: int
    tool: float = 0.0
    """Share of its calls that use a tool; their answers are short."""
    times: tuple[int, int] = (1, 1)
    """How often it is called: from, to."""
    side_by_side: bool = False


class Template(NamedTuple):
    name: str
    interactive: bool
    jobs: int
    """Jobs of the trace in table I."""
    roles: tuple[Role, ...]


SMALL, TOOLS, MIDDLE, LARGE, LARGEST = MODELS
TEMPLATES = (
    Template("meeting booking", True, 8626, (
        Role("parser", SMALL, 400, 60, 0.9), Role("calendar", TOOLS, 700, 50, 0.9, (1, 2)),
        Role("reply", MIDDLE, 900, 120))),
    Template("document writing", False, 8319, (
        Role("outline", LARGE, 800, 400), Role("writer", LARGEST, 1200, 1200, 0.0, (1, 3), True),
        Role("reviewer", LARGE, 4000, 500))),
    Template("news collection", False, 6616, (
        Role("supervisor", MIDDLE, 600, 200), Role("collector", TOOLS, 1500, 250, 0.8, (2, 4), True),
        Role("summary", LARGE, 5000, 700))),
    Template("performance", False, 6548, (
        Role("analyst", LARGE, 2500, 400, 0.7, (1, 3)), Role("reporter", LARGEST, 4000, 1000))),
    Template("qa assistant", True, 5849, (
        Role("router", SMALL, 300, 20), Role("solver", LARGE, 900, 450), Role("critic", MIDDLE, 1500, 120))),
    Template("text translation", False, 5124, (
        Role("translator", MIDDLE, 1800, 1600, 0.0, (1, 3)), Role("proofreader", LARGE, 4000, 600))),
    Template("food assistant", True, 3334, (
        Role("intent", SMALL, 300, 30), Role("search", TOOLS, 800, 60, 0.9), Role("reply", MIDDLE, 1200, 180))),
    Template("travel assistant", True, 1543, (
        Role("planner", LARGE, 800, 250), Role("search", MIDDLE, 1200, 70, 0.9, (3, 3)),
        Role("writer", LARGEST, 3000, 300), Role("check", MIDDLE, 3500, 60))),
    Template("code refactoring", False, 810, (
        Role("reader", LARGEST, 9000, 600), Role("editor", LARGEST, 6000, 1200, 0.3, (1, 3)),
        Role("tester", MIDDLE, 3000, 150, 0.9))),
)  # fmt: skip


class Stage(NamedTuple):
    role: str
    model: str
    invocation: int
    prompt_tokens: int
    output_tokens: int
    tools: bool
    tool_s: float
    """After the stage, until its followers can begin."""
    after: tuple[int, ...]

    @property
    def exec_s(self) -> float:
        """With the node to itself."""
        return exec_s(MODELS[self.model], self.prompt_tokens, self.output_tokens)


class Job(NamedTuple):
    template: str
    interactive: bool
    arrival_s: float
    stages: tuple[Stage, ...]
    slo_s: float
    """Limit of the waits of all stages together for interactive jobs, else of the whole job."""


def _stages(template: Template, chance: random.Random) -> tuple[Stage, ...]:
    stages: list[Stage] = []
    before: tuple[int, ...] = ()
    for role in template.roles:
        first = len(stages)
        for number in range(chance.randint(*role.times)):
            tool = chance.random() < role.tool
            output = role.output * (0.4 if tool else 1.0) * chance.lognormvariate(0.0, 0.3 if tool else 0.6)
            after = before if role.side_by_side or not number else (len(stages) - 1,)
            stages.append(
                Stage(
                    role.name, role.model, number, max(16, round(role.prompt * chance.lognormvariate(0, 0.4))),
                    max(1, round(output)), role.tool > 0, chance.expovariate(1 / TOOL_S) if tool else 0.0, after,
                )
            )  # fmt: skip
        before = tuple(range(first, len(stages))) if role.side_by_side else (len(stages) - 1,)
    return tuple(stages)


def isolated_s(stages: tuple[Stage, ...]) -> float:
    """Returns the time of the longest chain, with nothing else running and every model loaded."""
    ends: list[float] = []
    for stage in stages:
        ends.append(max((ends[i] + stages[i].tool_s for i in stage.after), default=0.0) + stage.exec_s)
    return max(ends)


@lru_cache(maxsize=len(TEMPLATES))
def _slo_s(template: Template) -> float:
    """Computed from isolated runs, the same for every policy and seed."""
    chance = random.Random(f"isolated {template.name}")
    times = [isolated_s(_stages(template, chance)) for _ in range(ISOLATED_RUNS)]
    if template.interactive:
        return INTERACTIVE_WAIT * statistics.median(times)
    return BATCH_TIMES * statistics.quantiles(times, n=10)[-1]


def generate(qps: float, seconds: float, batch_share: float, seed: int) -> list[Job]:
    """Returns jobs that arrive within `seconds`, `batch_share` of them of batch templates."""
    chance = random.Random(f"workflows {seed}")
    kinds = {kind: [t for t in TEMPLATES if t.interactive is kind] for kind in (True, False)}
    jobs = []
    for at in takewhile(lambda at: at < seconds, poisson(random.Random(f"arrivals {seed}"), qps)):
        of = kinds[chance.random() >= batch_share]
        template = chance.choices(of, [t.jobs for t in of])[0]
        jobs.append(Job(template.name, template.interactive, at, _stages(template, chance), _slo_s(template)))
    return jobs


def one(name: str, count: int, apart_s: float, seed: int) -> list[Job]:
    """Returns `count` jobs of one template at intervals of `apart_s`."""
    (template,) = (t for t in TEMPLATES if t.name == name)
    chance = random.Random(f"one {name} {seed}")
    stages = _stages(template, chance)
    return [Job(name, template.interactive, i * apart_s, stages, math.inf) for i in range(count)]

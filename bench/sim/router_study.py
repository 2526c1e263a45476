"""python -m bench sim routers FILE [--page docs/results/routers.md]: measures rules that choose prefill units as
requests arrive.

`transfer` chooses by wait, expected fetch and what ports owe. It is compared with locality, which is decided before the
run.

Both run with the eight classes that ship, under `mfs` and under marks by size (`dscp-size`), and with a view of what
ports owe that is old, partial, wrong or missing. FILE keeps every point (JSON lines); a stopped study goes on from
there. --page writes the tables between the page's marks, and the same figures as JSON beside it; sections that --what
leaves out keep their last figures there."""

from __future__ import annotations

from typing import Any

from bench.sim import outlook
from bench.sim.outlook import Case, Report, Row, Section
from bench.sim.reuse import ReuseConfig

CLASSES = {"fabric_classes": 8}
FIRST_SEED, SEEDS = 771, 6
CLAIM_SEEDS = 20
"""With six seeds the interval in egress is nine points wide."""


def _case(setting: str) -> Case:
    return Case(f"QwenA, {setting}", setting, knobs=CLASSES)


def _served(setting: str) -> Case:
    return Case(setting, setting, knobs=CLASSES)


def _row(name: str, policy: str = "mfs", **reuse: Any) -> Row:
    return Row(name, policy, ReuseConfig(**reuse))


def _old(age_s: float, policy: str = "mfs") -> Row:
    name = f"`{policy}`, `transfer`, coordinator, {age_s * 1e3:g} ms old"
    return _row(name, policy, router="transfer", outlook="coordinator", age_s=age_s)


def _both(policy: str) -> tuple[Row, ...]:
    return _row(f"`{policy}`, `locality`", policy), _row(f"`{policy}`, `transfer`", policy, router="transfer")


PRICES = tuple(_row(f"`mfs`, `locality:{price:g}`", router=f"locality:{price:g}") for price in (0.3, 1, 3))
ASKED = (_case("hot"), _case("egress"))
FEW = (*_both("mfs"), _old(0.1))
BLIND = _row("`mfs`, `transfer`, none", router="transfer", outlook="none")
EXAGGERATED = _row("`mfs`, `transfer`, expected times x4", router="transfer", error=4.0)
MARKED = tuple(_row(f"`{policy}`, `locality`", policy) for policy in ("mfs", "dscp-size"))
ELSEWHERE = tuple(_case(name) for name in ("base", "fan-in", "bursts", "skew"))
SERVED = tuple(
    _served(name)
    for name in (
        "llama3-8b-gpu.qwen-a.shared-100g",
        "llama3-8b-gpu.mooncake-agent.shared-100g",
        "llama2-7b.qwen-a.cold",
    )
)
FULL = (Case("QwenA, hot", "hot", "dbrx", "qwen-a", 0.144, {**outlook.AT_2048, **CLASSES}),)
SECTIONS = {
    "claim": Section(
        "Units by what ports owe, under `mfs`, twenty seeds",
        ASKED,
        (*FEW, BLIND, EXAGGERATED, *PRICES[1:]),
        CLAIM_SEEDS,
        carriers=(*_both("mfs"), *_both("dscp-size")),
    ),
    "known": Section(
        "What has to be known",
        ASKED,
        (
            *_both("mfs"),
            *(_old(age_s) for age_s in (0.01, 0.1, 1.0)),
            _row("`mfs`, `transfer`, local", router="transfer", outlook="local"),
            BLIND,
            _row("`mfs`, `transfer`, expected times x0.25", router="transfer", error=0.25),
            EXAGGERATED,
            *PRICES,
            *_both("nocont"),
        ),
        SEEDS,
    ),
    "dscp-size": Section(
        "Units by what ports owe, under marks by size",
        ASKED,
        (*_both("dscp-size"), _old(0.1, "dscp-size"), *_both("mfs")),
        SEEDS,
    ),
    "other": Section("Where nothing was asked for", ELSEWHERE, FEW, SEEDS),
    "served": Section("Models and caches as they are served", SERVED, FEW, SEEDS, 200),
    "full": Section("At 2,048 GPUs", FULL, FEW, SEEDS, 1024),
    "marks": Section("Marks by size beside it", ELSEWHERE, MARKED, SEEDS),
    "marks-served": Section(
        "Marks by size beside it: models and caches as they are served", SERVED, MARKED, SEEDS, 200
    ),
    "marks-full": Section("Marks by size beside it: 2,048 GPUs", FULL, MARKED, SEEDS, 1024),
}
WITHOUT_MARKS = (
    "Without static marking: the rows differ in which unit computes. The same settings under marks by size are in "
    "[the table of theirs](#units-by-what-ports-owe-under-marks-by-size) and in "
    "[those beside it](#marks-by-size-beside-it)."
)


def main(arguments: list[str]) -> int:
    head = "the production queue at every sending NIC and eight classes on the wire"
    why = "701 to 706 chose between forms of the rule"
    prog = "python -m bench sim routers"
    return outlook.write(Report(prog, __doc__, SECTIONS, head, FIRST_SEED, why, WITHOUT_MARKS), arguments)

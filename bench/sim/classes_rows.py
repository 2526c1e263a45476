"""The data of the page of the shipped classes: a line of JSON for each policy in each setting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from bench.sim.capacity import Capacity, compare_capacity
from bench.sim.cluster import ConfigError
from bench.sim.compare import Comparison, compare

AGAINST = "dscp-size"
"""The policy that every row is compared with: marks by size with the section's classes, and no daemon."""


FIRST_SEED = 741  # smaller seeds chose settings and rules
CLASSES = ("dscp-size", "static", "dscp", "mfs", "alone", "nocont")
EXACT = ("mfs", "static", "mh-renewed", "varys", "dcoflow", "paper")
CARRIED = ("dscp-size", "mfs")
Variant = Literal["", "reads", "again"]
"""reads: loads wait in the queue of the NIC that they reach, as one-sided reads do. again: as without a variant, but by
the rules of the reads, for comparison with them."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the page."""

    settings: str
    requests: int
    seeds: int
    classes: int = 8
    load: float | None = None  # of the knee; None: the load at which `choose` examined the setting, or 1
    policies: tuple[str, ...] = CLASSES
    exact: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  # policies run also with loads that wait at their reader
    carried: tuple[str, ...] = CARRIED  # policies whose capacity is found
    carried_seeds: int = 2


STRESS = "fan-in,egress,bursts,hot,base,slow-hot,skew"
SECTIONS = {
    "served": Section(
        settings="contended", requests=200, seeds=5, exact=EXACT, reads=("mfs",), carried=(*CARRIED, "static")
    ),
    "stress": Section(settings=STRESS, requests=300, seeds=6, exact=EXACT, reads=("mfs",)),
    "stress-4": Section(
        settings="fan-in,egress,bursts",
        requests=300,
        seeds=6,
        classes=4,
        policies=("dscp-size", "static", "dscp", "mfs"),
        reads=("mfs",),
    ),
    "node": Section(settings="node", requests=300, seeds=6, load=0.9, exact=EXACT),
}


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A policy in a setting; each list has a number for each seed."""

    section: str
    setting: str
    policy: str
    exact: bool  # in exact order on every link, else with the section's classes
    variant: Variant = ""
    rate: float
    met: list[float]  # share of requests whose first token is in time
    mean_s: list[float]  # TTFT
    p99_s: list[float]
    revisions: list[str]

    def key(self) -> tuple[str, str, str, bool, Variant]:
        return self.section, self.setting, self.policy, self.exact, self.variant


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """The load, relative to the knee, up to which a policy meets 90 %, for each seed; with the section's classes."""

    section: str
    setting: str
    policy: str
    loads: list[float]


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What the page printed of `mfs` with classes before these rows."""

    section: str
    setting: str
    gain: float
    gain_half: float
    ttft_ratio: float
    p99_ratio: float


class What(msgspec.Struct, frozen=True, kw_only=True):
    simulated: bool
    against: str
    first_seed: int
    revisions: list[str]


class Data(msgspec.Struct, frozen=True, kw_only=True):
    what: What
    rows: list[Row]
    carried: list[Carried]
    before: list[Before]

    def settings(self, section: str) -> list[str]:
        """Returns the settings that have the row with which others are compared."""
        return [r.setting for r in self.rows if (r.section, r.policy, r.exact) == (section, AGAINST, False)]

    def has(self, section: str, policy: str, exact: bool = False, variant: Variant = "") -> bool:
        wanted = (section, policy, exact, variant)
        return any((r.section, r.policy, r.exact, r.variant) == wanted for r in self.rows)

    def row(self, section: str, setting: str, policy: str, exact: bool = False, variant: Variant = "") -> Row | None:
        wanted = (section, setting, policy, exact, variant)
        return next((r for r in self.rows if r.key() == wanted), None)

    def against(
        self, section: str, setting: str, policy: str, exact: bool = False, variant: Variant = ""
    ) -> Comparison | None:
        """Compares the policy with marks by size; None if it was not run."""
        mine, other = self.row(section, setting, policy, exact, variant), self.row(section, setting, AGAINST)
        return compare(_results(mine), _results(other)) if mine and other else None

    def between(self, section: str, setting: str, policy: str, variant: Variant, other: Variant) -> Comparison | None:
        """Compares two variants of a policy; None if one was not run."""
        mine = self.row(section, setting, policy, variant=variant)
        theirs = self.row(section, setting, policy, variant=other)
        return compare(_results(mine), _results(theirs)) if mine and theirs else None

    def capacity(self, section: str, setting: str, policy: str) -> Capacity | None:
        found = {c.policy: c.loads for c in self.carried if (c.section, c.setting) == (section, setting)}
        mine, other = found.get(policy), found.get(AGAINST)
        return compare_capacity(mine, other) if mine and other else None


def _results(row: Row) -> list[dict[str, Any]]:
    """Returns results in the form of points; what the page does not show is 0."""
    return [
        {"slo_attainment": met, "ttft_s": {"mean": mean, "p99": p99}, "cct_s": {"mean": 0.0},
         "earliness_s": {"non_negative_mean": 0.0}}
        for met, mean, p99 in zip(row.met, row.mean_s, row.p99_s, strict=True)
    ]  # fmt: skip


def beside(page: Path) -> Path:
    return page.with_name(f"{page.stem}-results.json")


def load(page: Path) -> Data | None:
    """Reads the rows beside a page. Raises ConfigError if the file holds something else."""
    path = beside(page)
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Data)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: holds no rows of this page ({error}); name another page") from error


def save(page: Path, data: Data) -> None:
    """Writes a line for each row, so that a changed row is a changed line."""

    def lines(found: Sequence[msgspec.Struct]) -> str:
        return "[" + ",".join(f"\n  {json.dumps(msgspec.to_builtins(one))}" for one in found) + "\n ]"

    parts = [f' "what": {json.dumps(msgspec.to_builtins(data.what))}']
    parts += [f' "{name}": {lines(getattr(data, name))}' for name in ("rows", "carried", "before")]
    beside(page).write_text("{\n" + ",\n".join(parts) + "\n}\n")

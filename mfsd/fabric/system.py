"""What MFS knows of a network operating system: one `SwitchSystem`, one file or folder of `mfsd.fabric.systems`.

A system renders a plan, says what it cannot express, checks a configuration, compares it with the running one, and
knows its limits. What all systems share has a default here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from mfsd.fabric.diff import Change
from mfsd.fabric.findings import Finding
from mfsd.fabric.limits import check_limits
from mfsd.fabric.plan import Plan, Port


class About(Struct, frozen=True):
    """The facts of a system: how it names things, and which parts of a policy its configuration can express."""

    name: str
    title: str
    template: str
    """A file of switch_configs/."""
    port_example: str
    load: str
    """How a rendered file is loaded."""
    port_pattern: str
    """What it calls a port, whole (a regular expression)."""
    floors: bool = True
    ceilings: bool = True
    watchdog_times: bool = True
    quirk: str = ""
    lossless_default: int | None = None
    """Lossless queues it provides without changing its buffer model: more is possible, and work."""
    lossless_most: int = 8
    """Lossless queues it can have at all, where a source states it."""


class Shortfall(Struct, frozen=True):
    """Something the policy asks for that a system's configuration cannot express."""

    what: str
    why: str
    remedy: str


class Rendered(Struct, frozen=True):
    nos: str
    text: str
    shortfalls: tuple[Shortfall, ...]


class SwitchSystem(ABC):
    """One network operating system. A module or package of `mfsd.fabric.systems` has one instance, named SYSTEM."""

    about: ClassVar[About]

    @abstractmethod
    def check(self, text: str, models: Path | None = None) -> list[Finding]:
        """Findings about configuration `text`, from the vendor's schema or manual; `models` is a folder of the vendor's
        YANG models. A schema that is not installed is "not checked", never "pass"."""

    @abstractmethod
    def diff(self, rendered: str, running: str) -> list[Change]:
        """What must change in `running` to become `rendered`, inside the parts that MFS owns. Raises ValueError when
        `running` cannot be read."""

    def port_name(self, name: str) -> str:
        """As the running configuration has it, of a name that fits `port_pattern`."""
        return name

    def render(self, plan: Plan) -> Rendered:
        """The configuration of `plan`, and what of the plan is not in it."""
        import jinja2

        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("mfsd.fabric", "switch_configs"),
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
        )
        template = environment.get_template(self.about.template)
        text = template.render(plan=plan, rate=rate_bytes_per_s, kbytes=kilobytes, **self.helpers(plan))
        return Rendered(self.about.name, self.finished(text), tuple(self.shortfalls(plan)))

    def helpers(self, plan: Plan) -> Mapping[str, Any]:
        """What only this system's template needs, by the name it has there."""
        return {}

    def finished(self, text: str) -> str:
        """The rendered template as the system reads it."""
        return text

    def shortfalls(self, plan: Plan) -> list[Shortfall]:
        """What `plan` asks for and the configuration does not contain, with the reason and the remedy."""
        about = self.about
        found = [*self._common_shortfalls(plan), *self.own_shortfalls(plan)]
        if about.quirk:
            found.append(Shortfall("note", about.quirk, "read before applying"))
        return found

    def own_shortfalls(self, plan: Plan) -> list[Shortfall]:
        """Those that only this system has."""
        return []

    def floors_missing(self, plan: Plan) -> list[str]:
        """Queues whose floor the configuration does not contain."""
        return [] if self.about.floors else [q.name for q in plan.queues if q.floor_percent]

    def limits(self, plan: Plan, asic: str | None = None) -> list[Finding]:
        """What the system and its silicon can hold of `plan`; `asic` (a key of ASICS) adds the packet memory."""
        return [self.lossless_limit(plan), *check_limits(plan, asic)]

    def lossless_limit(self, plan: Plan) -> Finding:
        about, count, rule = self.about, len(plan.lossless), "lossless classes"
        if count > about.lossless_most:
            return Finding(
                rule,
                "fail",
                f"{count} lossless classes; {about.name} has at most {about.lossless_most}",
                "make classes lossy",
            )
        if about.lossless_default is not None and count > about.lossless_default:
            return Finding(
                rule,
                "fail",
                f"{count} lossless classes; {about.name} reserves headroom for {about.lossless_default} as it ships",
                f"keep {about.lossless_default} lossless classes, or change the switch's buffer model first and keep "
                "it out of MFS",
            )
        if about.lossless_default is None and count > 2:
            return Finding(
                rule,
                "warn",
                f"{count} lossless classes; no documented limit is known for {about.name}",
                "each costs headroom on every port: give --asic to have it added up",
            )
        return Finding(rule, "pass", f"{count} lossless classes")

    def _common_shortfalls(self, plan: Plan) -> list[Shortfall]:
        about, found = self.about, []
        capped = [q.name for q in plan.queues if q.ceiling_percent < 100]
        if floored := self.floors_missing(plan):
            found.append(
                Shortfall(
                    f"floor_percent of {', '.join(floored)}",
                    f"{about.title} has no documented minimum rate for a queue below a strict one",
                    "cap the classes above with ceiling_percent"
                    if about.ceilings
                    else "watch for starvation (`mfsctl fabric probe`), or make the lower classes dwrr",
                )
            )
        if capped and not about.ceilings:
            found.append(
                Shortfall(
                    f"ceiling_percent of {', '.join(capped)}",
                    f"no documented per-queue shaper was confirmed for {about.title}",
                    "use floors and dwrr instead, or shape on the hosts",
                )
            )
        if plan.lossless and not about.watchdog_times:
            found.append(
                Shortfall(
                    "pfc_watchdog times and action",
                    f"{about.title} enables its watchdog with its own times",
                    "compare them with the policy: show pfc-wd / show queuing pfc-queue",
                )
            )
        return found


class LiveSystem(SwitchSystem):
    """A system whose ports are this host's: MFS reads and writes them itself."""

    @abstractmethod
    def diff_live(self, plan: Plan, netns: str | None = None) -> list[Change]:
        """What `plan` would change on this host's ports."""

    @abstractmethod
    def apply_live(self, plan: Plan, netns: str | None = None) -> None:
        """Configures this host's ports."""


def rate_bytes_per_s(port: Port, percent: int) -> int:
    return int(port.speed_gbps * 1e9 / 8 * percent / 100)


def kilobytes(size_bytes: int) -> int:
    return max(1, round(size_bytes / 1024))

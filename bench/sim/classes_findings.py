"""The findings on top of the page of the shipped classes; every figure comes from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.sim import settings
from bench.sim.capacity import Capacity
from bench.sim.classes_rows import EXACT, SECTIONS, Before, Data, Variant
from bench.sim.compare import Comparison

LEAST_GAIN, LONGEST = -0.5, 1.02  # required in every setting: points, and mean TTFT relative to marks by size
STAGES = ("static", "dscp")
BEFORE = "2cf2f9f6"  # revision whose rules gave the figures before


def findings(data: Data) -> list[str]:
    """Returns a line for each finding, without those that have no rows yet."""
    found = [served(data), stress(data), four(data), node(data), reads(data), reads_beside(data)]
    found += [missed(data), worse(data), capacities(data), reference(data), competitors(data), stages(data)]
    return [one for one in [*found, not_run(data)] if one]


def gains(
    data: Data, section: str, policy: str = "mfs", exact: bool = False, variant: Variant = ""
) -> dict[str, Comparison]:
    """Returns the comparison for each setting that has one."""
    found = {setting: data.against(section, setting, policy, exact, variant) for setting in data.settings(section)}
    return {setting: figure for setting, figure in found.items() if figure}


def with_section(section: str, setting: str) -> str:
    """Returns the setting's name, with the section if two sections have the setting."""
    return setting + (" with four classes" if section == "stress-4" else "")


def gain(figure: Comparison) -> str:
    return f"{figure.gain:+.1f}" + ("" if figure.gain_half is None else f" ± {figure.gain_half:.1f}")


def span(values: Sequence[float], form: str) -> str:
    least, most = f"{min(values):{form}}", f"{max(values):{form}}"
    return least if least == most else f"{least} to {most}"


def times(ratios: Sequence[float]) -> str:
    return f"x{min(ratios):.2f} to x{max(ratios):.2f}"


def ttft(figures: Sequence[Comparison]) -> str:
    return times([figure.ttft_ratio for figure in figures])


def served(data: Data) -> str:
    found = gains(data, "served")
    if not found:
        return ""
    figures = [*found.values()]
    return (
        f"**Models and caches as they are served**, in {len(found)} settings in which contention costs anything: "
        f"`mfs` is {span([f.gain for f in figures], '+.1f')} points from `dscp-size`, above it with the whole interval "
        f"in {sum(f.above for f in figures)}. Mean TTFT is {ttft(figures)}, p99 TTFT "
        f"{times([f.p99_ratio for f in figures])}; where the mean is longer, requests that cannot be in time "
        "wait for those that can."
    )


def _by_setting(found: dict[str, Comparison]) -> str:
    return ", ".join(f"{setting} {gain(figure)}" for setting, figure in found.items())


def stress(data: Data) -> str:
    found = gains(data, "stress")
    if not found:
        return ""
    p99 = times([figure.p99_ratio for figure in found.values()])
    return f"**Stress**: {_by_setting(found)}, at a mean TTFT of {ttft([*found.values()])} and a p99 TTFT of {p99}."


def four(data: Data) -> str:
    found = gains(data, "stress-4")
    if not found:
        return ""
    return f"**With four classes** {_by_setting(found)}: marks by size lose more by having fewer."


def node(data: Data) -> str:
    found = gains(data, "node")
    if not found:
        return ""
    figures = ", ".join(
        f"{setting.removeprefix('node-')} {gain(f)} (x{f.ttft_ratio:.2f})" for setting, f in found.items()
    )
    return (
        "**A server whose eight GPUs share a NIC** and keep nothing they fetch, by workload and Gbit/s a GPU, with "
        f"mean TTFT: {figures}."
    )


def reads(data: Data) -> str:
    """Compares `mfs` with loads that wait at their reader with marks by size."""
    found = {section: figures for section in _read() if (figures := gains(data, section, variant="reads"))}
    if not found:
        return ""
    every = {
        with_section(section, setting): figure
        for section, figures in found.items()
        for setting, figure in figures.items()
    }
    hot = [s for s in every if s in settings.SETTINGS and settings.SETTINGS[s].knobs.get("hot_fraction")]
    line = (
        f"**Loads that wait at their reader** (`mfs`, reads; rules of commit {', '.join(_read_by(data))}) against "
        f"`dscp-size`, which has no queue: {'; '.join(f'{section} {_spread(f)}' for section, f in found.items())}. "
        f"Of what is asked for in every setting it misses, {_misses(every)}."
    )
    return line + (f" In {', '.join(hot)} many prefixes are at one NIC: no queue has all loads from it." if hot else "")


def reads_beside(data: Data) -> str:
    """Compares the same with `mfs` without reads, and states how far that is from the page's rows, which may be of
    other rules."""
    ours, moved = [], []
    for section in _read():
        names = data.settings(section)
        if own := {s: f for s in names if (f := data.between(section, s, "mfs", "reads", "again"))}:
            ours.append(f"{section} {_spread(own)}")
        if again := {s: f.gain for s in names if (f := data.between(section, s, "mfs", "again", ""))}:
            mean, most = statistics.fmean(again.values()), max(again, key=lambda s: abs(again[s]))
            moved.append(f"{section} {mean:+.1f} on average, {again[most]:+.1f} at most ({most})")
    if not ours:
        return ""
    line = f"**What reads change**, of `mfs` on the same seeds and by the same rules: {'; '.join(ours)}."
    if not moved or _read_by(data) == data.what.revisions:
        return line
    return f"{line} By these rules `mfs` without reads is off the points of its column by: {'; '.join(moved)}."


def _read() -> list[str]:
    """Returns the sections that also have loads which wait at their reader."""
    return [name for name, section in SECTIONS.items() if section.reads]


def _read_by(data: Data) -> list[str]:
    """Returns the revisions of those rows."""
    return list(dict.fromkeys(revision for row in data.rows if row.variant for revision in row.revisions))


def _spread(found: dict[str, Comparison]) -> str:
    """Formats mean and range over settings, and those with the whole interval on one side."""
    figures = [*found.values()]
    mean, ratio = statistics.fmean(f.gain for f in figures), statistics.fmean(f.ttft_ratio for f in figures)
    below = [f"{setting} {gain(figure)}" for setting, figure in found.items() if figure.below]
    return (
        f"{mean:+.1f} points on average ({span([f.gain for f in figures], '+.1f')}), above it with the whole interval "
        f"in {sum(f.above for f in figures)} of {len(figures)}, below it in {', '.join(below) or 'none'}, mean TTFT "
        f"x{ratio:.2f} on average ({ttft(figures)})"
    )


def _misses(every: dict[str, Comparison]) -> str:
    lower = [f"{s} ({gain(f)})" for s, f in every.items() if f.gain < LEAST_GAIN]
    longer = [f"{s} (x{f.ttft_ratio:.2f})" for s, f in every.items() if f.ttft_ratio > LONGEST + 0.005]
    return f"in points: {', '.join(lower) or 'nowhere'}; in mean TTFT: {', '.join(longer) or 'nowhere'}"


def missed(data: Data) -> str:
    """Lists settings in which `mfs` misses what was required everywhere."""
    every = {**gains(data, "served"), **gains(data, "stress"), **gains(data, "node")}
    line = (
        f"**Asked for** of `mfs` in every setting, with eight classes: not below {LEAST_GAIN:+.1f} points, mean TTFT "
        f"not above x{LONGEST}. "
    )
    line += f"Missed {_misses(every)}. "
    asked = {"fan-in": 4.0, "bursts": 3.0, "egress": 1.0}
    bars = [
        f"{s} {bar:g} ({'held by the whole interval' if f.gain - (f.gain_half or 0) >= bar else gain(f)})"
        for s, bar in asked.items()
        if (f := gains(data, "stress").get(s))
    ]
    return line + (f"Points asked for: {', '.join(bars)}." if bars else "")


def worse(data: Data) -> str:
    """Compares with what this page printed before these rows."""
    lower, longer, later, changes = [], [], [], []
    for one in data.before:
        now = data.against(one.section, one.setting, "mfs")
        if now is None:
            continue
        name = with_section(one.section, one.setting)
        changes.append(now.gain - one.gain)
        if round(now.gain, 1) < one.gain:
            lower.append(f"{name} {one.gain:+.1f}, now {now.gain:+.1f}")
        if round(now.ttft_ratio, 2) > one.ttft_ratio:
            longer.append(f"{name} x{one.ttft_ratio:.2f}, now x{now.ttft_ratio:.2f}")
        if round(now.p99_ratio, 2) > one.p99_ratio:
            later.append(f"{name} x{one.p99_ratio:.2f}, now x{now.p99_ratio:.2f}")
    if not changes:
        return ""
    change = f"{statistics.fmean(changes):+.1f} on average of {len(changes)} settings"
    return (
        f"**Worse than before**, on the same seeds (rules of commit {BEFORE}, whose figures this page had, copied by "
        f"hand; points of `mfs` have changed by {change}). In points: {'; '.join(lower) or 'none'}. In mean TTFT: "
        f"{'; '.join(longer) or 'none'}. In p99 TTFT: {'; '.join(later) or 'none'}."
    )


def capacities(data: Data) -> str:
    found = {setting: data.capacity("served", setting, "mfs") for setting in data.settings("served")}
    have: dict[str, Capacity] = {setting: one for setting, one in found.items() if one and one.ratio}
    if not have:
        return ""
    lower = [f"{setting} (x{one.ratio:.2f})" for setting, one in have.items() if one.ratio < 0.995]
    seeds = max(len(one.loads) for one in data.carried if one.section == "served")
    ratios = times([one.ratio for one in have.values()])
    return (
        f"**Capacity** (the load up to which 90 % are in time) with `mfs` is {ratios} "
        f"of that with `dscp-size` in {len(have)} settings as served, above it with the whole interval, which is wide "
        f"with {seeds} seeds, in {sum(one.above for one in have.values())}, and below it in "
        f"{', '.join(lower) or 'none'}."
    )


def reference(data: Data) -> str:
    """States which part of the gain of an exact order the classes keep."""
    parts = []
    for section in ("served", "stress", "node"):
        exact = gains(data, section, exact=True)
        ours = {s: f for s, f in gains(data, section).items() if s in exact}
        if ours:
            kept = statistics.fmean(f.gain for f in ours.values())
            most = statistics.fmean(f.gain for f in exact.values())
            parts.append(f"{section} {most:+.1f}, of which classes have {kept:+.1f} (mean of {len(ours)} settings)")
    return (
        f"**`mfs` in exact order**, the reference, against the same `dscp-size`: {'; '.join(parts)}." if parts else ""
    )


def competitors(data: Data) -> str:
    """Lists other policies in exact order, beside `mfs` with classes and in exact order."""
    parts = []
    for policy in EXACT:
        pairs = [
            (theirs.gain, ours.gain, exact.gain)
            for section in ("served", "stress", "node")
            for setting, theirs in gains(data, section, policy, exact=True).items()
            if (ours := gains(data, section).get(setting))
            and (exact := data.against(section, setting, "mfs", exact=True))
        ]
        if policy != "mfs" and pairs:
            above = sum(theirs > ours for theirs, ours, _ in pairs)
            above_exact = sum(theirs > exact for theirs, _, exact in pairs)
            mean = statistics.fmean(theirs for theirs, _, _ in pairs)
            parts.append(f"`{policy}` {mean:+.1f} points, {above} and {above_exact} of {len(pairs)}")
    if not parts:
        return ""
    return (
        "**Others in exact order**, which no fabric gives them: mean against `dscp-size` with classes, and in how many "
        f"settings they are above `mfs` with eight classes and above `mfs` in exact order: {'; '.join(parts)}."
    )


def stages(data: Data) -> str:
    parts = []
    for section in ("served", "stress", "node"):
        found = [f for policy in STAGES for f in gains(data, section, policy).values()]
        if found:
            parts.append(f"{section} {span([f.gain for f in found], '+.1f')}")
    if not parts:
        return ""
    where = "; ".join(parts)
    return f"**Classes by stage** (`dscp`, `static`), with which most operators begin, against marks by size: {where}."


def not_run(data: Data) -> str:
    """Lists what a section asks for and no row has, with the figures of earlier rules if there are any."""
    parts = []
    for name, section in SECTIONS.items():
        wanted = [(f"`{policy}`", gains(data, name, policy)) for policy in section.policies]
        wanted += [(f"`{policy}` reads", gains(data, name, policy, variant="reads")) for policy in section.reads]
        wanted += [(f"`{policy}` exact", gains(data, name, policy, exact=True)) for policy in section.exact]
        most = len(settings.named(section.settings))
        left = [
            f"{what}{f' in {most - len(have)} of {most}' if have else ''}" for what, have in wanted if len(have) < most
        ]
        if left:
            parts.append(f"{name}: {', '.join(left)}")
    old = [f"{one.setting} {one.gain:+.1f} ± {one.gain_half:.1f} x{one.ttft_ratio:.2f}" for one in _left(data)]
    if old:
        parts.append(f"under the rules of commit {BEFORE} `mfs` was at {', '.join(old)}")
    return f"**Not run**: {'; '.join(parts)}; capacities where no table has them." if parts else ""


def _left(data: Data) -> list[Before]:
    """Returns settings that were on the page before and have no rows."""
    return [one for one in data.before if data.against(one.section, one.setting, "mfs") is None]

"""One HTML file with the modes' figures, and who had the contended links over time. It needs no network, no script and
no manual, and is light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bench.testbed.leg import LegResult
from bench.testbed.measure import Result, machine, over_seeds
from bench.testbed.modes import CLASSES, Mode
from bench.testbed.scale import Scale
from bench.testbed.show import COLOURS, COLUMNS, TITLES, WATCHED, cells, changes_against, shares

WIDTH, HEIGHT = 520, 130
LEFT, BOTTOM, TOP = 34, 18, 8
"""Room for the axes, in the picture's own units."""
LEAST_SHARE = 0.01
"""Share of the link that a class must have had at some time to be drawn."""

STYLE = """
  :root { color-scheme: light dark; --paper: #fff; --ink: #1b1b1b; --dim: #666; --line: #8885; --bar: #2a78d6; }
  @media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e8e8e8; --dim: #9aa0a6; --bar: #5b9cf0; } }
  body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1.2rem; max-width: 1180px;
    background: var(--paper); color: var(--ink); }
  h1 { font-size: 1.25rem; margin: 0 0 .4rem; } h2 { font-size: 1rem; margin: 1.5rem 0 .2rem; }
  p { margin: .2rem 0 .6rem; max-width: 80ch; } p.dim, figcaption, .key { color: var(--dim); font-size: .88rem; }
  table { border-collapse: collapse; } caption { text-align: left; color: var(--dim); font-size: .88rem; }
  td, th { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right;
    font-variant-numeric: tabular-nums; vertical-align: bottom; white-space: pre-line; }
  th { color: var(--dim); font-weight: 600; font-size: .85rem; } td:first-child, th:first-child { text-align: left; }
  td.says { text-align: left; color: var(--dim); font-size: .88rem; white-space: normal; }
  tr.mfs td { font-weight: 600; } tr.mfs td.says { font-weight: 400; }
  .links { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: .4rem 1.2rem; }
  figure { margin: 0; } svg { width: 100%; height: auto; display: block; }
  svg text { fill: var(--dim); font: 10px system-ui, sans-serif; } svg .axis { stroke: var(--line); }
  svg .full { stroke: var(--ink); stroke-dasharray: 4 3; stroke-width: .8; }
  .key span { white-space: nowrap; margin-right: 1rem; }
  .key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
"""


def meanings(mode: Mode) -> dict[int, str]:
    """Describes in words what travels on each class in this mode."""
    if mode.scheduled and not mode.apart:
        return {mode.collective_class: "everything"}
    if mode.scheduled and mode.coordinator and (mode.policy or {}).get("variant") == "paper":
        between = dict.fromkeys(range(2, CLASSES - 1), "KV; the higher the class, the later it is needed")
        return {0: "KV pushes that are nearly late", 1: "collectives and the most urgent KV", **between, 7: "given up"}
    if mode.scheduled:
        return {
            0: "collectives",
            1: "KV fetches that are short or for this layer, and KV pushes that are nearly late",
            2: "KV fetches that are longer or for the next layer",
            3: "KV fetches that are long or for later layers",
            4: "KV pushes that are due next",
            5: "KV pushes that are due soon, and the longest KV fetches",
            6: "KV pushes that are due later",
            7: "what is pruned, and background",
        }
    if mode.by_size:
        loads = dict.fromkeys(mode.lanes(1), "KV fetches; the smaller, the higher the class")
        pushes = dict.fromkeys(mode.lanes(3), "KV pushes; the smaller, the higher the class")
        return {mode.collective_class: "collectives", **loads, **pushes}
    found: dict[int, list[str]] = {}
    for k, words in (
        (mode.collective_class, "collectives"),
        (mode.reuse_class, "KV fetches"),
        (mode.p2d_class, "KV pushes"),
    ):
        found.setdefault(k, []).append(words)
    return {k: "everything" if len(words) == 3 else " and ".join(words) for k, words in found.items()}


def page(
    headline: str,
    legs: Sequence[LegResult],
    results: Sequence[Result],
    modes: Sequence[Mode],
    scale: Scale,
    captions: Mapping[str, str] | None = None,
) -> str:
    """Returns the whole file. `legs`: one of each mode, of the same round. `captions`: text beside each mode."""
    seconds = max((_last_s(leg, scale) for leg in legs), default=0.0)
    parts = [
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>MFS testbed</title>',
        f"<style>{STYLE}</style>",
        f"<h1>{escape(headline)}</h1>",
        "<p>The same requests were served once in each mode, on a small LLM serving cluster of network namespaces: "
        "prefill workers fetch reused KV, exchange activations in every layer (collectives), and push new KV to a "
        "decode worker. TTFT is the time to the first token; CCT the time that a collective takes, in which GPUs wait.",
        *_table(results, modes),
        "<h2>Who had the link, over time</h2>",
        "<p>Two links of the switch, one round. Height is rate, the dashed line the whole link; a colour is a priority "
        "class, 0 first. Where the band is full, something waits: what counts is whose colour is there meanwhile.",
    ]
    for leg in legs:
        mode = next(mode for mode in modes if mode.name == leg.mode)
        parts += _leg(mode, leg, scale, seconds, (captions or {}).get(leg.mode, ""))
    parts.append(f'<p class="dim">Measured on {escape(machine())}. {escape(scale.describe())}.')
    return "\n".join(parts) + "\n"


def write(
    path: Path,
    headline: str,
    legs: Sequence[LegResult],
    results: Sequence[Result],
    modes: Sequence[Mode],
    scale: Scale,
    captions: Mapping[str, str] | None = None,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(headline, legs, results, modes, scale, captions))


def _table(results: Sequence[Result], modes: Sequence[Mode]) -> list[str]:
    head = "".join(f"<th>{escape(column)}" for column in COLUMNS)
    lines = [f"<table>\n<caption>{escape(changes_against(modes))}</caption>\n<tr>{head}<th>"]
    for mode in modes:
        row = "".join(f"<td>{escape(cell)}" for cell in cells(results, mode, modes[0].name))
        kind = ' class="mfs"' if mode.name.startswith("mfs") else ""
        lines.append(f'<tr{kind}>{row}<td class="says">{escape(mode.says)}')
    return [*lines, "</table>"]


def _last_s(leg: LegResult, scale: Scale) -> float:
    return max((points[-1][0] for s in leg.samples.values() if (points := shares(s, scale))), default=0.0)


def _leg(mode: Mode, leg: LegResult, scale: Scale, seconds: float, caption: str) -> list[str]:
    points = {host: shares(leg.samples.get(host, []), scale) for host in WATCHED}
    used = [k for k in range(CLASSES) if any(rates[k] > LEAST_SHARE for p in points.values() for _, rates in p)]
    words = meanings(mode)
    key = "".join(
        f'<span><i style="background:{COLOURS[k]}"></i>class {k}: {escape(words.get(k, "other"))}</span>' for k in used
    )
    drawn = [
        f"<figure><figcaption>{escape(TITLES[host])}</figcaption>{_chart(points[host], used, scale, seconds)}</figure>"
        for host in WATCHED
    ]
    return [
        f"<section>\n<h2>{escape(leg.mode)}: {escape(mode.says)}</h2>",
        *([f"<p><b>{escape(caption)}</b>"] if caption else []),
        f'<p class="key">{key}',
        '<div class="links">',
        *drawn,
        "</div>\n</section>",
    ]


def _chart(points: Sequence[tuple[float, list[float]]], used: Sequence[int], scale: Scale, seconds: float) -> str:
    """Draws an SVG: classes stacked, the first at the bottom; a rate holds from the sample before it."""
    span, full = max(seconds, 1e-9), HEIGHT - BOTTOM

    def x(at_s: float) -> float:
        return round(LEFT + at_s / span * (WIDTH - LEFT - 2), 1)

    def y(share: float) -> float:
        return round(full - min(share, 1.05) * (full - TOP), 1)

    areas, below = [], [0.0] * len(points)
    starts = [0.0, *(at for at, _ in points)]
    for k in used:
        above = [base + rates[k] for base, (_, rates) in zip(below, points, strict=True)]
        edges = [
            (starts[i], at, low, high) for i, ((at, _), low, high) in enumerate(zip(points, below, above, strict=True))
        ]
        upper = " ".join(f"{x(a)},{y(high)} {x(b)},{y(high)}" for a, b, _, high in edges)
        lower = " ".join(f"{x(b)},{y(low)} {x(a)},{y(low)}" for a, b, low, _ in reversed(edges))
        areas.append(f'<polygon fill="{COLOURS[k]}" points="{upper} {lower}"><title>class {k}</title></polygon>')
        below = above
    step = next((s for s in (1, 2, 5, 10, 20, 60) if span / s <= 8), 300)
    ticks = "".join(
        f'<text x="{x(at)}" y="{HEIGHT - 5}" text-anchor="middle">{at} s</text>' for at in range(0, int(span) + 1, step)
    )
    rate = f"{scale.link_bits_per_s / 1e6:g}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="rate by class over {span:.0f} seconds">'
        f"{''.join(areas)}"
        f'<line class="full" x1="{LEFT}" x2="{WIDTH}" y1="{y(1)}" y2="{y(1)}"/>'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{full}" y2="{full}"/>'
        f'<text x="{LEFT - 4}" y="{y(1) + 4}" text-anchor="end">{rate}</text>'
        f'<text x="{LEFT - 4}" y="{y(0.5)}" text-anchor="end">Mbit/s</text>{ticks}</svg>'
    )


def summary(results: Sequence[Result], modes: Sequence[Mode]) -> str:
    """Returns a headline for a comparison without a verdict."""
    shown = ", ".join(f"{m.name} {over_seeds(results, m.name, 'slo_attainment').mean:.0%}" for m in modes)
    return f"First tokens in time: {shown}"

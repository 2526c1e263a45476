"""docs/results/claims.md, from the rows of the claims and the ablations. Nothing on it is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.requests.ablations import Ablation, missing
from bench.requests.claim import NOT_RUN, REFUTED, SHOWN, Row

HEAD = """# Claims about the request tier

Generated from [claims-results.json](claims-results.json) and [claims-ablations.json](claims-ablations.json) by
`python -m bench requests claims --page`; do not edit. Simulated, not measured on engines: every step is planned by the
production rules, step times are a published model of Llama3-8B on one A100. What the commands do, and the limits:
[requests](../requests.md).
"""
ABLATIONS = """
## Defaults that no paper gives

Each halved and doubled, all else equal, on seeds of their own; in runs of less than 14,400 s the deadlines of batch
tiers are shortened alike, unless they are named. A number that changes nothing at either load could be any other. Of
`pace_forget` what a step forgets, 1 less the number, is halved and doubled. ± is the standard error over the seeds: of
the default's mean, and of the others' distance from it, seed by seed, which stands in brackets.

| number | default | measured | half | default | twice |
|---|---|---|---|---|---|
"""


def text(rows: Sequence[Row], ablations: Sequence[Ablation]) -> str:
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in (SHOWN, REFUTED, NOT_RUN)}
    lines = [
        HEAD,
        f"{counts[SHOWN]} of {len(rows)} shown, {counts[REFUTED]} refuted, {counts[NOT_RUN]} not run.",
        "",
        "| claim | of | says | bar here | measured | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        note = f" ({row.note})" if row.note else ""
        verdict = row.verdict if row.verdict == SHOWN else f"**{row.verdict}**"
        cells = (row.id, row.where, row.claim, row.bar, f"{row.measured}{note}".strip(), verdict)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    written = "\n".join(lines) + "\n"
    if ablations:
        written += ABLATIONS + "".join(_line(a) for a in ablations)
        if left := missing(ablations):
            written += f"\nNot measured: {', '.join(left)}.\n"
    return written


def _line(a: Ablation) -> str:
    results = " | ".join(_result(a, n) for n in range(len(a.results)))
    measure = f"{a.measure} ({a.scale})" if a.scale else a.measure
    return f"| `{a.name}` | {a.default:g} | {measure} | {results} |\n"


def _result(a: Ablation, number: int) -> str:
    result, default = a.results[number], len(a.results) // 2
    if not a.errors:
        return f"{result:.2f}"
    if number == default:
        return f"{result:.2f}±{a.errors[number]:.2f}"
    return f"{result:.2f} ({result - a.results[default]:+.2f}±{a.errors[number]:.2f})"


def write(path: Path, rows: Sequence[Row], ablations: Sequence[Ablation]) -> None:
    path.write_text(text(rows, ablations))

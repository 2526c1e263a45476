"""Shows what was measured: a table, bars over time in the terminal, and a picture."""

from __future__ import annotations

import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.demo.measure import (
    BULK_SHARE_MIN,
    SLOWDOWN_WITH_MAX,
    SLOWDOWN_WITHOUT_MIN,
    Run,
    Verdict,
    rate_while_idle,
)
from bench.demo.programs import Call

BARS = " ▁▂▃▄▅▆▇█"
COLLECTIVE_COLOUR, BULK_COLOUR = "#0072b2", "#e69f00"  # Okabe-Ito: told apart by colour-blind readers too


def series(calls: list[Call], start_ns: int, end_ns: int, buckets: int) -> list[float]:
    """Bytes per second in each of `buckets` equal parts of the time; a call's bytes are spread over its duration."""
    width_ns = (end_ns - start_ns) / buckets
    rates = [0.0] * buckets
    for call in calls:
        length_ns = max(1, call.end_ns - call.start_ns)
        first = max(0, int((call.start_ns - start_ns) / width_ns))
        last = min(buckets - 1, int((call.end_ns - start_ns) / width_ns))
        for bucket in range(first, last + 1):
            left = max(call.start_ns, start_ns + bucket * width_ns)
            right = min(call.end_ns, start_ns + (bucket + 1) * width_ns)
            if right > left:
                rates[bucket] += call.bytes * (right - left) / length_ns / width_ns * 1e9
    return rates


def span(run: Run) -> tuple[int, int]:
    calls = run.collective + run.bulk
    return min(c.start_ns for c in calls), max(c.end_ns for c in calls)


def bars(rates: list[float], top: float) -> str:
    return "".join(BARS[min(8, max(0, round(rate / top * 8)))] for rate in rates)


def terminal(
    console: Console,
    alone: list[Run],
    without: list[Run],
    with_mfs: list[Run],
    result: Verdict,
    link_bytes_per_s: float,
) -> None:
    table = Table(title="All-to-all beside a Mooncake bulk write, one device", title_justify="left")
    table.add_column("")
    table.add_column("all-to-all, ms", justify="right")
    table.add_column("against alone", justify="right")
    table.add_column("bulk while all-to-all is idle", justify="right")

    def milliseconds(runs: list[Run]) -> str:
        values = [v * 1e3 for run in runs for v in run.rounds_s]
        return f"{statistics.fmean(values):.0f} ({min(values):.0f}-{max(values):.0f})"

    def share(runs: list[Run]) -> str:
        return f"{statistics.median(rate_while_idle(r) for r in runs) / link_bytes_per_s:.2f} of the link"

    table.add_row("alone", milliseconds(alone), "1.00", "")
    table.add_row("without MFS", milliseconds(without), f"{result.slowdown_without:.2f}", share(without))
    table.add_row("with MFS", milliseconds(with_mfs), f"{result.slowdown_with:.2f}", share(with_mfs), style="bold")
    console.print(table)
    width = max(20, min(100, console.width - 24))
    for name, run in (("without MFS", without[-1]), ("with MFS", with_mfs[-1])):
        start_ns, end_ns = span(run)
        console.print(f"[bold]{name}[/bold], {(end_ns - start_ns) / 1e9:.1f} s, bar height = share of the link")
        for label, calls, colour in (
            ("all-to-all", run.collective, COLLECTIVE_COLOUR),
            ("bulk write", run.bulk, BULK_COLOUR),
        ):
            rates = series(calls, start_ns, end_ns, width)
            console.print(f"  {label:>10} [{colour}]{bars(rates, link_bytes_per_s)}[/{colour}]", highlight=False)


def sentence(result: Verdict) -> str:
    """The verdict in words, with the bounds."""
    word = "holds" if result.holds else "does NOT hold"
    return (
        f"It {word}: with MFS the all-to-all takes {result.slowdown_with:.2f}x of its time alone (at most "
        f"{SLOWDOWN_WITH_MAX}), without {result.slowdown_without:.2f}x (at least {SLOWDOWN_WITHOUT_MIN}); an idle "
        f"all-to-all leaves the bulk write {result.bulk_share_of_link:.2f} of the link (at least {BULK_SHARE_MIN})."
    )


def picture(path: Path, without: Run, with_mfs: Run, link_bytes_per_s: float) -> None:
    """Both runs over time, one above the other, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(9, 5), sharex=True, sharey=True, layout="constrained")
    for axis, name, run in zip(axes, ("without MFS", "with MFS"), (without, with_mfs), strict=True):
        start_ns, end_ns = span(run)
        buckets = 200
        times = [(i + 0.5) * (end_ns - start_ns) / buckets / 1e9 for i in range(buckets)]
        collective = series(run.collective, start_ns, end_ns, buckets)
        bulk = series(run.bulk, start_ns, end_ns, buckets)
        axis.stackplot(
            times,
            [r * 8 / 1e9 for r in collective],
            [r * 8 / 1e9 for r in bulk],
            labels=["all-to-all (blocks the next layer)", "Mooncake bulk write"],
            colors=[COLLECTIVE_COLOUR, BULK_COLOUR],
        )
        axis.axhline(link_bytes_per_s * 8 / 1e9, color="black", linewidth=0.8, linestyle="--")
        mean_ms = statistics.fmean(run.rounds_s) * 1e3
        axis.set_title(f"{name}: an all-to-all takes {mean_ms:.0f} ms on average", loc="left", fontsize=10)
        axis.set_ylabel("Gbit/s")
    axes[0].legend(loc="upper right", fontsize=8)
    axes[1].set_xlabel("seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)

"""Rows of many runs in one file: finished ones are kept whatever happens, and a second call continues from there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.sim import sweep

Result = dict[str, Any]
Report = Callable[[int, int, Result], None]


def collect(
    items: Sequence[Any],
    identity: Callable[[Any], tuple[Any, ...]],
    identity_of: Callable[[Result], tuple[Any, ...]],
    config: dict[str, Any],
    function: Callable[[Any], Result],
    path: Path | None,
    report: Report,
    engine: str = "local",
) -> list[Result]:
    """Returns rows of all items, those of the file first, and runs what is missing. KeyboardInterrupt passes through
    after the finished rows are on disk."""
    results = sweep.load(path, config)
    done = {identity_of(row) for row in results}
    missing = [item for item in items if identity(item) not in done]
    for row in sweep.each(function, missing, engine):
        results.append(row)
        sweep.save(path, config, results)
        report(len(results), len(done) + len(missing), row)
    return results

"""Many points, one file: finished points are kept whatever happens, and a sweep continues where it stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.sim import point as points
from bench.sim.cluster import ConfigError
from bench.sim.point import Point

Result = dict[str, Any]
Report = Callable[[int, int, Result], None]


def identity(point: Point) -> tuple[str, str, float, int]:
    return (point.policy, point.scheduler, point.rate, point.seed)


def common(points_: Sequence[Point]) -> dict[str, Any]:
    """Returns what all points of a file share: everything but policy, scheduler, rate and seed."""
    shared = points.described(points_[0])
    for key in ("policy", "scheduler", "rate", "seed"):
        shared.pop(key, None)
    return shared


def load(path: Path | None, config: dict[str, Any]) -> list[Result]:
    """Reads the results of an earlier run of the same sweep. Raises ConfigError if the file holds something else."""
    if path is None or not path.exists():
        return []
    try:
        content = json.loads(path.read_text())
        results: list[Result] = content["results"]
        before = content["config"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--json {path}: exists and is not a result of this command; name another file") from error
    if before != config:
        differing = sorted(k for k in config.keys() | before.keys() if config.get(k) != before.get(k))
        raise ConfigError(
            f"--json {path}: holds results of another configuration ({', '.join(differing)} differ); name another file"
        )
    return results


def save(path: Path | None, config: dict[str, Any], results: Sequence[Result]) -> None:
    if path is None:
        return
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps({"config": config, "results": list(results)}, indent=1) + "\n")
    beside.replace(path)


def run(sweep: Sequence[Point], path: Path | None, report: Report, engine: str = "local") -> list[Result]:
    """Runs what is missing. KeyboardInterrupt passes through after the finished points are on disk."""
    config = common(sweep)
    results = load(path, config)
    # Files from before there were schedulers contain first come first served.
    done = {(r["policy"], r.get("scheduler", "fcfs"), r["rate"], r["seed"]) for r in results}
    missing = [p for p in sweep if identity(p) not in done]
    for result in each(points.run, missing, engine):
        results.append(result)
        save(path, config, results)
        report(len(results), len(sweep), result)
    return results


def each(function: Callable[[Any], Result], items: Sequence[Any], engine: str = "local") -> Iterator[Result]:
    """Yields the function's result for each item as it is ready, computed here or on a Ray cluster."""
    return _ray(function, items) if engine == "ray" else map(function, items)


@contextmanager
def cluster(engine: str) -> Iterator[None]:
    """Stays connected to Ray for several sweeps; local sweeps need nothing."""
    if engine != "ray":
        yield
        return
    ray = _connected()
    try:
        yield
    finally:
        ray.shutdown()


def _connected() -> Any:
    """Returns Ray, connected to the cluster that RAY_ADDRESS names, or a local one."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--engine ray: Ray is not installed (pip install 'mfsd[ray]')") from error
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    return ray


def _ray(function: Callable[[Any], Result], items: Sequence[Any]) -> Iterator[Result]:
    """Spreads the items over the Ray cluster."""
    if not items:
        return
    kept = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    ray = _connected()
    remote = ray.remote(function)
    pending = [remote.remote(item) for item in items]
    try:
        while pending:
            finished, pending = ray.wait(pending)
            yield ray.get(finished[0])
    finally:
        if not kept:
            ray.shutdown()

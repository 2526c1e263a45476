"""Options that several of the commands have, and how their values are read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.requests import policies, settings, workloads
from bench.requests.errors import UsageError
from bench.requests.point import Point

SECONDS_MAX = 7 * 86_400.0


def add_workload(p: argparse.ArgumentParser, what: Sequence[str] = tuple(workloads.KINDS)) -> None:
    group = p.add_argument_group("what is served")
    group.add_argument(
        "--what",
        default=what[0],
        choices=what,
        help="tiers: requests with deadlines of their tier (QoServe); programs: calls that follow one another "
        "(Agentix); agents: programs that wait for tools and persons, on several replicas; drift: rates and mixes "
        "that change (H-MAS); workflows: jobs of several models (Maestro); default %(default)s",
    )
    group.add_argument(
        "--workload",
        metavar="NAME",
        help="; ".join(f"{name}: {', '.join(workloads.KINDS[name].workloads)}" for name in what)
        + " (default: the first)",
    )
    group.add_argument(
        "--traces",
        type=Path,
        metavar="DIR",
        help="folder with recorded lengths (azure2023_code, lengths_sharegpt8k_llama2, lengths_sharegpt_v3, "
        "agentic_claudecode; .parquet or .jsonl with input_length and output_length); without it lengths are generated "
        "from the same traces' published quantiles, and the rows say so",
    )
    group.add_argument("--seconds", type=float, metavar="T", help="how long requests arrive (default: tiers 1800, "
                       "programs 900, agents 300, drift and workflows 600)")  # fmt: skip
    group.add_argument("--requests", type=int, metavar="N", help="instead of --seconds: as long as N take to arrive")


def add_output(p: argparse.ArgumentParser) -> None:
    out = p.add_argument_group("output")
    out.add_argument(
        "--json", type=Path, metavar="FILE", help="results; written after every run, continued when it exists"
    )
    out.add_argument("--engine", default="local", choices=("local", "ray"), help="ray: spread runs over a Ray cluster")


def add_settings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--set",
        default=[],
        action="append",
        metavar="NAME=VALUE",
        help=f"what is held under all policies: {', '.join(settings.names())}; or serve.NAME, a number of the request "
        "tier (docs/internals/serve.md)",
    )


def numbers(text: str, option: str, kind: type, least: float) -> list[Any]:
    """Returns values above `least`, each once."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text}: use numbers separated by commas") from None
    if not all(least < value < float("inf") for value in values):
        raise UsageError(f"{option} {text}: use numbers above {least:g}")
    return list(dict.fromkeys(values))


def base(options: argparse.Namespace, qps: float) -> Point:
    """Returns what all runs share; `qps` matters if --requests determines how long they are."""
    given = settings.read(options.set)
    workload = options.workload or workloads.kind(options.what).workloads[0]
    workloads.check(options.what, workload)
    return Point(
        what=options.what,
        workload=workload,
        seconds=_seconds(options, qps),
        traces=str(options.traces) if options.traces else None,
        settings=given,
    )


def _seconds(options: argparse.Namespace, qps: float) -> float:
    if options.requests is not None:
        if options.seconds is not None:
            raise UsageError(f"--requests {options.requests} --seconds {options.seconds:g}: use one of them")
        if options.requests < 1:
            raise UsageError(f"--requests {options.requests}: use at least 1")
        return float(options.requests) / qps
    seconds = float(options.seconds if options.seconds is not None else workloads.kind(options.what).seconds)
    if not 0 < seconds <= SECONDS_MAX:
        raise UsageError(f"--seconds {seconds:g}: use a time above 0 and at most {SECONDS_MAX:g}")
    return seconds


def chosen_policies(options: argparse.Namespace) -> list[str]:
    return policies.find(options.what, options.policy.split(","))

"""python -m bench sim: simulates a prefill/decode cluster under scheduling policies and reports SLO attainment."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bench.sim import controller, drift, generators, policies, serve, sweep
from bench.sim.cluster import CACHES, DECODE_CHOICES, FETCH, Config, ConfigError
from bench.sim.point import Point
from bench.sim.profile import ACCELERATORS, MODELS
from bench.sim.reuse import OUTLOOKS, PLACEMENTS, REUSE, ROUTERS, ReuseConfig
from bench.sim.workload import TraceError

PIPE_COLUMNS = 120
"""In a file or a pipe no policy's name is cut."""
COMMANDS = {  # imported when asked for: they bring plotting
    "figure": "bench.sim.figures",
    "choose": "bench.sim.choose",
    "classes": "bench.sim.classes",
    "study": "bench.sim.study",
    "traces": "bench.sim.trace_study",
    "overview": "bench.sim.overview",
    "sensitivity": "bench.sim.sensitivity",
    "optimality-gap": "bench.sim.optimality_gap",
    "linearity": "bench.sim.linearity",
    "outlook": "bench.sim.outlook",
    "routers": "bench.sim.router_study",
    "bypass": "bench.sim.bypass_study",
    "moves": "bench.sim.moves_study",
    "activations": "bench.sim.activations_study",
    "orders": "bench.sim.orders_study",
    "full-size": "bench.sim.full_size",
    "paper": "bench.sim.paper_page",
}
EXAMPLES = """
examples:
  python -m bench sim --model dbrx --workload qwen-a --policy static,mfs,nocont --rate 0.15,0.2 --gpus 384
  python -m bench sim --policy mfs --scheduler fcfs,fit --rate 0.2 --gpus 384 --requests 300 --warmup 100
  python -m bench sim --policy mfs --reuse cost --placement backlog --rate 0.2 --gpus 384 --requests 300
  python -m bench sim --trace my.jsonl --policy fs,mfs --rate 0.2 --requests 500 --warmup 100 --json out.json
  python -m bench sim --model dbrx,qwen3-coder --workload qwen-a,qwen-b --fabric fat-tree --gpus 256
  python -m bench sim figure 10 --quick
  python -m bench sim choose out/choose.jsonl
  python -m bench sim study out/study.jsonl --setting contended
  python -m bench sim classes out/classes.jsonl --section served
  python -m bench sim traces out/traces.jsonl --trace my.parquet
  python -m bench sim sensitivity out/sensitivity.jsonl --what k,error
  python -m bench sim optimality-gap --setting hot
  python -m bench sim linearity

To resume a stopped sweep, give the same command again with the same --json FILE. A policy of your own is a
Python file: --policy ./mine.py (see bench/sim/policies/__init__.py).
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench sim",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _work_options(p.add_argument_group("workload"))
    _run_options(p.add_argument_group("comparison"))
    _reuse_options(p.add_argument_group("rules that use what the network owes"))
    fabric = p.add_argument_group("cluster and contention; the same for every policy")
    _fabric_options(fabric)
    _serving_options(fabric)
    _queue_options(fabric)
    out = p.add_argument_group("output")
    out.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="results; written after every point, continued if the file exists",
    )
    out.add_argument(
        "--engine", default="local", choices=("local", "ray"), help="ray: spread points over a Ray cluster"
    )
    return p


def _work_options(work: argparse._ArgumentGroup) -> None:
    work.add_argument(
        "--model",
        default="dbrx",
        metavar="NAME[,NAME...]",
        help=f"model, and how it is split over GPUs (default dbrx); several share one fabric: of {', '.join(MODELS)}",
    )
    work.add_argument(
        "--accelerator", default="a100", choices=ACCELERATORS, help="GPU whose profile to use (default a100)"
    )
    source = work.add_mutually_exclusive_group()
    source.add_argument(
        "--workload",
        metavar="NAME[,NAME...]",
        help="generated requests fitted to published statistics, for all models or one for each (default qwen-a): "
        + ", ".join((*generators.NAMES, *drift.NAMES)),
    )
    source.add_argument(
        "--trace",
        metavar="FILE",
        help="recorded requests: Parquet or JSONL, or the form that Mooncake and Qwen publish",
    )
    work.add_argument(
        "--arrivals",
        default="poisson",
        choices=("poisson", "trace"),
        help="arrivals; trace: recorded times, stretched to the rate",
    )
    work.add_argument("--requests", type=int, default=1024, metavar="N", help="measured requests (default 1024)")
    work.add_argument(
        "--warmup", type=int, default=512, metavar="N", help="requests before the measured ones (default 512)"
    )
    work.add_argument("--rate", default="0.1", metavar="R[,R...]", help="requests/s per prefill GPU (default 0.1)")
    work.add_argument(
        "--slo-factor",
        type=float,
        default=3.0,
        metavar="F",
        help="deadline: F times the isolated TTFT (default 3)",
    )


def _run_options(run: argparse._ArgumentGroup) -> None:
    run.add_argument(
        "--policy",
        default="fs,static,paper,mfs,nocont",
        metavar="A,B",
        help=f"of {', '.join(policies.names())}",
    )
    run.add_argument(
        "--scheduler",
        default="fcfs",
        metavar="A,B",
        help="rule for which queued requests form a unit's next batch: "
        + "; ".join(f"{name}: {what}" for name, (what, _) in serve.SCHEDULERS.items())
        + f"; {', '.join(controller.NAMES)}: the meta controller chooses of these for each unit as it serves",
    )
    run.add_argument("--seed", default="1", metavar="S[,S...]", help="the same seed gives the same result (default 1)")
    run.add_argument(
        "--set",
        default=[],
        action="append",
        metavar="NAME=VALUE",
        help="a parameter of mfs and paper, such as threshold_top=1",
    )


def _reuse_options(reuse: argparse._ArgumentGroup) -> None:
    def kinds(of: dict[str, str]) -> str:
        return "; ".join(f"{name}: {what}" for name, what in of.items())

    reuse.add_argument(
        "--reuse", default="always", metavar="RULE", help=f"what to do with KV that lies elsewhere: {kinds(REUSE)}"
    )
    reuse.add_argument(
        "--reuse-parts", action="store_true",
        help="fetch the first part of reuse that is computed again: with slo and cost the part that comes before the "
        "unit could begin, with a timeout the part that had come",
    )  # fmt: skip
    reuse.add_argument(
        "--placement",
        default="random",
        choices=PLACEMENTS,
        help=f"how the decode worker is chosen: {kinds(PLACEMENTS)}",
    )
    reuse.add_argument(
        "--router", default="locality", metavar="RULE", help=f"how the prefill unit is chosen: {kinds(ROUTERS)}"
    )
    reuse.add_argument(
        "--outlook", default="exact", choices=OUTLOOKS, help=f"what is known about backlogs: {kinds(OUTLOOKS)}"
    )
    reuse.add_argument(
        "--outlook-error", type=float, default=1.0, metavar="F", help="expected fetch times are F times the right ones"
    )
    reuse.add_argument(
        "--outlook-error-spread", type=float, default=0.0, metavar="S",
        help="each expected time is wrong by a factor of its own: log-normal, S is the standard deviation of its "
        "logarithm",
    )  # fmt: skip
    reuse.add_argument("--outlook-age-ms", type=float, default=0.0, metavar="T", help="age of what a coordinator says")


def _fabric_options(fabric: argparse._ArgumentGroup) -> None:
    fabric.add_argument(
        "--gpus", type=int, default=2048, metavar="N", help="GPUs in all, half of them prefill (default 2048)"
    )
    fabric.add_argument("--link-gbps", type=float, metavar="G", help="NIC speed (default 200; mixtral-8x7b 50)")
    fabric.add_argument(
        "--fabric",
        default="nic-only",
        choices=("nic-only", "fat-tree"),
        help="kind of fabric; fat-tree: with ECMP collisions",
    )
    fabric.add_argument(
        "--oversubscription",
        type=float,
        default=1.0,
        metavar="X",
        help="oversubscription of a fat-tree's racks (default 1)",
    )
    fabric.add_argument(
        "--fabric-classes",
        type=int,
        default=0,
        metavar="K",
        help="priorities of the fabric, 2-8; 0: exact order everywhere",
    )
    fabric.add_argument(
        "--hot-fraction", type=float, default=0.0, metavar="F", help="share of prefixes owned by one NIC"
    )
    fabric.add_argument(
        "--nics-per-server", type=int, metavar="N", help="NICs that the GPUs of a server share (default: one for each)"
    )
    fabric.add_argument(
        "--cache", default="keep", choices=CACHES, help="; ".join(f"{k}: {v}" for k, v in CACHES.items()) + " (keep)"
    )
    fabric.add_argument("--cache-gb", type=float, metavar="GB", help="KV cache of a GPU (default 400,000 tokens)")
    fabric.add_argument(
        "--cold", type=float, default=0.0, metavar="F", help="share of units whose caches are empty at the start"
    )
    fabric.add_argument(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help="number of holders from which others read a block (default 1)",
    )
    fabric.add_argument("--stripe", action="store_true", help="let an owner's blocks leave by all NICs of its server")
    fabric.add_argument(
        "--store-nics", type=int, default=0, metavar="N", help="number of NICs of a KV store that all units read from"
    )
    fabric.add_argument(
        "--decode-choice",
        default="load",
        choices=DECODE_CHOICES,
        help="; ".join(f"{k}: {v}" for k, v in DECODE_CHOICES.items()) + " (default load)",
    )
    fabric.add_argument(
        "--decode-nics", type=int, metavar="N", help="number of decode NICs (default one per prefill NIC)"
    )


def _serving_options(fabric: argparse._ArgumentGroup) -> None:
    fabric.add_argument(
        "--kv-scale", type=float, default=1.0, metavar="X", help="KV bytes per token, times the model's"
    )
    fabric.add_argument(
        "--burst",
        type=float,
        default=1.0,
        metavar="B",
        help="mean requests that arrive together and share a prefix",
    )
    fabric.add_argument(
        "--expert-skew", type=float, default=0.0, metavar="Z", help="Zipf exponent of expert popularity"
    )
    fabric.add_argument(
        "--copies", type=float, default=1.0, metavar="X", help="all-to-all bytes, times one copy per expert"
    )
    fabric.add_argument(
        "--batch-tokens",
        type=int,
        default=8192,
        metavar="N",
        help="tokens a unit computes together (default 8192)",
    )
    fabric.add_argument(
        "--fetch",
        default="loaded",
        choices=FETCH,
        help="when units ask for reused KV: "
        + "; ".join(f"{name}: {when}" for name, when in FETCH.items())
        + " (default loaded)",
    )
    fabric.add_argument(
        "--belief-error",
        type=float,
        default=0.0,
        metavar="E",
        help="policies mispredict compute times by up to +-E",
    )
    fabric.add_argument(
        "--coordinator-delay-ms", type=float, default=0.0, metavar="T", help="delay until a new order takes effect"
    )
    fabric.add_argument(
        "--counter-delay-ms",
        type=float,
        default=0.0,
        metavar="T",
        help="age of rho (policy paper), as when read from counters",
    )


def _queue_options(fabric: argparse._ArgumentGroup) -> None:
    fabric.add_argument(
        "--max-hold",
        type=float,
        metavar="S",
        help="with --fabric-classes: time that KV waits for permits before it goes without (default: for ever)",
    )
    fabric.add_argument(
        "--reads",
        action="store_true",
        help="with --fabric-classes: reuse waits in the queue of the NIC that it reaches, as one-sided reads do",
    )
    fabric.add_argument(
        "--bypass-share",
        type=float,
        default=0.0,
        metavar="S",
        help="share of sending NICs, taken by traffic that no daemon orders",
    )
    fabric.add_argument(
        "--bypass-burst-ms", type=float, default=50.0, metavar="T", help="mean length of its bursts (default 50)"
    )
    fabric.add_argument(
        "--bypass-read-ms",
        type=float,
        metavar="T",
        help="mfs with --fabric-classes: how often counters are read (default: never)",
    )


def numbers(text: str, option: str, kind: type) -> list[Any]:
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: use numbers separated by commas") from None
    if option == "--rate" and not all(0 < v < float("inf") for v in values):
        raise ConfigError(f"--rate {text}: use rates above 0")
    return list(dict.fromkeys(values))


def parameters(options: list[str]) -> dict[str, Any]:
    """Returns the policy's parameters, checked by its own rules."""
    from mfsd.policy import PolicyConfig

    given = {}
    for option in options:
        name, sign, value = option.partition("=")
        if not sign:
            raise ConfigError(f"--set {option}: use NAME=VALUE")
        try:
            given[name] = msgspec.json.decode(value.encode())
        except msgspec.DecodeError:
            given[name] = value
    try:
        decoded = msgspec.convert(given, PolicyConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--set: {error}") from error
    return {name: getattr(decoded, name) for name in given}


def configuration(options: argparse.Namespace) -> Config:
    return Config(
        model=options.model,
        accelerator=options.accelerator,
        gpus=options.gpus,
        decode_nics=options.decode_nics,
        nics_per_server=options.nics_per_server,
        cache=options.cache,
        cache_gb_per_gpu=options.cache_gb,
        cold=options.cold,
        replicas=options.replicas,
        stripe=options.stripe,
        store_nics=options.store_nics,
        decode_choice=options.decode_choice,
        link_gbps=options.link_gbps,
        fabric=options.fabric,
        oversubscription=options.oversubscription,
        hot_fraction=options.hot_fraction,
        kv_scale=options.kv_scale,
        burst=options.burst,
        expert_skew=options.expert_skew,
        copies=options.copies,
        slo_factor=options.slo_factor,
        fabric_classes=options.fabric_classes,
        batch_tokens=options.batch_tokens,
        fetch=options.fetch,
        belief_error=options.belief_error,
        coordinator_delay_s=options.coordinator_delay_ms / 1e3,
        counter_delay_s=options.counter_delay_ms / 1e3,
        bypass_share=options.bypass_share,
        bypass_burst_s=options.bypass_burst_ms / 1e3,
        max_hold_s=options.max_hold,
        reads=options.reads,
        bypass_read_s=None if options.bypass_read_ms is None else options.bypass_read_ms / 1e3,
        policy=parameters(options.set),
    )


def points_of(options: argparse.Namespace) -> list[Point]:
    if options.requests < 1 or options.warmup < 0:
        raise ConfigError(
            f"--requests {options.requests} --warmup {options.warmup}: measure at least one request after 0 or more"
        )
    known = (*generators.NAMES, *drift.NAMES)
    unknown = [name for name in (options.workload or "qwen-a").split(",") if name not in known]
    if unknown:
        raise ConfigError(f"--workload {','.join(unknown)}: use {', '.join(known)}, or --trace FILE")
    chosen = list(dict.fromkeys(options.policy.split(",")))
    for name in chosen:
        policies.find(name)
    schedulers = list(dict.fromkeys(options.scheduler.split(",")))
    for name in schedulers:
        if name not in controller.NAMES:
            serve.config_of(name)
    base = Point(
        config=configuration(options),
        workload=options.trace or options.workload or "qwen-a",
        arrivals=options.arrivals,
        reuse=ReuseConfig(
            rule=options.reuse,
            parts=options.reuse_parts,
            placement=options.placement,
            router=options.router,
            outlook=options.outlook,
            error=options.outlook_error,
            error_spread=options.outlook_error_spread,
            age_s=options.outlook_age_ms / 1e3,
        ),
        requests=options.requests,
        warmup=options.warmup,
    )
    return [
        msgspec.structs.replace(base, policy=name, scheduler=scheduler, rate=rate, seed=seed)
        for rate in numbers(options.rate, "--rate", float)
        for seed in numbers(options.seed, "--seed", int)
        for name in chosen
        for scheduler in schedulers
    ]


def show(results: list[sweep.Result]) -> None:
    columns = ("policy", "scheduler", "rate", "seed", "SLO met", "TTFT mean", "p99", "CCT mean", "load", "CPU")
    table = Table(*columns, box=box.SIMPLE, pad_edge=False, padding=0)  # fits a row on a line of 80 columns
    for r in results:
        table.add_row(
            r["policy"],
            r.get("scheduler", "fcfs"),
            f"{r['rate']:g}",
            str(r["seed"]),
            f"{r['slo_attainment']:.1%}",
            f"{r['ttft_s']['mean'] * 1e3:.1f} ms",
            f"{r['ttft_s']['p99'] * 1e3:.0f} ms",
            f"{r['cct_s']['mean'] * 1e3:.2f} ms",
            f"{r['load']:.2f}",
            f"{r['cpu_s']:.1f} s",
        )
    Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(table)


def progress(done: int, total: int, result: sweep.Result) -> None:
    print(
        f"[{done}/{total}] {result['policy']} {result['scheduler']} rate {result['rate']:g} seed {result['seed']}: "
        f"{result['slo_attainment']:.1%} met, "
        f"mean TTFT {result['ttft_s']['mean'] * 1e3:.1f} ms ({result['wall_s']:.1f} s)",
        file=sys.stderr,
        flush=True,
    )


def main(arguments: list[str]) -> int:
    try:
        if arguments[:1] and arguments[0] in COMMANDS:
            return int(importlib.import_module(COMMANDS[arguments[0]]).main(arguments[1:]))
        options = parser().parse_args(arguments)
        results = sweep.run(points_of(options), options.json, progress, options.engine)
    except (ConfigError, TraceError, LookupError, OSError) as error:
        print(f"bench sim: {error.args[0] if isinstance(error, LookupError) else error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "bench sim: stopped; the --json file keeps the finished points, and the same command resumes from there",
            file=sys.stderr,
        )
        return 130
    show(results)
    return 0

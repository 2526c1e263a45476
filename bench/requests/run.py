"""python -m bench requests run: serves a workload under policies on simulated engines and says who was late.

Each policy sees the same requests at the same times (one draw for each seed and rate). The production rules
(mfsd.policy.serve.plan_step) plan every step of an engine, to the bit. A published model of the hardware gives the time
of a step; the rules do not see the model, they learn it. Nothing here was measured on an engine."""

from __future__ import annotations

import argparse
import sys

import msgspec
from rich.console import Console
from rich.table import Table

from bench.requests import options as opt
from bench.requests import point as points
from bench.requests import policies, rows
from bench.requests.errors import UsageError
from bench.requests.point import Point, Result

EXAMPLES = f"""
policies:
{chr(10).join(f"  {what:9} {', '.join(of)}" for what, of in policies.OF.items())}

examples:
  python -m bench requests run --policy fcfs,edf,qoserve --qps 2,3,4 --seed 1,2
  python -m bench requests run --workload sharegpt --policy qoserve,fit --qps 1.2 --set low_share=0.5
  python -m bench requests run --policy qoserve --qps 3.5 --set swing=2.5 --seconds 14400 --json swing.json --figure
  python -m bench requests run --what programs --workload chat --policy fcfs,plas --qps 1.2
  python -m bench requests run --what agents --workload coding --qps 0.2
  python -m bench requests run --what drift --workload both --policy fcfs,wfq,hmas --qps 3
  python -m bench requests run --what workflows --policy edf,maestro --qps 0.55 --set nodes=4
  python -m bench requests run --policy silo,qoserve --qps 35 --set replicas=13 --seconds 600
  python -m bench requests run --policy qoserve --qps 12 --set replicas=4 --set prefill=3 --set kv_rate_gbit=25
  python -m bench requests run --policy fit --qps 2 --set models=4 --set replicas=2
  python -m bench requests run --policy qoserve --qps 3 --set serve.alpha_high_s=0.016

A row holds: policy seed qps requests; violations (shares of late requests: all, important, by tier, short and long
prompts); ttft_s tbt_s ttlt_s (mean p50 p90 p99); goodput_qps; relegated paused evicted; chunk_tokens; step_error (mape:
mean error of the estimated step times, over: share of steps that took longer); plan_us; kv; cpu_s; with prefill=
also moves (calls whose KV moved, room_s and ports_s that it took to find room and to move), with models= also models
(loads and wakes of engines, loading_s in all, waited_s of requests for them). Programs and agents add latency_s,
per_token_s and hit_rate, agents also turn_ttft_s (of turns after the first); drift adds goodput_rate esg ttft_ok
tpot_ok mismatch cv recovery switches.
Workflows have slo interactive_delay_s latency_s activations preemptions overruns accounting_errors overcommit.
To resume a stopped run, give the same command again with the same --json FILE.
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m bench requests run",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    opt.add_workload(p)
    group = p.add_argument_group("comparison")
    group.add_argument(
        "--policy", metavar="A,B", help="policies (default: the baselines of --what tiers and qoserve, or the like)"
    )
    group.add_argument(
        "--qps", default="2", metavar="Q[,Q...]", help="requests (programs) a second in all (default %(default)s)"
    )
    group.add_argument("--seed", default="1", metavar="S[,S...]", help="the same seed gives the same run (default 1)")
    opt.add_settings(group)
    opt.add_output(p)
    p.add_argument("--figure", action="store_true", help="also draw FILE.png and FILE.svg beside --json FILE")
    return p


DEFAULT = {
    "tiers": "fcfs,edf,srpf,qoserve",
    "programs": "fcfs,mlfq,plas",
    "agents": "fcfs,least-loaded,sticky,agentix",
    "drift": "fcfs,edf,two-lane,hmas",
    "workflows": "fcfs,edf,srtf,maestro",
}


def points_of(options: argparse.Namespace) -> list[Point]:
    options.policy = options.policy or DEFAULT[options.what]
    chosen = opt.chosen_policies(options)
    rates = opt.numbers(options.qps, "--qps", float, 0)
    seeds = opt.numbers(options.seed, "--seed", int, -1)
    base = opt.base(options, rates[0])
    return [
        msgspec.structs.replace(base, policy=name, qps=rate, seed=seed)
        for rate in rates
        for seed in seeds
        for name in chosen
    ]


def progress(done: int, total: int, row: Result) -> None:
    print(
        f"[{done}/{total}] {row['policy']} {row['qps']:g}/s seed {row['seed']}: {summary(row)} ({row['cpu_s']:.1f} s)",
        file=sys.stderr,
        flush=True,
    )


def summary(row: Result) -> str:
    if "per_token_s" in row:
        noted = f"mean {row['latency_s']['mean']:.1f} s, {1e3 * row['per_token_s']['mean']:.0f} ms a token"
        turns = row.get("turn_ttft_s")
        return noted if turns is None else f"{noted}, turns wait {turns.get('mean', 0.0):.2f} s"
    if "interactive_delay_s" in row:
        return f"{row['slo']:.1%} in time, interactive delay {row['interactive_delay_s']['mean']:.1f} s"
    if "esg" in row:
        return f"{row['goodput_rate']:.1%} in time, gain {row['esg']:.0f}"
    return f"{row['violations']['all']:.1%} late, important {row['violations']['important']:.1%}"


def show(results: list[Result]) -> None:
    table = Table("policy", "per s", "seed", "requests", "result", "TTFT p50", "p99", "chunk", "CPU")
    if results and "ttft_s" not in results[0]:  # workflows have jobs, not single requests
        table = Table("policy", "per s", "seed", "jobs", "result", "activations", "preemptions", "CPU")
    for row in results:
        if "ttft_s" not in row:
            counts = (str(row["requests"]), summary(row), str(row["activations"]), str(row["preemptions"]))
            table.add_row(row["policy"], f"{row['qps']:g}", str(row["seed"]), *counts, f"{row['cpu_s']:.1f} s")
            continue
        table.add_row(
            row["policy"],
            f"{row['qps']:g}",
            str(row["seed"]),
            str(row["requests"]),
            summary(row),
            f"{row['ttft_s']['p50']:.2f} s",
            f"{row['ttft_s']['p99']:.1f} s",
            str(round(_mean(row["chunk_tokens"]))),
            f"{row['cpu_s']:.1f} s",
        )
    Console().print(table)


def _mean(value: object) -> float:
    return float(value["mean"] if isinstance(value, dict) else value)  # type: ignore[arg-type]


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    if options.figure and options.json is None:
        raise UsageError("--figure: needs --json FILE, beside which it is drawn")
    wanted = points_of(options)
    results = rows.collect(
        wanted,
        points.identity,
        lambda row: (row["policy"], row["qps"], row["seed"]),
        points.common(wanted),
        points.run,
        options.json,
        progress,
        options.engine,
    )
    show(results)
    if options.figure:
        from bench.requests import figures

        print(*figures.runs(options.what, results, options.json))
    return 0

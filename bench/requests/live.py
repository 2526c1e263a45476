"""python -m bench requests live: serves two tiers at more than capacity on a real vLLM, with MFS's scheduler and vLLM's
own.

Both engines (vLLM for the CPU, from build/e2e-vllm, `make e2e-vllm` installs it) are up at once and serve the same
requests in turns: compare the ratios of pairs, not the seconds. On a machine with other work, whose speed changes
within a run, let both serve at once: each has half of what is left, and other work slows both alike. Important requests
are short prompts with a deadline for their first token; the others are long ones that may take long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "e2e-vllm"
SCHEDULER = "mooncake_adapter.vllm_scheduler.MfsScheduler"
POLICIES = ("fcfs", "mfs")
PROMPT_TOKENS = {"important": (64, 256), "other": (1000, 1800)}
OUTPUT_TOKENS = {"important": (8, 24), "other": (8, 16)}
IMPORTANT_SHARE = 0.5
SLO_OTHER_S = 120.0
SLO_OF_STEPS = 4.0
"""The deadline of important requests, as a number of full steps at their speed in the burst before each pair."""
BURST = 40
"""Concurrent requests that measure the capacity."""
BATCHED_TOKENS = 2048
STEP_TOKENS = {"max_num_seqs": 32, "max_num_batched_tokens": BATCHED_TOKENS, "max_model_len": BATCHED_TOKENS}


class Arrival(NamedTuple):
    after_s: float
    tier: str
    prompt_tokens: int
    output_tokens: int


def arrivals(seed: int, count: int, per_s: float) -> list[Arrival]:
    """Poisson, both tiers mixed."""
    draw = random.Random(seed)
    at_s, made = 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(per_s) if per_s > 0 else 0.0
        tier = "important" if draw.random() < IMPORTANT_SHARE else "other"
        made.append(Arrival(at_s, tier, draw.randint(*PROMPT_TOKENS[tier]), draw.randint(*OUTPUT_TOKENS[tier])))
    return made


def prompts(seed: int, made: Sequence[Arrival]) -> list[list[int]]:
    """Returns token ids, the same for any engine."""
    draw = random.Random(f"prompts {seed}")
    return [[draw.randint(3, 1000) for _ in range(one.prompt_tokens)] for one in made]


# ---- the engine's process, in vLLM's own environment ---------------------------------------------------------------


async def _one(
    engine: Any, name: str, prompt: list[int], arrival: Arrival, slo_s: float, start_s: float
) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    await asyncio.sleep(max(0.0, start_s + arrival.after_s - time.monotonic()))
    words: dict[str, Any] = {"ttlt_slo_ms": SLO_OTHER_S * 1e3}
    if arrival.tier == "important":
        words = {"ttft_slo_ms": slo_s * 1e3, "importance": 1}
    sampling = SamplingParams(
        temperature=0,
        max_tokens=arrival.output_tokens,
        ignore_eos=True,
        extra_args=words,
        output_kind=RequestOutputKind.DELTA,
    )
    sent_s = time.monotonic()
    first_s: float | None = None
    token_ids: list[int] = []
    async for made in engine.generate({"prompt_token_ids": prompt}, sampling, name):
        first_s = first_s or time.monotonic()
        token_ids += made.outputs[0].token_ids
    end_s = time.monotonic()
    return {
        "tier": arrival.tier,
        "ttft_s": (first_s or end_s) - sent_s,
        "end_s": end_s - start_s,
        "tokens": arrival.prompt_tokens + arrival.output_tokens,
        "token_ids": token_ids,
    }


async def _serve(policy: str) -> None:
    """Reads a line of JSON and writes one: {"seed", "count", "per_s", "slo_s"} -> a row for each request."""
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    more = {"scheduler_cls": SCHEDULER} if policy == "mfs" else {}
    arguments = AsyncEngineArgs(
        model=str(FOLDER / "model"),
        dtype="bfloat16",
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **STEP_TOKENS,
        **more,
    )
    engine = AsyncLLM.from_engine_args(arguments)
    answers_to = os.fdopen(int(os.environ["MFS_LIVE_FD"]), "w", buffering=1)
    print(json.dumps({"ready": policy, "vllm": vllm.__version__}), file=answers_to)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        wanted = json.loads(line)
        start_s = time.monotonic()
        sent = arrivals(wanted["seed"], wanted["count"], wanted["per_s"])
        rows = await asyncio.gather(
            *(
                _one(engine, f"{wanted['seed']}-{start_s}-{i}", prompt, one, wanted["slo_s"], start_s)
                for i, (one, prompt) in enumerate(zip(sent, prompts(wanted["seed"], sent), strict=True))
            )
        )
        print(json.dumps(rows), file=answers_to)
    engine.shutdown()


# ---- the comparison ----------------------------------------------------------------------------------------------


class Server:
    """One engine in a process of its own."""

    def __init__(self, policy: str, log: Path, environment: dict[str, str] | None = None) -> None:
        reading, writing = os.pipe()
        environment = {
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": str(ROOT),
            "MFS_LIVE_FD": str(writing),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = (FOLDER / "venv" / "bin" / "python", "-m", "bench.requests.live", "--engine", policy)
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                env=environment,
                cwd=ROOT,
            )
        os.close(writing)
        self._log = log
        self._answers: IO[str] = os.fdopen(reading)

    def answer(self) -> Any:
        line = self._answers.readline()
        if not line:
            raise SystemExit(f"bench requests live: an engine has ended; see {self._log}")
        return json.loads(line)

    def run(self, seed: int, count: int, per_s: float, slo_s: float) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        wanted = {"seed": seed, "count": count, "per_s": per_s, "slo_s": slo_s}
        self._process.stdin.write(json.dumps(wanted).encode() + b"\n")
        self._process.stdin.flush()
        rows: list[dict[str, Any]] = self.answer()
        return rows

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Serves(Protocol):
    def run(self, seed: int, count: int, per_s: float, slo_s: float) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class Run:
    """The same requests for any of the engines."""

    servers: Mapping[str, Serves]
    seed: int
    count: int
    per_s: float
    slo_s: float

    def __call__(self, name: str) -> list[dict[str, Any]]:
        return self.servers[name].run(self.seed, self.count, self.per_s, self.slo_s)


def record(folder: Path, count: int, load: float, seed: int, logs: Path) -> None:
    """Runs MFS's scheduler once, after a few requests and a burst, with every decision written to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as settings:
        settings.write(f"[record]\nfolder = {json.dumps(str(folder.resolve()))}\n")
        settings.flush()
        server = Server("mfs", logs / "live-record.log", {"MFS_SERVE_CONFIG": settings.name})
        try:
            server.answer()
            server.run(seed, 8, 0.0, SLO_OTHER_S)
            burst = server.run(seed + 50, min(count, BURST), 0.0, SLO_OTHER_S)
            last_s = max(row["end_s"] for row in burst)
            slo_s = SLO_OF_STEPS * BATCHED_TOKENS * last_s / sum(row["tokens"] for row in burst)
            rows = server.run(seed + 100, count, load * len(burst) / last_s, slo_s)
        finally:
            server.stop()
    print(json.dumps({"folder": str(folder), "requests": count, "slo_s": slo_s, **measured(rows, slo_s)}))


def measured(rows: list[dict[str, Any]], slo_s: float) -> dict[str, float]:
    important = [row for row in rows if row["tier"] == "important"]
    others = [row for row in rows if row["tier"] == "other"]
    last_s = max(row["end_s"] for row in rows)
    return {
        "important_late": sum(row["ttft_s"] > slo_s for row in important) / max(1, len(important)),
        "important_ttft_s": statistics.median(row["ttft_s"] for row in important),
        "other_ttft_s": statistics.median(row["ttft_s"] for row in others),
        "tokens_per_s": sum(row["tokens"] for row in rows) / last_s,
    }


def tokens_identical(base: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> float:
    """Returns the share of requests whose answers have the same tokens in both runs."""
    return statistics.fmean(a["token_ids"] == b["token_ids"] for a, b in zip(base, other, strict=True))


def compare(
    servers: Mapping[str, Serves], pairs: int, count: int, load: float, seed: int, at_once: bool = False
) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows of each pair when it has ended, the base's first. Pairs run in turns, or at once. Capacity and
    deadline are measured before each, on the first engine: a machine with other work changes from minute to minute."""
    base, other = servers
    together = ThreadPoolExecutor(len(servers) if at_once else 1)
    for server in servers.values():  # the first steps are slow everywhere
        server.run(seed, 8, 0.0, SLO_OTHER_S)
    for pair in range(pairs):
        measuring = list(servers) if at_once else [base]
        everything = Run(servers, seed + 50 + pair, min(count, BURST), 0.0, SLO_OTHER_S)
        burst, *_ = together.map(everything, measuring)
        capacity_per_s = len(burst) / max(row["end_s"] for row in burst)
        slo_s = SLO_OF_STEPS * BATCHED_TOKENS * max(row["end_s"] for row in burst) / sum(row["tokens"] for row in burst)
        order = list(servers)[:: 1 if pair % 2 == 0 else -1]
        per_s = load * capacity_per_s
        runs = together.map(Run(servers, seed + 100 + pair, count, per_s, slo_s), order)
        answered = dict(zip(order, runs, strict=True))
        rows: list[dict[str, Any]] = [
            {
                "pair": pair,
                "policy": policy,
                "capacity_per_s": capacity_per_s,
                "slo_s": slo_s,
                **measured(answered[policy], slo_s),
            }
            for policy in servers
        ]
        rows[1]["tokens_identical"] = tokens_identical(answered[base], answered[other])
        yield rows


def summary(results: Sequence[dict[str, Any]], base: str, other: str) -> dict[str, float]:
    """Compares the other with the base: all pairs together, and the median of the pairs' ratios.

    For tokens per second also the mean and its standard error: an engine beside another of its kind (`--policy
    fcfs,fcfs`) differs by a tenth from pair to pair.
    """
    of = {policy: [row for row in results if row["policy"] == policy] for policy in (base, other)}
    pairs = list(zip(of[base], of[other], strict=True))
    late = [statistics.fmean(row["important_late"] for row in of[policy]) for policy in (base, other)]
    speeds = [b["tokens_per_s"] / a["tokens_per_s"] for a, b in pairs]
    return {
        f"important_late_{base}": late[0],
        f"important_late_{other}": late[1],
        "important_late_ratio": late[1] / late[0] if late[0] else 1.0,
        "throughput_ratio": statistics.median(speeds),
        "throughput_ratio_mean": statistics.fmean(speeds),
        "throughput_ratio_stderr": statistics.stdev(speeds) / len(speeds) ** 0.5 if len(speeds) > 1 else 0.0,
        "important_ttft_ratio": statistics.median(b["important_ttft_s"] / a["important_ttft_s"] for a, b in pairs),
        "other_ttft_ratio": statistics.median(b["other_ttft_s"] / a["other_ttft_s"] for a, b in pairs),
        "tokens_identical": statistics.fmean(row["tokens_identical"] for row in of[other]),
    }


def collect(
    pairs: Iterable[list[dict[str, Any]]], config: dict[str, Any], path: Path | None, base: str, other: str
) -> dict[str, Any]:
    """Prints the rows of each pair, and writes all that have ended, with their summary."""
    results: list[dict[str, Any]] = []
    written: dict[str, Any] = {"config": config, "results": results, "summary": {}}
    for rows in pairs:
        results += rows
        for row in rows:
            print(json.dumps(row), flush=True)
        written["summary"] = summary(results, base, other)
        if path is not None:
            beside = path.with_name(path.name + ".part")
            beside.write_text(json.dumps(written, indent=2) + "\n")
            beside.replace(path)
    return written


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench requests live", description=__doc__)
    parser.add_argument("--policy", default="fcfs,mfs", help="policies, two of fcfs, mfs; the first is the base")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100, help="requests of each run")
    parser.add_argument("--load", type=float, default=1.3, help="load relative to the base's capacity")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", action="store_true", help="let both engines of a pair serve at the same time")
    parser.add_argument("--json", type=Path, help="file for the rows, written after every pair")
    parser.add_argument(
        "--record", type=Path, help="run mfs once alone and write every decision to this folder, for `compare`"
    )
    parser.add_argument("--engine", choices=POLICIES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.engine:
        asyncio.run(_serve(options.engine))
        return 0
    policies = options.policy.split(",")
    if len(policies) != 2 or not set(policies) <= set(POLICIES):
        parser.error(f"--policy {options.policy!r}: use two of {', '.join(POLICIES)}, such as fcfs,mfs")
    if options.pairs < 1:
        parser.error(f"--pairs {options.pairs}: use at least 1")
    if not (FOLDER / "venv").exists():
        print(f"bench requests live: no vLLM in {FOLDER}; install it with tools/e2e-vllm-setup {FOLDER}")
        return 2
    from bench.micro.command import machine  # not available in vLLM's own environment

    logs = ROOT / "out"
    logs.mkdir(exist_ok=True)
    if options.record:
        record(options.record, options.requests, options.load, options.seed, logs)
        return 0
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    asked = ("policy", "pairs", "requests", "load", "seed", "at_once")
    config: dict[str, Any] = {name: getattr(options, name) for name in asked}
    servers: dict[str, Server] = {}
    try:
        for at, policy in enumerate(policies):
            name = policy if policy not in servers else f"{policy}-{at}"
            servers[name] = Server(policy, logs / f"live-{name}.log")
        for server in servers.values():
            config["machine"] = {**machine(), "vllm": server.answer()["vllm"]}
        pairs = compare(servers, options.pairs, options.requests, options.load, options.seed, options.at_once)
        result = collect(pairs, config, options.json, *servers)
    finally:
        for server in servers.values():
            server.stop()
    print(json.dumps(result["summary"], indent=2))
    held = result["summary"]["important_late_ratio"] <= 0.5 and result["summary"]["throughput_ratio"] >= 0.97
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

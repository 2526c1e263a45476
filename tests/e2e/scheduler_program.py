"""A vLLM in one process, for tests/e2e/test_scheduler.py: python scheduler_program.py MODE.

MODE: plain, mfs, paused (plans that pause and cut whatever they can), failing (plans that raise), untested (another
version of vLLM), off (switched off: what its methods cost beside those of vLLM's own scheduler), or contract (names of
vLLM only). Prints one line of JSON at the end.
"""

from __future__ import annotations

import inspect
import json
import os
import statistics
import sys
import time
from collections import Counter
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
LENGTHS = (900, 300, 60, 700, 128, 40, 500, 1200, 80, 350)
OUTPUTS = 24
OUTPUTS_OFF = 700
CUT = 64
"""Tokens of a prompt in a step of mode `paused`, at most."""

SCHEDULER_METHODS = {
    "schedule": ("throttle_prefills",),
    "update_from_output": ("scheduler_output", "model_runner_output"),
    "add_request": ("request",),
    "_free_request": ("request", "delay_free_blocks"),
    "_reserve_prefill_lookahead": ("request", "num_computed_tokens", "num_new_tokens"),
    "_handle_blocked_waiting_request": ("request",),
    "_is_blocked_waiting_status": ("status",),
    "shutdown": (),
}
REQUEST_ATTRIBUTES = (
    *("request_id", "arrival_time", "num_prompt_tokens", "num_tokens", "num_computed_tokens", "num_output_tokens"),
    *("max_tokens", "status", "priority", "sampling_params", "kv_transfer_params", "num_preemptions", "block_hashes"),
    "resumable",
)


FIELDS = {
    "VllmConfig": ("additional_config",),
    "CacheConfig": ("num_gpu_blocks",),
    "ParallelConfig": ("pipeline_parallel_size", "data_parallel_index"),
    "KVCacheConfig": ("kv_cache_groups",),
    "SchedulerOutput": ("num_scheduled_tokens", "total_num_scheduled_tokens"),
    "EngineCoreOutputs": ("outputs",),
    "EngineCoreOutput": ("request_id", "new_token_ids"),
}
MEMBERS = {
    "RequestStatus": ("RUNNING", "FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"),
    "SchedulingPolicy": ("FCFS", "PRIORITY"),
}


def contract() -> dict[str, Any]:
    """What MfsScheduler uses and this vLLM lacks."""
    from vllm.config import CacheConfig, ParallelConfig, VllmConfig
    from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request, RequestStatus

    from mooncake_adapter.vllm.scheduler import SCHEDULER_ATTRIBUTES
    from mooncake_adapter.vllm.waiting import PlannedQueue

    source = "".join(inspect.getsource(kind) for kind in AsyncScheduler.__mro__[:2])
    request = inspect.getsource(Request)
    manager = inspect.getsource(KVCacheManager)
    kinds = (VllmConfig, CacheConfig, ParallelConfig, KVCacheConfig)
    other = {
        name: list(inspect.signature(getattr(AsyncScheduler, name)).parameters)
        for name, wanted in SCHEDULER_METHODS.items()
        if tuple(p for p in inspect.signature(getattr(AsyncScheduler, name)).parameters if p != "self") != wanted
    }
    return {
        "scheduler": [name for name in SCHEDULER_ATTRIBUTES if f"self.{name}" not in source],
        "methods": other,
        "request": [n for n in REQUEST_ATTRIBUTES if f"self.{n}" not in request and not hasattr(Request, n)],
        "cache": [
            *(name for name in ("prefix_cache_lookup_enabled", "usage") if not hasattr(KVCacheManager, name)),
            *(name for name in ("find_longest_cache_hit",) if not hasattr(KVCacheCoordinator, name)),
            *(name for name in ("coordinator",) if f"self.{name} =" not in manager),
        ],
        "fields": [
            f"{kind.__name__}.{name}"
            for kind in (*kinds, SchedulerOutput, EngineCoreOutputs, EngineCoreOutput)
            for name in FIELDS[kind.__name__]
            if name not in inspect.get_annotations(kind)
        ],
        "members": [
            f"{kind.__name__}.{name}"
            for kind in (RequestStatus, SchedulingPolicy)
            for name in MEMBERS[kind.__name__]
            if name not in kind.__members__
        ],
        "queue": sorted(RequestQueue.__abstractmethods__ - set(vars(PlannedQueue))),
    }


def interfering(scheduler: Any, counted: Counter[str]) -> None:
    """Plans whose every third decode sits out, and whose prompts are cut to CUT tokens, the first of them left out.
    Counts what vLLM did with them: requests that sat out as planned (`paused`), those that ran though no plan had them
    (`ran`), prompts that were cut as planned (`cut`), and those that had more (`long`)."""
    import msgspec

    from mfsd.policy.serve import plan_step

    planned: dict[str, set[str]] = {}

    def plan(view: Any, state: Any, config: Any, now_s: float) -> Any:
        made, after = plan_step(view, state, config, now_s)
        decoding = {r.request_id for r in view.running if r.prefill_left <= 0}
        running = {r.request_id for r in view.running}
        kept, paused = [], list(made.paused)
        prompts = 0
        for at, one in enumerate(made.scheduled):
            prompts += one.request_id not in decoding
            out = (at + state.step) % 3 == 0 if one.request_id in decoding else prompts == 1 and state.step % 2
            if out and len(made.scheduled) > 1:
                if one.request_id in running:
                    paused.append(one.request_id)
                continue
            kept.append(msgspec.structs.replace(one, num_tokens=min(one.num_tokens, CUT)))
        names = scheduler.mfs.entries
        taken = {one.request_id for one in kept}
        numbers = {"paused": set(paused), "taken": taken, "prompts": taken - decoding}
        planned.update({kind: {n for n in names if names[n].number in numbers[kind]} for kind in numbers})
        return msgspec.structs.replace(made, scheduled=tuple(kept), paused=tuple(paused)), after

    schedule = scheduler.schedule

    def watched(*arguments: Any, **keywords: Any) -> Any:
        planned.clear()
        output = schedule(*arguments, **keywords)
        tokens = output.num_scheduled_tokens
        if planned and not scheduler.mfs.counts["failed_plans"]:
            cut = [tokens[name] for name in planned["prompts"] & tokens.keys()]
            counted["ran"] += len(tokens.keys() - planned["taken"])
            counted["paused"] += len(planned["paused"] - tokens.keys())
            counted["long"] += sum(one > CUT for one in cut)
            counted["cut"] += sum(one == CUT for one in cut)
        return output

    scheduler.mfs._plan = plan
    scheduler.schedule = watched


def failing(scheduler: Any) -> None:
    def plan(*arguments: Any) -> Any:
        raise RuntimeError("a plan that cannot be")

    scheduler.mfs._plan = plan


def timed(scheduler: Any) -> dict[str, float]:
    """Seconds of all steps, and those that MFS's own parts take of them."""
    spent = {"mfs": 0.0, "steps": 0.0}

    def around(name: str, into: str) -> None:
        inner = getattr(scheduler, name)

        def run(*arguments: Any) -> Any:
            begun_s = time.perf_counter()
            try:
                return inner(*arguments)
            finally:
                spent[into] += time.perf_counter() - begun_s

        setattr(scheduler, name, run)

    for name in ("_planned", "_began", "_produced", "_arrived"):
        around(name, "mfs")
    return spent


def alternating(scheduler: Any) -> dict[str, Any]:
    """Every other step's scheduler is vLLM's own. Processor time of the two calls that a step makes, by class, and
    seconds from one step to the next."""
    kinds = type(scheduler), type(scheduler).__mro__[1]
    spent: dict[str, Any] = {kind.__name__: [] for kind in kinds}
    spent["steps"] = []
    now = {"ns": 0, "begun_s": time.perf_counter(), "steps": 0}

    def schedule(*arguments: Any, **keywords: Any) -> Any:
        scheduler.__class__ = kinds[int(now["steps"]) % 2]
        begun_s, begun_ns = time.perf_counter(), time.thread_time_ns()
        spent["steps"].append(begun_s - now["begun_s"])
        now["begun_s"] = begun_s
        output = scheduler.__class__.schedule(scheduler, *arguments, **keywords)
        now["ns"] = time.thread_time_ns() - begun_ns
        return output

    def update_from_output(*arguments: Any) -> Any:
        begun_ns = time.thread_time_ns()
        outputs = scheduler.__class__.update_from_output(scheduler, *arguments)
        spent[scheduler.__class__.__name__].append(now["ns"] + time.thread_time_ns() - begun_ns)
        now["steps"] += 1
        return outputs

    scheduler.schedule, scheduler.update_from_output = schedule, update_from_output
    return spent


def overhead(spent: dict[str, list[float]]) -> dict[str, float]:
    own, switched_off = (statistics.median(spent[name]) for name in ("AsyncScheduler", "MfsScheduler"))
    step_s = statistics.median(spent["steps"])
    return {
        "steps": len(spent["steps"]),
        "step_ms": 1e3 * step_s,
        "own_us": own / 1e3,
        "off_us": switched_off / 1e3,
        "share_of_step": (switched_off - own) / 1e9 / step_s,
    }


def main(mode: str) -> dict[str, Any]:
    if mode == "contract":
        return contract()
    import vllm
    from vllm import LLM, SamplingParams

    more: dict[str, Any] = {} if mode == "plain" else {"scheduler_cls": "mooncake_adapter.vllm_scheduler.MfsScheduler"}
    if mode == "off":
        more["additional_config"] = {"mfs_serve": {"enabled": False}}
    if mode == "untested":
        vllm.__version__ = "9.9.9"
    llm = LLM(
        model=sys.argv[2],
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        **more,
    )
    engine: Any = llm.llm_engine.engine_core
    scheduler = engine.engine_core.scheduler
    counted: Counter[str] = Counter()
    if mode == "paused":
        interfering(scheduler, counted)
    elif mode == "failing":
        failing(scheduler)
    outputs = OUTPUTS_OFF if mode == "off" else OUTPUTS
    words = ({"ttft_slo_ms": 300, "tbt_slo_ms": 50, "importance": "high", "session": "s"}, {"ttlt_slo_ms": 20_000})
    sampling = [
        SamplingParams(temperature=0, max_tokens=outputs, ignore_eos=True, extra_args=words[at % 2])
        for at in range(len(LENGTHS))
    ]
    prompts = [
        {"prompt_token_ids": [3 + (i * 7 + seed * 131 + i // 97 * 13) % 200 for i in range(length)]}
        for seed, length in enumerate(LENGTHS)
    ]
    mfs = getattr(scheduler, "mfs", None)
    spent = timed(scheduler) if mode == "mfs" else {}
    by_class = alternating(scheduler) if mode == "off" else {}
    begun_s = time.perf_counter()
    answers: list[Any] = llm.generate(prompts, sampling, use_tqdm=False)
    if spent:
        spent["steps"] = time.perf_counter() - begun_s
    return {
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "base": [kind.__name__ for kind in type(scheduler).__mro__[:2]],
        "plans": mfs.counts["plans"] if mfs else None,
        "failed": mfs.counts["failed_plans"] if mfs else None,
        "gave_up": mfs.gave_up if mfs else None,
        "tiers": {name: [tier.met + tier.late, tier.tokens] for name, tier in mfs.tiers.items()} if mfs else None,
        "left": len(mfs.entries) if mfs else None,
        "off": overhead(by_class) if by_class else None,
        "v2": bool(scheduler.use_v2_model_runner),
        **counted,
        **spent,
    }


if __name__ == "__main__":
    answer = main(sys.argv[1])
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)  # vLLM's workers end with it; its own way down takes as long as the test

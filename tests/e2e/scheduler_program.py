"""A vLLM in one process, for tests/e2e/test_scheduler.py: python scheduler_program.py MODE MODEL WORK.

MODE: plain, mfs, paused (plans that pause and cut whatever they can), failing (plans that raise), untested (another
version of vLLM), off (switched off: what its methods cost beside those of vLLM's own scheduler), cached, stored (as
cached, while KV memory is short), pressure (on it), abort, priority (vLLM's), or contract (names of vLLM only, without
the rest). WORK: one of WORKS. Prints one line of JSON at the end.
"""

from __future__ import annotations

import inspect
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.e2e.scheduler_watches import by_priority, cached, failing, interfering, pressed, stored

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
LENGTHS = (900, 300, 60, 700, 128, 40, 500, 1200, 80, 350)
OUTPUTS = 24
OUTPUTS_OFF = 700

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
    "VllmConfig": ("additional_config", "lora_config"),
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


def words_of(at: int) -> dict[str, Any]:
    if at % 2:
        return {"ttlt_slo_ms": 20_000, "importance": at % 5 - 2}
    return {"ttft_slo_ms": 300, "tbt_slo_ms": 50, "importance": "high", "session": "s"}


class Work(NamedTuple):
    """What a vLLM is asked, and how it is started for that."""

    lengths: tuple[int, ...] = LENGTHS
    outputs: int = OUTPUTS
    rounds: int = 1
    """So often it is asked the same; the last answers count."""
    shared: int = 0
    """Tokens that all prompts begin with; a request of them alone is answered before the others."""
    words: bool = True
    engine: Mapping[str, Any] = MappingProxyType({})

    def prompt(self, length: int, seed: int) -> dict[str, list[int]]:
        tokens = [3 + (i * 7 + (i >= self.shared) * seed * 131 + i // 97 * 13) % 200 for i in range(length)]
        return {"prompt_token_ids": tokens}

    def sampling(self, at: int) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=0, max_tokens=self.outputs, ignore_eos=True, extra_args=words_of(at) if self.words else None
        )


WORKS = {
    "spread": Work(),
    "long": Work(outputs=OUTPUTS_OFF),
    "shared": Work(shared=300, engine={"enable_prefix_caching": True, "block_size": 32}),
    "growing": Work((100,) * 8, 120, engine={"num_gpu_blocks_override": 38, "block_size": 32, "max_model_len": 512}),
    "stored": Work(
        (700,) * 6,
        rounds=2,
        engine={
            "num_gpu_blocks_override": 60,
            "block_size": 32,
            "max_model_len": 1024,
            "kv_transfer_config": {
                "kv_connector": "MfsConnector",
                "kv_connector_module_path": "mooncake_adapter.vllm.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "inner": {
                        "kv_connector": "ExampleConnector",
                        "kv_connector_extra_config": {"shared_storage_path": os.environ.get("MFS_E2E_STORE", "")},
                    }
                },
            },
        },
    ),
    "speculative": Work(
        engine={"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}}
    ),
    "lora": Work(engine={"enable_lora": True}),
    "priority": Work(words=False, engine={"scheduling_policy": "priority"}),
}


def started(mode: str, model: str, work: Work) -> Any:
    import vllm

    more: dict[str, Any] = {} if mode == "plain" else {"scheduler_cls": "mooncake_adapter.vllm_scheduler.MfsScheduler"}
    if mode == "off":
        more["additional_config"] = {"mfs_serve": {"enabled": False}}
    if mode == "untested":
        vllm.__version__ = "9.9.9"
    limits = {"max_model_len": 2048, "max_num_seqs": 8, "max_num_batched_tokens": 2048, "enable_prefix_caching": False}
    return vllm.LLM(model=model, dtype="bfloat16", enforce_eager=True, **{**limits, **work.engine, **more})


def answered(llm: Any, work: Work) -> list[Any]:
    prompts = [work.prompt(length, seed) for seed, length in enumerate(work.lengths)]
    sampling = [work.sampling(at) for at in range(len(prompts))]
    if work.shared:
        llm.generate(work.prompt(work.shared, 0), work.sampling(0), use_tqdm=False)
    priority = [len(prompts) - at for at in range(len(prompts))] if "scheduling_policy" in work.engine else None
    found: list[Any] = []
    for _ in range(work.rounds):
        found = llm.generate(prompts, sampling, use_tqdm=False, priority=priority)
    return found


def aborted(llm: Any, work: Work) -> list[Any]:
    """As `answered`, of the requests with an even number: the others are aborted after four steps, when some run and
    some wait. Then a request that is alone is aborted before its first step."""
    engine = llm.llm_engine
    found: dict[str, Any] = {}
    for at, length in enumerate(work.lengths):
        engine.add_request(str(at), work.prompt(length, at), work.sampling(at))
    names = [str(at) for at in range(len(work.lengths))]
    steps = 0
    while engine.has_unfinished_requests():
        found |= {one.request_id: one for one in engine.step() if one.finished}
        steps += 1
        if steps == 4:
            engine.abort_request(names[1::2])
    engine.add_request("late", work.prompt(100, 0), work.sampling(0))
    engine.abort_request(["late"])
    engine.step()
    return [found[name] for name in names[::2]]


WATCHES: dict[str, Callable[[Any, Counter[str]], None]] = {
    "paused": interfering,
    "failing": failing,
    "pressure": pressed,
    "cached": cached,
    "stored": stored,
    "priority": by_priority,
}


def main(mode: str, model: str, name: str) -> dict[str, Any]:
    work = WORKS[name]
    llm = started(mode, model, work)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    counted: Counter[str] = Counter()
    if mode in WATCHES:
        WATCHES[mode](scheduler, counted)
    mfs = getattr(scheduler, "mfs", None)
    spent = timed(scheduler) if mode == "mfs" else {}
    by_class = alternating(scheduler) if mode == "off" else {}
    begun_s = time.perf_counter()
    answers = (aborted if mode == "abort" else answered)(llm, work)
    if spent:
        spent["steps"] = time.perf_counter() - begun_s
    return {
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "hits": sum(answer.num_cached_tokens or 0 for answer in answers),
        "base": [kind.__name__ for kind in type(scheduler).__mro__[:2]],
        "policy": mfs.config.policy.value if mfs else None,
        "plans": mfs.counts["plans"] if mfs else None,
        "failed": mfs.counts["failed_plans"] if mfs else None,
        "gave_up": mfs.gave_up if mfs else None,
        "tiers": {name: [tier.met + tier.late, tier.tokens] for name, tier in mfs.tiers.items()} if mfs else None,
        "aborted": sum(tier.aborted for tier in mfs.tiers.values()) if mfs else None,
        "left": len(mfs.entries) + len(mfs._names) + len(scheduler._facts) if mfs else None,
        "off": overhead(by_class) if by_class else None,
        "v2": bool(scheduler.use_v2_model_runner),
        **counted,
        **spent,
    }


if __name__ == "__main__":
    answer = contract() if sys.argv[1] == "contract" else main(*sys.argv[1:])
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)  # vLLM's workers end with it; its own way down takes as long as the test

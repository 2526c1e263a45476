"""vLLM's scheduler with its decisions made by MFS: which requests a step computes, and how many tokens of each.

    vllm serve MODEL --scheduler-cls mooncake_adapter.vllm_scheduler.MfsScheduler

It is a subclass of vLLM's AsyncScheduler. Before each step it makes a plan (mfsd.serve.engine) and makes vLLM follow
it: waiting requests outside the plan are hidden, running ones pause, and prompts get as many tokens as the plan says.
KV memory, prefix caches, connectors and preemption remain vLLM's own. It does not need MFS's network side.

tests/e2e/scheduler_program.py checks the names of vLLM that this relies on against the tested version. With any other
version it behaves as the plain AsyncScheduler.
"""

from __future__ import annotations

import time
from typing import Any, Final

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import RequestStatus

from mfsd.policy.serve import StepLoad
from mfsd.serve.controller import Controller
from mfsd.serve.engine import Decision, Engine
from mfsd.serve.publish import Publisher
from mfsd.serve.requests import Fact
from mfsd.serve.status_files import process_name
from mooncake_adapter.vllm.facts import WaitingFacts
from mooncake_adapter.vllm.promise import words_of
from mooncake_adapter.vllm.requests import supported_version
from mooncake_adapter.vllm.serve_settings import settings_of
from mooncake_adapter.vllm.waiting import PlannedQueue
from mooncake_adapter.warn_once import WarnOnce

SCHEDULER_ATTRIBUTES: Final = (
    *("vllm_config", "scheduler_config", "cache_config", "parallel_config", "connector", "policy", "requests"),
    *("waiting", "kv_holding_waiting", "deferred_waiting", "running", "max_num_active_reqs", "kv_cache_config"),
    *("kv_cache_manager", "need_mamba_block_aligned_split", "num_sampled_tokens_per_step", "is_encoder_decoder"),
    *("block_size", "max_num_scheduled_tokens", "num_spec_tokens", "lora_config"),
)


class MfsScheduler(AsyncScheduler):  # type: ignore[misc]
    """See the module. `mfs` is None if vLLM's own scheduler decides alone."""

    mfs: Engine | None = None
    max_num_active_reqs: int
    policy: Any

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._once = WarnOnce()
        by_priority = self.policy == SchedulingPolicy.PRIORITY
        settings = settings_of(self.vllm_config.additional_config, by_priority, self._warn)
        if not settings.enabled or not self._can_plan():
            return
        self._tiers = settings.tiers.keys()
        limits = settings.serve
        serve = type(limits)(
            **{
                **{name: getattr(limits, name) for name in limits.__struct_fields__},
                "step_tokens": min(limits.step_tokens, self.max_num_scheduled_tokens),
                "requests_max": min(limits.requests_max, self.max_num_active_reqs),
                "cut_prompts": limits.cut_prompts and not self.need_mamba_block_aligned_split,
            }
        )
        self._by_priority = by_priority
        self.waiting, self.kv_holding_waiting = PlannedQueue(by_priority), PlannedQueue(by_priority)
        self.policy = SchedulingPolicy.FCFS  # the victim is then the last of `running`, which the plan sorts
        self._caps: dict[str, int] | None = None
        self._ended: list[tuple[str, bool, bool]] = []
        known_tokens = getattr(self.connector, "known_tokens", lambda name: 0)
        self._facts = WaitingFacts(self._in_prefix_cache, known_tokens)
        self._first_come_next = False
        self._requests_max = self.max_num_active_reqs
        several = len(self.kv_cache_config.kv_cache_groups) != 1
        self._kv_tokens = None if several else self.cache_config.num_gpu_blocks * self.block_size
        name = f"vllm-{process_name()}-{self.parallel_config.data_parallel_index}"
        self.mfs = Engine(settings, serve, self._warn, name)
        self.mfs.reuse_counts = getattr(self.connector, "reuse_counts", dict)
        controller = Controller(self.mfs, settings.meta, self._warn) if settings.meta.enabled else None
        self._publisher = Publisher(self.mfs, self._warn, controller=controller)

    def _warn(self, kind: str, text: str) -> None:
        self._once.warn(kind, "%s", text)

    def _can_plan(self) -> bool:
        if not supported_version(vllm.__version__, self._once):
            return False
        missing = [name for name in SCHEDULER_ATTRIBUTES if not hasattr(self, name)]
        reasons = (
            (bool(missing), f"it has no {', '.join(missing)}"),
            (self.parallel_config.pipeline_parallel_size > 1, "pipeline parallelism was not tested"),
            (self.num_sampled_tokens_per_step != 1, "the model does not produce a token a step"),
            (self.is_encoder_decoder, "encoder-decoder models were not tested"),
            (self.num_spec_tokens > 0, "a plan counts one token for each decode, and speculative decoding takes more"),
            (self.lora_config is not None, "with LoRA requests that pause would hold no place of their adapters"),
        )
        for holds, reason in reasons:
            if holds:
                self._warn("serve-plain", f"MfsScheduler: {reason}; vLLM's own scheduler decides alone")
                return False
        return True

    # ---- requests ----------------------------------------------------------------------------------------------------

    def add_request(self, request: Any) -> None:
        if self.mfs is not None and request.request_id not in self.requests:
            self._guarded(self._arrived, request)
        super().add_request(request)

    def _arrived(self, request: Any) -> None:
        assert self.mfs is not None
        words = words_of(request, self._tiers)
        age_s = time.time() - request.arrival_time
        self.mfs.arrived(request.request_id, words, age_s, request.num_prompt_tokens, request.max_tokens)

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> Any:
        if self.mfs is not None:
            status = request.status
            at_limit = status == RequestStatus.FINISHED_LENGTH_CAPPED
            aborted = not at_limit and status != RequestStatus.FINISHED_STOPPED
            self._ended.append((request.request_id, aborted, at_limit))
        return super()._free_request(request, delay_free_blocks)

    def _forget_ended(self) -> None:
        """Forgets requests that ended in the last step. Called after that step's tokens were counted."""
        assert self.mfs is not None
        ended, self._ended = self._ended, []
        for name, aborted, at_limit in ended:
            self._facts.ended(name)
            self.mfs.ended(name, aborted, at_limit)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if self.mfs is None:
            return super().schedule(throttle_prefills)
        decision = self._planned_or_none()
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self._show_all()
        if decision is not None and output.total_num_scheduled_tokens == 0:
            self._first_come_next = bool(decision.paused or len(self.waiting) > len(self.deferred_waiting))
        self._guarded(self._began, output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if self.mfs is None:
            return super().update_from_output(scheduler_output, model_runner_output)
        self._guarded(self.mfs.step_ended, scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._guarded(self._produced, outputs)
        return outputs

    def shutdown(self) -> None:
        if self.mfs is not None:
            self._guarded(self._publisher.close)
            self._guarded(self.mfs.close)
        super().shutdown()

    def _guarded(self, call: Any, *arguments: Any) -> None:
        """Makes a call whose failure does not concern the plan: it is recorded as an error of MFS, and vLLM serves
        on."""
        assert self.mfs is not None
        try:
            call(*arguments)
        except Exception as error:
            self.mfs.erred(error)

    def _planned_or_none(self) -> Decision | None:
        """Returns the plan of the next step; None, so that vLLM decides alone, if it cannot be made or followed."""
        assert self.mfs is not None
        self._guarded(self._forget_ended)
        try:
            return self._planned()
        except Exception as error:
            self.mfs.failed(error)
            self._show_all()
            return None

    def _show_all(self) -> None:
        self.waiting.show_all()
        self.kv_holding_waiting.show_all()
        self._caps = None
        self.max_num_active_reqs = self._requests_max

    def _planned(self) -> Decision | None:
        """Plans, and arranges queues and limits so that vLLM's own loop follows the plan."""
        assert self.mfs is not None
        if not self.running and not len(self.waiting) and not len(self.kv_holding_waiting):
            return None
        gave_up = self.mfs.gave_up
        if gave_up or self._first_come_next:  # the last plan moved nothing, though vLLM might
            self._first_come_next = False
            self.mfs.first_come()
            self._in_order_of_arrival()
            if gave_up:
                self._tell_order(planned=False)
            return None
        queued = [r for queue in (self.kv_holding_waiting, self.waiting) for r in queue]
        blocked = [r for r in queued if self._is_blocked_waiting_status(r.status)]
        waiting = self._facts.of(r for r in queued if not self._is_blocked_waiting_status(r.status))
        running = [Fact(r.request_id, r.num_computed_tokens, 0, r.num_output_tokens) for r in self.running]
        kv_tokens, kv_used = self._kv()
        decision = self.mfs.plan(waiting, running, kv_tokens, kv_used, self._pruned(queued), self._promised())
        if decision is None:
            self._in_order_of_arrival()
        else:
            self._arrange(decision, blocked)
        self._tell_order(planned=decision is not None)
        return decision

    def _tell_order(self, planned: bool) -> None:
        """Tells the connector the order, for its announcements. An error here does not concern the plan."""
        try:
            if getattr(self.connector, "wants_order", False):
                assert self.mfs is not None
                self.connector.ordered(*(self.mfs.queue_order() if planned else ((),)))
        except Exception as error:
            self._warn("serve-order", f"the order of what waits could not be announced ({error})")

    def _in_prefix_cache(self, request: Any) -> int:
        manager = self.kv_cache_manager
        if not manager.prefix_cache_lookup_enabled(request):
            return 0
        return int(manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1])

    def _kv(self) -> tuple[int | None, int]:
        """Returns capacity and use of KV memory in tokens as the plan counts them: in both, a block that several
        requests share counts once for each of them."""
        if self._kv_tokens is None:
            return None, 0
        used = round(self.kv_cache_manager.usage * self._kv_tokens)
        shared = max(0, sum([r.num_computed_tokens for r in self.running]) - used)
        return self._kv_tokens + shared, used + shared

    def _promised(self) -> list[Fact]:
        """Returns the requests that hold KV memory and cannot be planned yet, because their KV or more of their input
        is on its way."""
        return [
            Fact(r.request_id, r.num_computed_tokens, r.num_computed_tokens, r.num_output_tokens)
            for r in self.kv_holding_waiting
            if self._is_blocked_waiting_status(r.status)
        ]

    def _pruned(self, queued: list[Any]) -> list[str]:
        pruned = getattr(self.connector, "pruned", None)
        return [r.request_id for r in queued if pruned(r.request_id)] if pruned is not None else []

    def _arrange(self, decision: Decision, blocked: list[Any]) -> None:
        assert self.mfs is not None
        caps, entries = decision.tokens, self.mfs.entries
        self._caps = caps
        place = {name: at for at, name in enumerate(caps)}
        planned = [self.requests[name] for name in caps if name in self.requests]
        self.waiting.show([*blocked, *planned])
        self.kv_holding_waiting.show([*blocked, *planned])

        def last_is_victim(request: Any) -> tuple[int, float, float]:
            name = request.request_id
            entry = entries[name]
            if name not in place:
                return 2, -entry.wanted.importance, entry.due_s
            if request.num_computed_tokens >= entry.to_compute:
                return 0, -entry.wanted.importance, entry.number
            return 1, place[name], 0

        self.running.sort(key=last_is_victim)
        self.max_num_active_reqs = min(self._requests_max, max(1, decision.plan.requests_max))

    def _in_order_of_arrival(self) -> None:
        """Sorts running requests in vLLM's own order of arrival; with --scheduling-policy priority that is the second
        criterion."""
        by_priority = self._by_priority
        self.running.sort(key=lambda request: (request.priority if by_priority else 0, request.arrival_time))

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Limits the tokens of a request to the plan's. This is the last point at which vLLM asks how many it may have
        in this step."""
        if self.mfs is not None and self._caps is not None:
            cap = self._caps.get(request.request_id)
            if cap is None:
                loaded = request.status != RequestStatus.RUNNING and num_new_tokens <= self.block_size
                if not loaded:
                    return 0
            elif num_computed_tokens + 1 < request.num_tokens and not self.need_mamba_block_aligned_split:
                num_new_tokens = min(num_new_tokens, cap)  # with Mamba chunks end where a state can be kept
        return int(super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens))

    def _handle_blocked_waiting_request(self, request: Any) -> bool:
        ready = bool(super()._handle_blocked_waiting_request(request))
        if ready and self.mfs is not None and self._caps is not None and request.request_id not in self._caps:
            # no longer blocked: it is in the next step's plan, unless its prompt was loaded and costs nothing
            return bool(request.num_tokens - request.num_computed_tokens <= self.block_size)
        return ready

    def _began(self, output: Any) -> None:
        assert self.mfs is not None
        prefill = decodes = context = 0
        pairs = 0.0
        for name, tokens in output.num_scheduled_tokens.items():
            request = self.requests[name]
            before = request.num_computed_tokens - tokens
            if before >= max(request.num_prompt_tokens, request.num_tokens - 1):  # more after a preemption
                decodes += 1
                context += before
            else:
                prefill += tokens
                pairs += tokens * (before + tokens / 2)
        load = StepLoad(prefill, prefill, decodes, context, pairs)
        self.mfs.step_began(load, tuple(output.num_scheduled_tokens), output)

    def _produced(self, outputs: dict[int, Any]) -> None:
        assert self.mfs is not None
        for of_client in outputs.values():
            for one in of_client.outputs:
                if one.new_token_ids:
                    self.mfs.produced(one.request_id, len(one.new_token_ids))
        self._forget_ended()
        self._publisher.tick()

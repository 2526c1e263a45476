"""A KV connector for vLLM that wraps any other and reports to MFS what each request, batch and layer needs.

    --kv-transfer-config '{"kv_connector": "MfsConnector", "kv_role": "kv_producer", "kv_connector_extra_config":
        {"inner": {"kv_connector": "MooncakeConnector"}, "mfs": {"default": {"ttft_slo_ms": 500}}}}'

The inner connector does all the work. Its answers are changed in one case only: reuse that is computed again, if the
configuration asks for that ("reuse"). If MFS cannot work, the inner connector works alone. An error of MFS at run time
ends no step, except with pushes of single layers ("layer_wise_push"), which move KV themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeVar

import torch
import vllm
from vllm.config.kv_transfer import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
    supports_hma,
)

from mfsd.policy.serve.fetch import ReuseRule
from mfsd.serve.metrics import reuse_counter
from mooncake_adapter.hook import install
from mooncake_adapter.metadata import request_number
from mooncake_adapter.mooncake.network import guid_of, nic_of
from mooncake_adapter.mooncake.permits import store_lease_s
from mooncake_adapter.process import PROCESS
from mooncake_adapter.session import Session
from mooncake_adapter.slo import defaults_of
from mooncake_adapter.vllm.announce import SWITCH, Announcer, Source
from mooncake_adapter.vllm.guard import Guard
from mooncake_adapter.vllm.layerwise import LayerPushes, Pushes
from mooncake_adapter.vllm.nixl import LEASE, report_requests
from mooncake_adapter.vllm.nixl_layers import NixlPushes
from mooncake_adapter.vllm.owners import report_owners
from mooncake_adapter.vllm.requests import BY_PARAMETERS, Chunk, Load, Requests, report_untested, supported_version
from mooncake_adapter.vllm.reuse import LEASED, Parts, ReuseChoice, ReuseOptions, options_of
from mooncake_adapter.vllm.token_bytes import TokenBytes, token_bytes
from mooncake_adapter.vllm.worker import Steps, layer_number

INHERITED = (
    *("engine_id", "kv_role", "kv_rank", "kv_parallel_size", "kv_ip", "kv_port", "kv_buffer_device", "kv_buffer_size"),
    *("kv_load_failure_policy", "enable_permute_local_kv"),
)

LAYER_WISE = "layer_wise_push"
Made = TypeVar("Made", bound=LayerPushes)


def written() -> Any:
    """Returns an event that marks the work given to the current stream so far; None if there are no streams."""
    if not torch.accelerator.is_available():
        return None
    event = torch.Event()
    event.record()
    return event


class MfsMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """What the scheduler's connector sends to the workers' in one step."""

    def __init__(self, inner: Any, chunks: list[Chunk], loads: list[Load]) -> None:
        self.inner = inner
        self.chunks = chunks
        self.loads = loads


def _nic(options: ReuseOptions, session: Session) -> int:
    """Returns the session's number of the NIC by which loads come in."""
    if options.nic:
        return session.nic(options.nic, guid=guid_of(options.nic))
    return nic_of(session, "", "", tcp=False)


def inner_config(vllm_config: Any) -> Any:
    """Returns vLLM's configuration as the inner connector sees it. Raises ValueError naming what is missing."""
    own = vllm_config.kv_transfer_config
    inner = own.kv_connector_extra_config.get("inner")
    if not isinstance(inner, dict) or not isinstance(inner.get("kv_connector"), str):
        raise ValueError(
            f'kv_connector_extra_config["inner"]={inner!r} must name the connector to wrap, '
            'for example {"kv_connector": "MooncakeConnector", "kv_connector_extra_config": {}}'
        )
    config = copy.copy(vllm_config)
    inherited = {name: getattr(own, name) for name in INHERITED if hasattr(own, name)}
    config.kv_transfer_config = KVTransferConfig(**{**inherited, **inner})
    return config


class MfsConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """The wrapping connector; see the module."""

    _kind: Any = None

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        install()
        kind, config = self._of(vllm_config)
        groups = len(getattr(kv_cache_config, "kv_cache_groups", ()) or ())
        if groups > 1 and not supports_hma(kind):
            raise ValueError(
                f"{kind.__name__} does not support several KV cache groups: --disable-hybrid-kv-cache-manager"
            )
        self._inner: Any = kind(config, role, kv_cache_config)
        self._guard = Guard(PROCESS.once)
        self._guard.strict = vllm_config.kv_transfer_config.kv_connector_extra_config.get(LAYER_WISE) is True
        self._steps: Steps | None = None
        self._requests: Requests | None = None
        own_config = config.kv_transfer_config
        self._looks_up = own_config.is_kv_consumer and own_config.kv_connector not in BY_PARAMETERS
        self._reuse: ReuseChoice | None = None
        self._announcer: Announcer | None = None
        report_untested(config.kv_transfer_config.kv_connector, PROCESS.once)
        session = PROCESS.holder.get() if supported_version(vllm.__version__, PROCESS.once) else None
        if session is None:
            return
        if role == KVConnectorRole.SCHEDULER:
            own = vllm_config.kv_transfer_config.kv_connector_extra_config.get("mfs")
            model = str(vllm_config.model_config.served_model_name or vllm_config.model_config.model)
            self._requests = Requests(defaults_of(own, PROCESS.once), model, PROCESS.once, session.pruned)
            asked = vllm_config.kv_transfer_config.kv_connector_extra_config.get("reuse")
            options = options_of(asked, config.kv_transfer_config.kv_connector, PROCESS.once)
            of_token = token_bytes(kv_cache_config, vllm_config.parallel_config, one_nic=bool(options.nic))
            self._reuse = self._reuse_by(options, session, of_token)
            if self._reuse is not None:
                if config.kv_transfer_config.kv_connector in LEASED:
                    self._reuse.lease_s = store_lease_s(PROCESS.once)
                if options.parts:
                    self._reuse.parts = self._parts(config.kv_transfer_config, int(vllm_config.cache_config.block_size))
            wanted = vllm_config.kv_transfer_config.kv_connector_extra_config.get(SWITCH, True)
            self._announcer = self._announcer_of(wanted, options, session, of_token)
            if self._reuse is not None and self._announcer is not None:
                self._reuse.announced = self._announcer.announced_bytes
            if self._reuse is not None:
                self._reuse.counted = reuse_counter(str(getattr(vllm_config.parallel_config, "data_parallel_index", 0)))
        else:
            unit = str(vllm_config.kv_transfer_config.engine_id)
            self._steps = Steps(session, PROCESS.sources, PROCESS.once, unit)
            if "Nixl" in kind.__name__:
                self._layer_wise(vllm_config, partial(NixlPushes.made, sources=PROCESS.sources))
                lease_s = config.kv_transfer_config.get_from_extra_config(LEASE, 0)
                report_requests(self._inner, self._steps, PROCESS.sources, lease_s, PROCESS.once)
                return
            pushes = self._layer_wise(vllm_config, Pushes.made)
            if hasattr(self._inner, "connector_worker") and kind.__name__ == "MooncakeConnector":
                report_owners(self._inner, self._steps, PROCESS.once, pushes)

    def _reuse_by(self, options: ReuseOptions, session: Session, of_token: TokenBytes) -> ReuseChoice | None:
        """Returns what decides between loading and computing again; None if the configuration does not ask for it or
        the session does not know how long loads take."""
        if self._requests is None or options.rule is ReuseRule.ALWAYS:
            return None
        if not hasattr(session, "fetch_ns"):  # under mfs-run --mode mark there is no daemon to ask
            PROCESS.once.warn("reuse-session", "nothing here knows how long a load takes; all reuse is loaded")
            return None
        nic = _nic(options, session)
        session.watch(options.owners, nic=nic)
        return ReuseChoice(options, self._requests, session, of_token, nic, PROCESS.once)

    def _parts(self, inner: Any, block_tokens: int) -> Parts | None:
        """Returns how the inner connector loads a part of what it has found; None if it cannot. With asynchronous
        lookup it cannot: the result of one lookup would answer the next question, whatever its length."""
        if inner.get_from_extra_config("lookup_async", False):
            PROCESS.once.warn("reuse-parts", 'kv_connector_extra_config["reuse"]: parts: not with lookup_async; none')
            return None
        return Parts(self._inner.get_num_new_matched_tokens, block_tokens)

    def _announcer_of(
        self, wanted: object, options: ReuseOptions, session: Session, of_token: TokenBytes
    ) -> Announcer | None:
        """Returns what announces waiting requests to the node's daemon; None if that is switched off or there is no
        daemon."""
        if not isinstance(wanted, bool):
            text = "%s=%r is neither true nor false; what waits is announced"
            PROCESS.once.warn("announce-switch", text, SWITCH, wanted)
        if wanted is False or self._requests is None or hasattr(session, "marks"):
            return None
        source = Source(of_token, _nic(options, session), options.owners)
        return Announcer(session, self._requests, source, PROCESS.once)

    def _layer_wise(self, vllm_config: Any, making: Callable[..., Made | None]) -> Made | None:
        """Returns what pushes each layer when it ends; None if the configuration does not ask for it or the inner
        connector does not allow it."""
        wanted = vllm_config.kv_transfer_config.kv_connector_extra_config.get(LAYER_WISE, False)
        if not isinstance(wanted, bool):
            PROCESS.once.warn("layer-wise", "layer_wise_push=%r is neither true nor false; KV goes at the end", wanted)
        if wanted is not True or self._steps is None or vllm_config.kv_transfer_config.kv_role == "kv_consumer":
            return None
        steps, block_tokens = self._steps, int(vllm_config.cache_config.block_size)
        made = making(self._inner, block_tokens, steps.metadata_at, lambda: steps.reached, once=PROCESS.once)
        steps.pushes = made
        return made

    # ---- class questions ---------------------------------------------------------------------------------------------

    @classmethod
    def _of(cls, vllm_config: Any) -> tuple[Any, Any]:
        """Returns the inner connector's class and configuration. Keeps the class: statistics are asked for later
        without a configuration."""
        config = inner_config(vllm_config)
        cls._kind = KVConnectorFactory.get_connector_class(config.kv_transfer_config)
        return cls._kind, config

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> Any:
        kind, config = cls._of(vllm_config)
        return kind.get_required_kvcache_layout(config)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True  # a full CUDA graph has no layer boundaries

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *arguments: Any) -> Any:
        kind, config = cls._of(vllm_config)
        return kind.build_prom_metrics(config, *arguments)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        return cls._kind.build_kv_connector_stats(data) if cls._kind is not None else None

    @property
    def requires_kv_delivery(self) -> bool:
        return bool(self._inner.requires_kv_delivery)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        return bool(self._inner.supports_divergent_local_hybrid_hits)

    # ---- scheduler ---------------------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        if self._requests is not None:
            self._guard(self._requests.arrived, request)
        self._inner.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._requests is not None:
            self._guard(self._requests.cached, request, num_computed_tokens)
        found: tuple[int | None, bool] = self._inner.get_num_new_matched_tokens(request, num_computed_tokens)
        if self._reuse is not None:
            found = self._guard.asked(found, self._reuse.answer, request, num_computed_tokens, found)
        if self._requests is not None:
            self._guard(self._requests.found, request.request_id, found[0])
        return found

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._requests is not None and num_external_tokens > 0:
            self._guard(self._requests.loading, request, blocks, num_external_tokens)
        if self._reuse is not None:
            self._guard(self._reuse.allocated, request.request_id)
        self._inner.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> MfsMetadata:
        chunks, loads = self._guard.asked(([], []), self._step_of, scheduler_output)
        return MfsMetadata(self._inner.build_connector_meta(scheduler_output), chunks, loads)

    def _step_of(self, scheduler_output: Any) -> tuple[list[Chunk], list[Load]]:
        if self._requests is None:
            return [], []
        chunks = self._requests.chunks(scheduler_output)
        if self._reuse is not None:
            self._reuse.pace.planned(chunks, self._requests.ready())
        loads = self._requests.loads()
        if self._announcer is not None:
            self._announcer.tick()
        return chunks, loads

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._reported(request, *self._inner.request_finished(request, block_ids))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        if supports_hma(self._inner):
            return self._reported(request, *self._inner.request_finished_all_groups(request, block_ids))
        return self._reported(request, *self._inner.request_finished(request, block_ids[0]))

    def _reported(
        self, request: Any, delayed: bool, parameters: dict[str, Any] | None
    ) -> tuple[bool, dict[str, Any] | None]:
        """Adds "mfs_pruned" to the answer of a request that the daemon found infeasible, and "mfs_reuse" to that of one
        which computed again what it could have loaded."""
        if self._reuse is not None:
            parameters = self._guard.asked(parameters, self._reuse.ended, request.request_id, parameters)
        if self._requests is not None:
            parameters = self._guard.asked(parameters, self._requests.reported, request.request_id, parameters)
        if self._announcer is not None:
            self._guard(self._announcer.withdraw)  # the engine may have no further step for now
        return delayed, parameters

    def pruned(self, request_id: str) -> bool:
        """For a custom scheduler: whether the daemon found this request infeasible, other than because that scheduler
        has put it aside itself."""
        if self._announcer is not None and self._announcer.set_aside(request_id):
            return False
        return self._requests is not None and self._requests.is_pruned(request_id)

    def known_tokens(self, request_id: str) -> int | None:
        """For a custom scheduler: returns how many tokens of a waiting request's prompt need not be computed, because
        they are cached here or will be loaded. None: not known yet, and some may be loaded."""
        return self._requests.known(request_id) if self._requests is not None and self._looks_up else 0

    @property
    def wants_order(self) -> bool:
        """For a custom scheduler: whether calling :meth:`ordered` is of use now."""
        return self._announcer is not None and self._announcer.wants_order

    def ordered(self, requests: Iterable[str], aside: Collection[str] = ()) -> None:
        """For a custom scheduler: sets its order of waiting requests, and which it has itself put behind all others. It
        is sent to the daemon in this step."""
        if self._announcer is not None:
            self._announcer.ordered(requests, aside)

    def reuse_counts(self) -> dict[str, int]:
        """For a custom scheduler or metrics: returns how many requests loaded what the store has, and how many computed
        it again, all of it or a part."""
        return dict(self._reuse.counts) if self._reuse is not None else {}

    # ---- worker ------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if self._steps is not None:
            self._guard(self._steps.register, kv_caches)
        self._inner.register_kv_caches(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        self._inner.handle_preemptions(kv_connector_metadata.inner)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._steps is not None:
            self._guard(self._begin, self._steps, connector_metadata)
        self._inner.bind_connector_metadata(connector_metadata.inner)

    def _begin(self, steps: Steps, metadata: Any) -> None:
        unsent = getattr(metadata.inner, "reqs_not_processed", None) or ()
        steps.aborted({request_number(str(transfer)) for transfer in unsent})
        steps.begin(metadata.chunks)
        steps.load(metadata.loads)

    def clear_connector_metadata(self) -> None:
        super().clear_connector_metadata()
        self._inner.clear_connector_metadata()
        if self._steps is not None:
            self._guard(self._steps.end)

    def wait_for_layer_load(self, layer_name: str) -> None:
        if self._steps is not None:
            self._guard(self._layer, self._steps, layer_name)
        self._inner.wait_for_layer_load(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        self._inner.save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)
        if self._steps is not None:
            self._guard(self._layer_ended, self._steps, layer_name)

    @staticmethod
    def _layer(steps: Steps, layer_name: str) -> None:
        steps.layer(layer_number(layer_name))

    @staticmethod
    def _layer_ended(steps: Steps, layer_name: str) -> None:
        steps.layer_ended(layer_number(layer_name), written() if steps.pushes is not None else None)

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        finished = self._inner.get_finished(finished_req_ids)
        self._forget(finished_req_ids, finished[0] or ())
        return finished

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = self._inner.get_transfer_results(finished_req_ids)
        self._forget(finished_req_ids, results.finished_sending)
        return results

    def _forget(self, finished: set[str], sent: Any) -> None:
        if self._steps is not None:
            self._guard(self._steps.finished, finished, sent)


def _delegated(name: str) -> Any:
    def method(self: MfsConnector, *arguments: Any, **keywords: Any) -> Any:
        return getattr(self._inner, name)(*arguments, **keywords)

    method.__name__ = name
    return method


def _delegate_the_rest() -> None:
    """Passes every public method of vLLM's base class that is not defined above to the inner connector, so that none
    falls back to its default."""
    own = ("has_connector_metadata", "role")
    for name in dir(KVConnectorBase_V1):
        member = getattr(KVConnectorBase_V1, name)
        if name.startswith("_") or name in vars(MfsConnector) or name in own or not callable(member):
            continue
        if not hasattr(member, "__self__"):  # class methods have no instance to ask
            setattr(MfsConnector, name, _delegated(name))
    MfsConnector.__abstractmethods__ = frozenset()


_delegate_the_rest()

"""How many bytes the KV of a token has, at this node's NIC and at the owners' ports. No vLLM in here.

Each worker loads the blocks of its own cache. The workers of a tensor-parallel group hold different heads or, with MLA,
each a copy of the same KV: MooncakeStoreConnector of vLLM 0.32 keeps one copy in the store, and every worker reads it
nevertheless. A load is thus a worker's bytes times the number of workers, whatever the heads. Pipeline stages are
assumed to be alike, as the scheduler knows only the layers of the first.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class TokenBytes(NamedTuple):
    """Bytes of a token's KV; 0: unknown."""

    own: float
    """Through this node's NIC."""
    owner: float
    """Out of the store, for all workers."""


def worker_bytes(kv_cache_config: Any) -> float:
    """Returns the bytes of a token's KV on one worker that holds all tokens; 0 if the configuration does not say."""
    total = 0.0
    for group in getattr(kv_cache_config, "kv_cache_groups", None) or ():
        spec = getattr(group, "kv_cache_spec", None)
        page, tokens = getattr(spec, "page_size_bytes", 0), getattr(spec, "block_size", 0)
        if page and tokens:
            total += len(group.layer_names) * page / tokens
    return total


def token_bytes(kv_cache_config: Any, parallel_config: Any, one_nic: bool) -> TokenBytes:
    """`one_nic`: all workers of this node load through one NIC; otherwise each is assumed to have its own."""
    tensor = _size(parallel_config, "tensor_parallel_size")
    pipeline = _size(parallel_config, "pipeline_parallel_size")
    of_prefill = _size(parallel_config, "prefill_context_parallel_size")
    of_decode = _size(parallel_config, "decode_context_parallel_size")
    workers = tensor * pipeline * of_prefill
    here = min(workers, _size(parallel_config, "local_world_size", workers)) if one_nic else 1
    each = worker_bytes(kv_cache_config) / (of_prefill * of_decode)  # these workers share the tokens among them
    return TokenBytes(each * here, each * workers)


def _size(parallel_config: Any, name: str, otherwise: int = 1) -> int:
    size = getattr(parallel_config, name, otherwise)
    return size if isinstance(size, int) and size > 0 else otherwise

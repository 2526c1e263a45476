"""Bytes that a token's KV takes of this node's NIC and of the store's, by how the engine is parallel."""

from __future__ import annotations

from types import SimpleNamespace as Thing
from typing import Any

import pytest

from mooncake_adapter.vllm.token_bytes import TokenBytes, token_bytes, worker_bytes

HEADS = 8
HEAD_BYTES = 512


def cache(heads: int, layers: int = 4) -> Any:
    """A worker's, with so many heads of each layer."""
    spec = Thing(page_size_bytes=16 * heads * HEAD_BYTES, block_size=16)
    return Thing(kv_cache_groups=[Thing(layer_names=[f"layers.{n}" for n in range(layers)], kv_cache_spec=spec)])


def parallel(tensor: int = 1, pipeline: int = 1, nodes: int = 1, prefill: int = 1, decode: int = 1) -> Any:
    workers = tensor * pipeline * prefill
    return Thing(
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        prefill_context_parallel_size=prefill,
        decode_context_parallel_size=decode,
        world_size=workers,
        local_world_size=workers // nodes,
    )


WHOLE = 4 * HEADS * HEAD_BYTES


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_the_owners_send_all_heads_however_they_are_split(tensor: int) -> None:
    assert token_bytes(cache(HEADS // tensor), parallel(tensor), one_nic=True) == TokenBytes(WHOLE, WHOLE)
    assert token_bytes(cache(HEADS // tensor), parallel(tensor), one_nic=False) == TokenBytes(WHOLE / tensor, WHOLE)


@pytest.mark.parametrize("tensor", [2, 8])
def test_with_mla_each_worker_reads_the_same_once(tensor: int) -> None:
    """Its cache is not split: worker and model have as many bytes, and all workers load them."""
    assert token_bytes(cache(1), parallel(tensor), one_nic=True).owner == tensor * 4 * HEAD_BYTES


def test_heads_that_several_workers_have_are_read_by_each() -> None:
    """Two heads of eight workers: four have the same."""
    assert token_bytes(cache(1), parallel(8), one_nic=True).owner == 8 * 4 * HEAD_BYTES


def test_stages_are_alike() -> None:
    """The scheduler knows the layers of the first."""
    assert token_bytes(cache(HEADS // 2, layers=1), parallel(2, pipeline=4), one_nic=True) == TokenBytes(WHOLE, WHOLE)


def test_what_other_nodes_load_does_not_come_in_here() -> None:
    assert token_bytes(cache(1), parallel(8, nodes=2), one_nic=True) == TokenBytes(WHOLE / 2, WHOLE)


def test_context_parallel_workers_share_the_tokens() -> None:
    """Those of a decode group would have the same heads: here four, in pairs."""
    assert token_bytes(cache(1), parallel(8, decode=2), one_nic=True).owner == WHOLE / 2
    assert token_bytes(cache(HEADS), parallel(1, prefill=2), one_nic=True).owner == WHOLE


def test_what_the_configuration_does_not_say_is_unknown_or_one_worker() -> None:
    spec = Thing(page_size_bytes=16 * 512, block_size=16)
    assert worker_bytes(Thing(kv_cache_groups=[Thing(layer_names=["a", "b"], kv_cache_spec=spec)])) == 1024
    assert worker_bytes(Thing(kv_cache_groups=[Thing(layer_names=["a"], kv_cache_spec=Thing())])) == 0
    assert token_bytes(None, parallel(8), one_nic=True) == TokenBytes(0, 0)
    assert token_bytes(cache(HEADS), Thing(), one_nic=True) == TokenBytes(WHOLE, WHOLE)

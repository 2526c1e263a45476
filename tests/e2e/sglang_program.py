"""The plugin in SGLang's own code, as far as that goes without a GPU: found by SGLang's loader, hooked by its registry,
reported by its Mooncake and NIXL managers and its scheduler. Run by test_sglang.py; prints one JSON line.

Packages of which the imported modules only need the names are stood in for: their builds need CUDA or are not there.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
import types
from typing import Any, ClassVar
from unittest.mock import MagicMock

import numpy as np
import torch
import transformers.models.auto.processing_auto  # noqa: F401  looks for torchvision: before there is one

STOOD_IN = ("torchvision", "IPython", "traitlets", "gguf")
ITEM = 4096
PAGES = 10


class _Module(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Finder:
    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name.partition(".")[0] in STOOD_IN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


sys.meta_path.insert(0, _Finder())

import mooncake.engine  # noqa: E402
import sglang  # noqa: E402
from sglang.srt.disaggregation.base.conn import KVArgs  # noqa: E402
from sglang.srt.disaggregation.common import staging_buffer  # noqa: E402
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager  # noqa: E402
from sglang.srt.disaggregation.nixl.conn import NixlKVManager  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402


class Engine:
    """What the manager asks of its engine here."""

    def __init__(self) -> None:
        self.registered: list[int] = []

    def batch_register(self, pointers: list[int], lengths: list[int]) -> None:
        self.registered += pointers


class Staging:
    """A worker's buffer for what is gathered."""

    def __init__(self) -> None:
        self.memory = torch.zeros(4 * ITEM, dtype=torch.uint8)
        self.size_bytes = self.memory.numel()

    def get_ptr(self) -> int:
        return int(self.memory.data_ptr())

    def fits(self, size_bytes: int) -> bool:
        return size_bytes <= self.size_bytes


def arguments_of(caches: list[torch.Tensor]) -> KVArgs:
    """What a manager is told of the caches: keys of two layers, then values."""
    known = KVArgs()
    known.kv_data_ptrs = [cache.data_ptr() for cache in caches]
    known.kv_data_lens, known.kv_item_lens = [PAGES * ITEM] * 4, [ITEM] * 4
    known.kv_data_mem_kinds = ["DRAM"] * 4
    known.kv_layer_ids, known.prefill_start_layer = [0, 1], 0
    known.gpu_id = known.engine_rank = 0
    known.total_kv_head_num = 2
    known.state_data_ptrs, known.state_data_lens = [], []
    return known


def through_nixl() -> dict[str, Any]:
    """What SGLang's own NIXL manager sends: its pages as they are, by prepared lists and by lists, then gathered."""
    nixl = importlib.import_module("nixl._api")
    caches = {name: [torch.zeros(PAGES * ITEM, dtype=torch.uint8) for _ in range(4)] for name in ("prefill", "decode")}
    aux = torch.zeros(64, dtype=torch.uint8)
    managers: dict[str, Any] = {}
    for name in caches:
        manager = managers[name] = object.__new__(NixlKVManager)
        manager.agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=["UCX"]))
        known = manager.kv_args = arguments_of(caches[name])
        known.aux_data_ptrs, known.aux_data_lens, known.aux_item_lens = [aux.data_ptr()], [64], [64]
    prefill, decode = managers["prefill"], managers["decode"]
    decode.register_buffer_to_engine()
    prefill.register_buffer_to_engine()
    staging, landed = Staging(), Staging()
    for manager, one in ((prefill, staging), (decode, landed)):
        manager.agent.register_memory([(one.get_ptr(), one.size_bytes, 0, "")], "DRAM")
    prefill.agent.add_remote_agent(decode.agent.get_agent_metadata())

    prefill.disaggregation_mode, prefill.enable_staging, prefill.transfer_infos = DisaggregationMode.PREFILL, False, {}
    prefill.is_mla_backend, prefill.pp_size, prefill.attn_tp_size = False, 1, 1
    prefill.src_mem_kind, prefill._num_slots_src = "DRAM", PAGES
    prefill.prep_handles = {}
    prefill.add_transfer_request(7, [2, 3], slice(0, 2), False)
    pointers = decode.kv_args.kv_data_ptrs
    pages = np.array([2, 3], dtype=np.int32)

    def sent(handle: Any) -> list[tuple[int, int]]:
        """Request and layer of each piece, when it has arrived."""
        assert prefill._await_handles([handle], failure_seen=False) == (True, False)
        return [(piece.metadata.request_id, piece.metadata.layer) for piece in handle.transfer.pieces]

    for cache in caches["prefill"]:
        cache.random_()
    result: dict[str, Any] = {"lists": sent(prefill.send_kvcache("decode", pages, pointers, pages, 0, "DRAM"))}
    prefill._init_equal_tp_prep_handle("", prefill.kv_args.kv_data_ptrs, 0, mem_kind="DRAM")
    prefill._init_equal_tp_prep_handle("decode", pointers, 0, mem_kind="DRAM")
    prefill.decode_kv_args_table = {"decode": types.SimpleNamespace(dst_num_slots=PAGES)}
    result["prepared"] = sent(prefill.send_kvcache("decode", pages, pointers, pages, 0, "DRAM"))
    result["arrived"] = all(
        torch.equal(here[2 * ITEM : 4 * ITEM], there[2 * ITEM : 4 * ITEM]) and not there[4 * ITEM :].any()
        for here, there in zip(caches["prefill"], caches["decode"], strict=True)
    )

    # Gathered by a kernel of the GPU's, and from its memory: both are as if.
    staging_buffer.gather_all_layers_to_staging = lambda *arguments: staging.memory.random_()
    descriptors = prefill.agent.get_xfer_descs
    prefill.agent.get_xfer_descs = lambda rows, kind: descriptors(rows, "DRAM")
    heads = [torch.zeros(PAGES, 2, 16, dtype=torch.uint8) for _ in range(2)]
    prefill.kv_buffer_tensors = {"k_buffers": heads, "v_buffers": heads, "page_size": 1}
    info = types.SimpleNamespace(
        staging_base_ptr=landed.get_ptr(),
        staging_total_size=landed.size_bytes,
        gpu_id=0,
        decode_tp_rank=0,
        decode_tp_size=2,
        dst_kv_item_len=ITEM,
    )
    chunk = types.SimpleNamespace(room=7, index_slice=slice(0, 2), prefill_kv_indices=pages)
    request = types.SimpleNamespace(agent_name="decode")
    strategy = types.SimpleNamespace(staging_buffer=staging, check_ready=lambda *_, **__: (True, 0, 0, 0, 0))
    handle, _, _ = prefill._do_staging_transfer(strategy, chunk, pages, request, info, None)
    result["staged"] = sent(handle)
    landed_bytes = sum(piece.size_bytes for piece in handle.transfer.pieces)
    result["landed"] = torch.equal(staging.memory[:landed_bytes], landed.memory[:landed_bytes])
    return result


def main() -> None:
    load_plugins()
    manager = object.__new__(MooncakeKVManager)
    manager.engine, manager.kv_args, manager.request_status = Engine(), KVArgs(), {}
    manager.disaggregation_mode = DisaggregationMode.PREFILL
    known = manager.kv_args
    known.kv_data_ptrs = [1 << 20, 2 << 20, 3 << 20, 4 << 20]  # keys of two layers, then values
    known.kv_data_lens, known.kv_item_lens = [10 * ITEM] * 4, [ITEM] * 4
    known.aux_data_ptrs, known.aux_data_lens, known.aux_item_lens = [], [], []
    known.kv_layer_ids = [0, 1]
    known.state_data_ptrs, known.state_data_lens = [], []
    manager.register_buffer_to_engine()

    words: dict[str, Any] = dict.fromkeys(
        ("input_text", "input_ids", "input_embeds", "mm_inputs", "token_type_ids", "token_ids_logprob")
    )
    request = TokenizedGenerateReqInput(
        **words,
        sampling_params=SamplingParams(custom_params={"ttft_slo_ms": 250}),
        return_logprob=False,
        logprob_start_len=0,
        top_logprobs_num=0,
        stream=False,
        bootstrap_room=7,
    )
    stopped = ""
    try:
        Scheduler.handle_generate_request(object.__new__(Scheduler), request)
    except (AttributeError, ValueError) as error:  # a scheduler without a model goes no further than our hook
        stopped = str(error)
    manager.add_transfer_request(7, [2, 3], slice(0, 2), False)

    from mooncake_adapter.process import PROCESS

    found = [PROCESS.sources.of(pointer + 2 * ITEM + 5) for pointer in known.kv_data_ptrs]
    print(
        json.dumps(
            {
                "version": sglang.__version__,
                "registered": manager.engine.registered,
                "adapted": getattr(mooncake.engine.TransferEngine, "_mfs_adapted", False),
                "requests": [one.request_id for one in found],
                "layers": [one.layer for one in found],
                "deadlines": [one.deadline_ns for one in found],
                "other_page": PROCESS.sources.of(known.kv_data_ptrs[0] + 5 * ITEM).request_id,
                "stopped": stopped,
                "nixl": through_nixl(),
            }
        ),
        flush=True,
    )
    os._exit(0)  # NIXL's libraries do not end well


if __name__ == "__main__":
    main()

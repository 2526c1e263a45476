"""The plugin in SGLang's own code, as far as that goes without a GPU: found by SGLang's loader, hooked by its registry,
reported by its Mooncake manager and its scheduler. Run by test_sglang.py; prints one JSON line.

Packages of which the imported modules only need the names are stood in for: their builds need CUDA or are not there.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import types
from typing import Any, ClassVar
from unittest.mock import MagicMock

import transformers.models.auto.processing_auto  # noqa: F401  looks for torchvision: before there is one

STOOD_IN = ("torchvision", "IPython", "traitlets", "gguf")
ITEM = 4096


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
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager  # noqa: E402
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
            }
        )
    )


if __name__ == "__main__":
    main()

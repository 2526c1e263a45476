"""vLLM's connector of Mooncake's store for the test, on a host without an accelerator.

A save waits for an event of the stream that computed it. torch without CUDA has no such event, and on a CPU what was
computed is there.

MFS_E2E_FOLDER names the folder where a file "half" makes the decision on reuse that half of it is loaded: what comes of
that needs no engine that is busy at the right time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from mfsd.policy.serve import fetch
from mfsd.policy.serve.fetch import Choice, Decision, Reason
from mooncake_adapter.vllm import reuse

if not torch.accelerator.is_available():

    class _Done:
        def record(self, *_: Any) -> None:
            pass

        def synchronize(self) -> None:
            pass

    torch.cuda.Event = _Done

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import connector

torch.cpu._init_amx()  # tests/e2e/cpu_mooncake.py says why


FOLDER = Path(os.environ["MFS_E2E_FOLDER"])
decide = fetch.decide


def halved(*arguments: Any, **keywords: Any) -> Decision:
    if (FOLDER / "half").exists():
        return Decision(Choice.PART, Reason.LATE_WITH_IT, share=0.5)
    return decide(*arguments, **keywords)


vars(reuse)["decide"] = halved


class MooncakeStoreConnector(connector.MooncakeStoreConnector):
    """As it is."""

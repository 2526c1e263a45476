"""vLLM's V2 model runner, whose kernels Triton's interpreter runs where there is no GPU: make e2e-vllm."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import test_vllm as v1
from tests.e2e.cluster import ROOT, Cluster, running

pytestmark = v1.pytestmark


class V2(Cluster):
    """Both instances with the V2 model runner."""

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "PYTHONPATH": os.pathsep.join((str(ROOT / "tests/e2e/triton_interpreted"), str(ROOT))),
            "TRITON_INTERPRET": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
        }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-", dir="/tmp"))
    with running(V2(folder, v1.RATE)) as made:
        for name in "PD":
            assert "Using V2 Model Runner" in (folder / f"{name}.log").read_text()
        yield made
    shutil.rmtree(folder)


test_same_tokens_as_without_disaggregation = v1.test_same_tokens_as_without_disaggregation
test_other_tokens_when_the_cache_is_emptied = v1.test_other_tokens_when_the_cache_is_emptied
test_every_byte_is_accounted_for = v1.test_every_byte_is_accounted_for_with_stage_layer_and_request
test_layers_leave_while_the_prefill_computes = v1.test_layers_leave_while_the_prefill_computes
test_layer_boundaries_are_counted = v1.test_layer_boundaries_are_counted

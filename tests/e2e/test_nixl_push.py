"""vLLM with its NIXL connector that pushes, layer by layer under MFS, over RDMA and over TCP: make e2e-nixl.

Run by that target alone, which installs what is needed (4 GB); skipped otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import urllib.error
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.ports import free_port
from mooncake_adapter.metadata import request_number
from tests.e2e.cluster import PYTHON, TOKEN_BYTES, pushing, until
from tests.e2e.model import LAYERS
from tests.e2e.test_nixl import BLOCK_TOKENS, SENDS, SOON, TRANSPORTS, WARM_UP, NixlCluster, started
from tests.e2e.test_vllm import prompt

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-nixl"),
    pytest.mark.timeout(1500),
]
WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker"


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


class PushCluster(NixlCluster):
    """A prefill instance that writes."""

    def __init__(self, folder: Path, transport: str) -> None:
        super().__init__(folder, transport)
        self.side = {"P": free_port(), "D": free_port()}
        self.starting = "P"

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side[self.starting])}

    def logging_file(self) -> Path:
        """The connector's own words, too: they say when a decode instance has registered."""
        path = super().logging_file()
        logging = json.loads(path.read_text())
        logging["loggers"][WORKER] = {"level": "DEBUG", "handlers": ["file"], "propagate": False}
        path.write_text(json.dumps(logging))
        return path

    def start_engine(self, name: str, role: str) -> None:
        self.starting = name
        inner = {"kv_connector": "NixlPushConnector", "kv_connector_module_path": "tests.e2e.cpu_nixl"}
        python = self.on_device(PYTHON) if self.transport == "rdma" else [PYTHON]
        self.serve(name, pushing(name, role, inner), *python)

    def pushed(
        self,
        one: list[int],
        tokens: int = 8,
        headers: dict[str, str] | None = None,
        early: bool = True,
        prefilled: list[int] | None = None,
    ) -> tuple[list[int], str]:
        """The tokens by both instances, and the transfer's name. The decode instance registers before the prefill
        begins where it does so `early`, else after its end."""
        name = uuid.uuid4().hex
        named = {**(headers or {}), "X-Request-Id": name}
        fetches = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": name,
            "tp_size": 1,
            "remote_engine_id": "P",
            "remote_request_id": "",
            "remote_host": "127.0.0.1",
            "remote_port": self.side["P"],
        }

        def prefill() -> None:
            sends = {**SENDS, "transfer_id": name}
            self.complete("P", prefilled or one, named, max_tokens=1, kv_transfer_params=sends)

        def decode() -> list[int]:
            return self.complete("D", one, named, max_tokens=tokens, kv_transfer_params=fetches)

        if not early:
            prefill()
            return decode(), name
        before = self.marked()
        with ThreadPoolExecutor(1) as pool:
            later = pool.submit(decode)
            sent = f"Sent PUSH_REG for cmpl-{name}"
            until(lambda: later.done() or sent in self.logged(before), "the registration")
            prefill()
            return later.result(), name


@pytest.fixture(scope="module", params=sorted(TRANSPORTS))
def cluster(request: pytest.FixtureRequest) -> Iterator[PushCluster]:
    with started(PushCluster, request.param) as made:
        for _ in range(WARM_UP):
            with contextlib.suppress(urllib.error.HTTPError):  # vLLM gives a handshake up after five seconds
                made.pushed(prompt(40, 2), tokens=1)
        yield made


def test_pushed_layers_change_no_token(cluster: PushCluster) -> None:
    prompts = [prompt(length, 90 + length) for length in (60, 128, 300, 1100, 1900)]
    wanted = [cluster.alone(one) for one in prompts]
    assert [cluster.pushed(one)[0] for one in prompts] == wanted
    assert [cluster.pushed(one, early=False)[0] for one in prompts] == wanted
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert [output for output, _ in pool.map(cluster.pushed, prompts)] == wanted


def test_other_tokens_with_the_layers_of_another_prompt(cluster: PushCluster) -> None:
    """Else the test above could not see a push that moves nothing."""
    one, other = prompt(900, 5), prompt(900, 6)
    assert cluster.pushed(one, prefilled=other)[0] != cluster.alone(one)


def test_layers_leave_while_the_prefill_computes(cluster: PushCluster) -> None:
    """Each layer's bytes are at the decode instance before the last layer ends, every byte once, and the tokens are the
    same."""
    tokens = 1400
    one = prompt(tokens, 77)
    wanted = cluster.alone(one)
    layer_bytes = blocks_of(tokens) * BLOCK_TOKENS * TOKEN_BYTES // LAYERS
    before = cluster.marked()
    (cluster.folder / "overlap").touch()
    try:
        output, name = cluster.pushed(one, headers=SOON)
    finally:
        (cluster.folder / "overlap").unlink()
    assert output == wanted
    cluster.went_while_computing(before, request_number(name), layer_bytes)


@pytest.mark.parametrize("early", [True, False])
def test_every_byte_is_accounted_for_with_stage_and_request(cluster: PushCluster, early: bool) -> None:
    before, (bytes_before, _) = cluster.marked(), cluster.granted()
    lengths = (200, 700)
    names = [cluster.pushed(prompt(n, n), headers=SOON, early=early)[1] for n in lengths]
    numbers = [request_number(name) for name in names]
    sizes = [blocks_of(n) * BLOCK_TOKENS * TOKEN_BYTES for n in lengths]
    let_go = sum(cluster.let_go(number, size) for number, size in zip(numbers, sizes, strict=True))
    assert cluster.granted()[0] - bytes_before == sum(sizes) - let_go > 0
    by_request: Counter[int] = Counter()
    for size, stage, request, deadline_ns, _ in cluster.messages(cluster.logged(before)):
        assert stage == 3
        assert deadline_ns > 0, "the header's deadline has arrived"
        by_request[request] += size
    assert dict(by_request) == dict(zip(numbers, sizes, strict=True))

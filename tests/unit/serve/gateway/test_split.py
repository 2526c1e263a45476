"""Which decode instance a request is meant for while its prompt is computed, and what both instances hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web

from bench.ports import free_port
from mfsd.policy.route import Role
from mfsd.serve.gateway import pd
from mfsd.serve.gateway.core import Gateway
from mfsd.serve.gateway.settings import Connector, GatewaySettings, Kv, ReplicaSettings
from tests.support.ext_proc import gateway
from tests.unit.serve.gateway.test_proxy import Client, until

GB = 1_000_000_000
PORTS = {"left": "10.0.0.1", "right": "10.0.0.2/in"}


class Engines:
    """One prefill and two decode instances behind one address each; a prefill is held until it is let go."""

    def __init__(self) -> None:
        self.prefills: list[dict[str, Any]] = []
        self.decodes: list[tuple[str, dict[str, Any]]] = []
        self.go = asyncio.Event()
        self.runners: list[web.AppRunner] = []

    async def start(self, name: str, port: int) -> None:
        async def complete(request: web.Request) -> web.Response:
            parameters = (await request.json())["kv_transfer_params"]
            if name == "prefill":
                self.prefills.append(parameters)
                await self.go.wait()
                return web.json_response({"kv_transfer_params": {"remote_host": "10.0.0.9", "decode_nic": "10.9.9.9"}})
            self.decodes.append((name, parameters))
            return web.json_response({"choices": []})

        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.runners.append(runner)


def served(work: Callable[[Gateway, Engines], Coroutine[Any, Any, None]], **ports: str) -> None:
    async def main() -> None:
        engines = Engines()
        replicas = []
        for name in ("prefill", *PORTS):
            port = free_port()
            await engines.start(name, port)
            role = Role.PREFILL if name == "prefill" else Role.DECODE
            url = f"http://127.0.0.1:{port}"
            replicas.append(ReplicaSettings(url, name=name, role=role, requests_max=8, port=ports.get(name, "")))
        async with gateway(GatewaySettings(replicas=replicas, kv=Kv(bytes_per_token=GB))) as made:
            await work(made, engines)
            for replica in made.replicas.all:
                assert (replica.waiting, replica.running, replica.expected) == (0, 0, 0), replica.name
        for runner in engines.runners:
            await runner.cleanup()

    asyncio.run(main())


def owe(made: Gateway, **owed: int) -> None:
    now_s = asyncio.get_running_loop().time()
    for name, size_bytes in owed.items():
        made.replicas.by_name[name].owed.read(size_bytes, GB, now_s)


def test_both_hear_the_nic_of_the_instance_whose_port_owes_least_and_its_kv_counts_there() -> None:
    async def work(made: Gateway, engines: Engines) -> None:
        owe(made, left=GB, right=0)
        one = Client(made)
        await until(lambda: len(engines.prefills) == 1)
        right = made.replicas.by_name["right"]
        assert engines.prefills[0]["decode_nic"] == "10.0.0.2"
        assert right.expected == 1 and right.requests == 0, "it holds no place"
        assert right.owed.expected_bytes == made.replicas.by_name["prefill"].waiting_tokens * GB
        other = Client(made)
        await until(lambda: len(engines.prefills) == 2)
        assert engines.prefills[1]["decode_nic"] == "10.0.0.1", "no reading has the first one's KV yet"
        engines.go.set()
        await asyncio.gather(one.task, other.task)
        assert sorted((name, words["decode_nic"]) for name, words in engines.decodes) == [
            ("left", "10.0.0.1"),
            ("right", "10.0.0.2"),
        ]

    served(work, prefill="10.0.0.9", **PORTS)


def test_an_instance_that_is_lost_meanwhile_is_left_and_the_other_hears_of_no_nic() -> None:
    async def work(made: Gateway, engines: Engines) -> None:
        owe(made, left=0, right=GB)
        client = Client(made)
        await until(lambda: len(engines.prefills) == 1)
        assert engines.prefills[0]["decode_nic"] == "10.0.0.1"
        made.down(made.replicas.by_name["left"], "gone")
        engines.go.set()
        await client.task
        ((name, words),) = engines.decodes
        assert client.status == 200 and name == "right" and "decode_nic" not in words

    served(work, prefill="10.0.0.9", **PORTS)


def test_a_client_that_leaves_is_expected_no_more() -> None:
    async def work(made: Gateway, engines: Engines) -> None:
        owe(made, left=0, right=0)
        client = Client(made)
        await until(lambda: len(engines.prefills) == 1)
        client.leave()
        await client.task
        engines.go.set()
        assert not engines.decodes

    served(work, prefill="10.0.0.9", **PORTS)


def test_ports_that_owe_alike_get_as_many_requests_each() -> None:
    async def work(made: Gateway, engines: Engines) -> None:
        owe(made, left=0, right=0)
        for name in PORTS:
            made.replicas.by_name[name].owed.rate_bytes_per_s = 1 << 60  # too fast for KV to tell them apart
        clients = []
        for number in range(4):
            clients.append(Client(made))
            await until(lambda number=number: len(engines.prefills) == number + 1)
        assert [words["decode_nic"] for words in engines.prefills] == ["10.0.0.1", "10.0.0.2"] * 2
        engines.go.set()
        await asyncio.gather(*(client.task for client in clients))

    served(work, prefill="10.0.0.9", **PORTS)


@pytest.mark.parametrize("ports", [{}, PORTS, {"prefill": "10.0.0.9"}])
def test_without_ports_of_both_the_decode_instance_is_chosen_after_the_prefill(ports: dict[str, str]) -> None:
    async def work(made: Gateway, engines: Engines) -> None:
        owe(made, left=0, right=GB)
        client = Client(made)
        await until(lambda: len(engines.prefills) == 1)
        assert all(replica.expected == 0 for replica in made.replicas.all)
        owe(made, left=2 * GB, right=GB)
        engines.go.set()
        await client.task
        ((name, words),) = engines.decodes
        assert name == "right" and "decode_nic" not in engines.prefills[0] and "decode_nic" not in words

    served(work, **ports)


def test_a_clients_own_word_of_the_instance_is_dropped() -> None:
    given = {"decode_nic": "10.9.9.9", "tenant": "t", "mfs": {"decode_nic": "10.9.9.9", "session": "s"}}
    body = {"prompt": "one", "kv_transfer_params": given}
    replica = ReplicaSettings("http://127.0.0.1:1")
    for nic in ("", "10.0.0.1"):
        for made in (
            pd.prefill(body, Connector.NIXL, "x", nic),
            pd.decode(body, Connector.NIXL, "x", {"kv_transfer_params": {"remote_host": "h"}}, replica, nic),
        ):
            words = made["kv_transfer_params"]
            assert words.get("decode_nic", "") == nic
            assert (words["tenant"], words["mfs"]) == ("t", {"session": "s"})
    assert given["decode_nic"], "the client's body is as it was"

"""What a coordinator serves beside its page: health, metrics, and the leader's view where it stands by."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import grpc.aio
from prometheus_client.parser import text_string_to_metric_families

from mfsd.cli.coordinator_web import answers
from mfsd.coordinator.service import Service
from mfsd.observe.web import Answer
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import SERVICE
from tests.support.shown_cluster import Shown


def get(service: Shown, path: str, **query: str) -> Answer:
    async def ask() -> Answer:
        made = answers(cast(Service, service), asyncio.get_running_loop())
        return await asyncio.to_thread(made[path], query)

    return asyncio.run(ask())


LEADER: dict[str, Any] = {"version": "1", "leads": True, "term": 7, "batches_active": 3, "uptime_ns": 5 * 10**9}


def test_one_that_stands_by_shows_what_the_leader_sees() -> None:
    async def ask() -> dict[str, Any]:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        address = f"127.0.0.1:{port}"
        leader = Shown(pb.StatusReply(address=address, leader=address, **LEADER))
        leader.reply.nodes.add(node="node-a", connected=True)
        handler = grpc.unary_unary_rpc_method_handler(
            leader.status,
            request_deserializer=pb.StatusRequest.FromString,
            response_serializer=pb.StatusReply.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Status": handler}),))
        await server.start()
        standby = Shown(pb.StatusReply(address="own:1", leads=False, leader=address))
        made = answers(cast(Service, standby), asyncio.get_running_loop())
        shown = json.loads((await asyncio.to_thread(made["/status.json"], {})).body)
        await server.stop(0)
        return cast("dict[str, Any]", shown)

    shown = asyncio.run(ask())
    assert (shown["seen_by"], shown["batches_active"], shown["nodes"][0]["node"]) == ("own:1", 3, "node-a")


def test_a_number_without_end_is_no_number() -> None:
    for path in ("/request.json", "/batch.json"):
        assert get(Shown(pb.StatusReply()), path, id="1" * 5000).status == "400 Bad Request"


def test_without_a_leader_nothing_is_pretended() -> None:
    shown = json.loads(get(Shown(pb.StatusReply(address="own:1", leader="127.0.0.1:1")), "/status.json").body)
    assert not shown["leads"] and shown["seen_by"] == "" and shown["nodes"] == []


def test_health_says_whether_there_is_a_leader() -> None:
    fields_of: dict[str, dict[str, Any]] = {
        "ok: leads": {"leads": True, "term": 3},
        "ok: stands by, other:1 leads": {"leader": "other:1"},
        "no leader is known": {},
    }
    answers = {text: get(Shown(pb.StatusReply(**fields)), "/healthz") for text, fields in fields_of.items()}
    assert [answer.status[:3] for answer in answers.values()] == ["200", "200", "503"]
    assert all(answer.body.decode().startswith(text) for text, answer in answers.items())


def test_metrics_are_prometheus_own() -> None:
    reply = pb.StatusReply(address="own:1", **LEADER)
    reply.attainment.met, reply.attainment.missed = 9, 1
    node = reply.nodes.add(node="a", connected=True)
    node.ports.add(name="10.0.0.1/in", rate_bytes_per_s=1000, rho=0.5).used.bypass_permille = 250
    node.ports.add(name="10.0.0.1/out", rate_bytes_per_s=1000)
    node.tiers.tiers.add(name="by-node")
    node.tiers.unreadable = 3
    chat = reply.tiers.add(nodes=1).tier
    chat.MergeFrom(pb.RequestTier(name="chat", met=7, late=2, relegated=1, policies={"fit": 4}))
    answer = get(Shown(reply), "/metrics")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert samples["mfs_coordinator_leads",] == 1
    assert samples["mfs_coordinator_nodes", "connected"] == 1
    assert samples["mfs_coordinator_port_load_ratio", "10.0.0.1/in"] == 0.5
    assert samples["mfs_coordinator_port_bypass_ratio", "10.0.0.1/in"] == 0.25
    assert samples["mfs_coordinator_port_bypass_ratio", "10.0.0.1/out"] == 0
    assert samples["mfs_coordinator_ended_requests_total", "missed"] == 1
    assert samples["mfs_coordinator_tier_ended_requests", "met", "chat"] == 7
    assert samples["mfs_coordinator_tier_ended_requests", "late", "chat"] == 2
    assert samples["mfs_coordinator_tier_requests", "relegated", "chat"] == 1
    assert samples["mfs_coordinator_tier_engines", "fit", "chat"] == 4
    assert samples["mfs_coordinator_unreadable_status_files",] == 3
    labels = {key[-1] for key in samples if "_tier_" in key[0]}
    assert labels == {"chat"}, "no label grows with nodes or requests"

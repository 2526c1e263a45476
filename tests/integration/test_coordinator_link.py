"""Daemons' links and a real coordinator process over loopback."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import grpc.aio
import pytest

from mfsd.node.link_interface import PortDemand
from mfsd.node.link_stream import LinkStream
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.call import Call
from mfsd.proto.wire import LINK, PROTOCOL, REQUESTS_PER_BATCH_MAX, TlsFiles
from tests.support.cluster import Authority, Coordinator, Node, batch, in_loop, until

FAST = '[coordinator]\nheartbeat = "100ms"\ngrace = "500ms"\n'


@in_loop
async def test_two_daemons_get_one_order_and_a_pruned_request(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST + "[policy]\ndrop_budget = 0.5\n") as coordinator:
        async with Node("a", coordinator.address) as a, Node("b", coordinator.address) as b:
            a.arrive(1, 6000)
            a.arrive(2, 3000)
            await until(lambda: a.received.batches() == [2, 1], "a's order")
            a.arrive(3, 1000, port="b/in", size=900 * 10**9)  # 900 s of b's port
            await until(lambda: a.received.batches() == [3, 2, 1], "a's order")
            b.arrive(4, 1200, port="b/in", size=400 * 10**9)
            await until(lambda: a.received.pruned == {3000}, "the request with most on the port is pruned")
            assert a.link.why_pruned(3000) == "batch 4 would have been late by port b/in"
            await until(lambda: b.received.batches() == [4], "b's order: its stream is another than a's")
            assert b.received.pruned == set()
            b.link.departed(4)
            await until(lambda: a.received.pruned == set(), "it comes back")
            assert a.link.why_pruned(3000) is None


@in_loop
async def test_status_shows_it_all(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST + "[policy]\ndrop_budget = 0.5\n") as coordinator:
        async with Node("a", coordinator.address) as a, Node("b", coordinator.address) as b:
            a.arrive(3, 1000, port="b/in", size=900 * 10**9)
            a.link.port_load("a/out", 0.25)
            a.link.port_load("a/in", float("nan"))
            await until(lambda: a.received.batches() == [3], "a's order")
            b.arrive(4, 1200, port="b/in", size=400 * 10**9)
            await until(lambda: 3000 in a.received.pruned, "pruned")
            await until(lambda: all(n.lag_ns for n in coordinator.status().nodes), "an echo of each daemon")
            for options in ([], ["--json"]):
                output = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "mfsd.cli.ctl", "coordinator", "status", "--address", coordinator.address),
                    *options,
                    stdout=subprocess.PIPE,
                    env={"COLUMNS": "120"},
                )
                text = (await output.communicate())[0].decode()
                assert output.returncode == 0, text
                if options:
                    reply = json.loads(text)
                    assert [row["batch_id"] for row in reply["batches"]] == [3, 4]
                    given_up = {"batch_id": 3, "request_id": 3000, "for_batch": 4, "port": "b/in", "relegated": False}
                    assert reply["pruned"] == [given_up]
                    assert [row["node"] for row in reply["nodes"]] == ["a", "b"]
                    port = reply["nodes"][0]["ports"][1]
                    assert (port["name"], port["rate_bytes_per_s"], port["rho"]) == ("a/out", 10**9, 0.25)
                    assert port["used"]["permille"] == [], "no daemon reported"
                    assert reply["leads"] is True and reply["leader"] == coordinator.address
                    assert all(row["connected"] and int(row["lag_ns"]) > 0 for row in reply["nodes"])
                else:
                    rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
                    assert ["3000", "3", "4", "b/in"] in rows, "pruned, of batch, for batch, by port"
                    assert ["a/out", "a", "8 Gbit/s", "-", "25%"] in rows, "what is used of it no daemon reported"


@in_loop
async def test_a_restarted_coordinator_hears_everything_again(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as first:
        async with Node("a", first.address) as a:
            a.arrive(1, 60)
            a.arrive(2, 30)
            await until(lambda: a.received.batches() == [2, 1], "the order")
            term = a.link.status().term
            first.process.kill()
            first.process.wait()
            await until(lambda: not a.link.status().connected, "the link notices")
            a.link.departed(2)
            a.arrive(3, 10)
            with Coordinator(tmp_path, config=FAST, port=first.port):
                await until(lambda: a.link.status().term > term and a.received.batches() == [3, 1], "the order again")
            assert a.received.lost == 0


@in_loop
async def test_a_lone_coordinator_whose_clock_went_back_outbids_its_former_life(tmp_path: Path) -> None:
    """A wall clock that is an hour late after a restart: daemons would refuse the smaller term for ever."""
    with Coordinator(tmp_path, config=FAST) as coordinator:
        ahead = time.time_ns() + 3600 * 10**9
        node = Node("a", coordinator.address)
        node.link._state.follow("alone", ahead, 0)
        async with node as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            assert a.link.status().term == ahead + 1


@in_loop
async def test_a_time_to_live_shorter_than_three_heartbeats_is_prolonged(tmp_path: Path) -> None:
    """Else the order would come and go with every heartbeat."""
    with Coordinator(tmp_path, config='[coordinator]\nheartbeat = "1s"\n') as coordinator:
        async with Node("a", coordinator.address, ttl_s=0.5) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            first_ns = a.link._state.received_ns or 0
            await until(lambda: (a.link._state.received_ns or 0) > first_ns + 600_000_000, "a heartbeat after the ttl")
            assert a.received.lost == 0
            (output,) = a.log.events("ttl-too-short")
            assert (output["ttl_s"], output["heartbeat_s"], output["used_s"]) == (0.5, 1.0, 3.0)
            assert "[cluster] ttl" in str(output["remedy"])


@in_loop
async def test_the_order_expires_when_it_is_not_confirmed(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as coordinator:
        async with Node("a", coordinator.address, ttl_s=1.0) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            confirmed = len(a.received.changes)
            received_ns = a.link._state.received_ns or 0
            # heard again, later than the time to live: heartbeats alone keep the order
            await until(lambda: (a.link._state.received_ns or 0) > received_ns + 1_200_000_000, "a late heartbeat")
            assert (a.received.lost, len(a.received.changes)) == (0, confirmed)
            coordinator.process.send_signal(signal.SIGSTOP)
            try:
                await until(lambda: a.received.lost == 1, "the order is lost")
            finally:
                coordinator.process.send_signal(signal.SIGCONT)
            await until(lambda: a.received.batches() == [1], "the order again")


async def gone_with_a_batch(coordinator: Coordinator) -> None:
    async with Node("a", coordinator.address) as a:
        a.arrive(1, 60)
        await until(lambda: a.received.batches() == [1], "the order")


@in_loop
async def test_batches_of_a_daemon_that_is_gone_stay_for_the_grace(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config='[coordinator]\nheartbeat = "100ms"\ngrace = "1000s"\n') as coordinator:
        await gone_with_a_batch(coordinator)
        await until(lambda: not any(n.connected for n in coordinator.status().nodes), "it is gone")
        status = coordinator.status()
        assert ([n.node for n in status.nodes], [b.batch_id for b in status.batches]) == (["a"], [1])


@in_loop
async def test_batches_of_a_daemon_that_is_gone_end_with_the_grace(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config='[coordinator]\nheartbeat = "100ms"\ngrace = "300ms"\n') as coordinator:
        await gone_with_a_batch(coordinator)
        await until(lambda: not coordinator.status().nodes, "the grace ends")
        assert not coordinator.status().batches


@in_loop
async def test_a_second_stream_of_a_node_replaces_the_first(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as coordinator:
        async with Node("a", coordinator.address) as first:
            await until(lambda: first.link.status().connected, "a connection")
            async with Node("a", coordinator.address) as second:
                await until(lambda: second.link.status().connected, "a connection")
                await until(lambda: not first.link.status().connected, "the first one's end")
            coordinator.wait_line("node a has connected again")
            assert "connected again" in first.link.status().problem


@in_loop
async def test_a_batch_of_100_000_requests_is_not_reported_and_harms_no_other(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as coordinator:
        async with Node("a", coordinator.address) as a:
            a.arrive(1, 60, requests=100_000)
            a.arrive(2, 60, requests=REQUESTS_PER_BATCH_MAX)
            await until(lambda: a.received.batches() == [2], "the order of the other")
        (line,) = a.log.events("batch-not-reported")
        assert line["problem"] == f"100000 requests: give 1 to {REQUESTS_PER_BATCH_MAX}"


@in_loop
async def test_updates_in_quick_succession_are_reported_as_one(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as coordinator:
        async with Node("a", coordinator.address) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            before = coordinator.status().events
            for budget_s in range(100, 1100):
                a.link.updated(batch(1, budget_s))
            a.arrive(2, 800)
            await until(lambda: set(a.received.ranks) == {1, 2}, "both")
            assert a.received.batches() == [2, 1]
            assert coordinator.status().events - before <= 3


@in_loop
async def test_routing_history_reaches_the_coordinator(tmp_path: Path) -> None:
    """Collectives that are not declared make a batch late that would be in time without them."""
    with Coordinator(tmp_path, config=FAST + "[policy]\ndrop_budget = 0.5\n") as coordinator:
        async with Node("a", coordinator.address) as a:
            a.arrive(1, 900, port="a/in", size=80 * 10**9, requests=2)  # 160 s of the port
            await until(lambda: a.received.batches() == [1], "the order")
            assert a.received.pruned == set()
            a.link.routed("unit", [PortDemand("a/in", 800 * 10**9)])
            a.link.updated(batch(1, 900, port="a/in", size=80 * 10**9, requests=2))
            await until(lambda: len(a.received.pruned) == 1, "one request is pruned")


# ---- bad streams --------------------------------------------------------------------------------------


async def answers(address: str, *messages: pb.FromNode) -> list[pb.ToNode]:
    """Everything that the coordinator says to these messages until it ends the stream."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(LINK, request_serializer=lambda m: m, response_deserializer=pb.ToNode.FromString)()
        for message in messages:
            await call.write(message if isinstance(message, bytes) else message.SerializeToString())
        await call.done_writing()
        return [message async for message in call]


@in_loop
async def test_a_foreign_protocol_version_is_refused_with_the_reason(tmp_path: Path) -> None:
    hello = pb.Hello(protocol=PROTOCOL + 2, protocol_oldest=PROTOCOL + 1, node="a", version="9.9")
    with Coordinator(tmp_path) as coordinator:
        (answer,) = await answers(coordinator.address, pb.FromNode(hello=hello))
        assert answer.refusal.code == pb.Refusal.PROTOCOL
        assert (
            "mfsd 9.9 speaks protocols 2 to 3, this coordinator speaks 1 to 1: upgrade the older"
            in answer.refusal.reason
        )


@in_loop
async def test_a_later_version_that_still_speaks_ours_is_welcome(tmp_path: Path) -> None:
    """It sends fields and messages that we do not know."""
    hello = pb.FromNode(hello=pb.Hello(protocol=PROTOCOL + 1, protocol_oldest=PROTOCOL, node="a"))
    unknown_field = hello.SerializeToString() + b"\xfa\x7d\x03abc"  # field 2015
    unknown_message = b"\xfa\x7d\x03abc"
    with Coordinator(tmp_path) as coordinator:
        got = await answers(coordinator.address, unknown_field, unknown_message)  # type: ignore[arg-type]
        assert [m.WhichOneof("kind") for m in got] == ["welcome"]
        assert got[0].welcome.protocol == PROTOCOL


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (pb.FromNode(report=pb.Report()), "the first message must be a hello"),
        (pb.FromNode(), "the first message must be a hello"),
        (pb.FromNode(hello=pb.Hello(protocol=1, protocol_oldest=1)), "the node name is empty"),
    ],
)
def test_a_stream_without_a_proper_hello_is_refused(tmp_path: Path, first: pb.FromNode, reason: str) -> None:
    with Coordinator(tmp_path) as coordinator:
        (answer,) = asyncio.run(answers(coordinator.address, first))
        assert answer.refusal.code == pb.Refusal.HELLO
        assert reason in answer.refusal.reason


@in_loop
async def test_reports_that_make_no_sense_harm_no_node(tmp_path: Path) -> None:
    hello = pb.FromNode(hello=pb.Hello(protocol=1, protocol_oldest=1, node="bad"))
    with Coordinator(tmp_path, config=FAST) as coordinator:
        async with Node("good", coordinator.address) as good:
            good.arrive(1, 60)
            await until(lambda: good.received.batches() == [1], "the order")
            term = good.link.status().term
            request = pb.Request(request_id=1, budget_left_ns=-(2**63), port=[7], size_bytes=[1])
            uneven = pb.Request(request_id=1, port=[], size_bytes=[1])
            report = pb.Report(
                term=term,
                departed=[1, 5],
                arrived=[pb.Batch(batch_id=5, requests=[request]), pb.Batch(batch_id=6, requests=[uneven])],
                updated=[pb.Batch(batch_id=7)],
                loads=[pb.Load(port=99, rho=1.0)],
                routed=[pb.Routing(unit="u", port=[1])],
                snapshot_end=True,
            )
            got = await answers(coordinator.address, hello, pb.FromNode(report=report))
            refused = {row.batch_id: row.reason for m in got for row in m.order.refused}
            assert refused[5] == "the report uses port number 7, which the daemon has not declared"
            assert refused[6] == "the report has 0 ports and 1 sizes: the two numbers must be equal"
            assert refused[7].startswith("the batch has no requests")
            assert good.received.batches() == [1]
            assert [b.batch_id for b in coordinator.status().batches] == [1]


@in_loop
async def test_garbage_ends_only_its_own_stream(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as coordinator:
        async with Node("good", coordinator.address) as good:
            await until(lambda: good.link.status().connected, "a connection")
            with pytest.raises(grpc.aio.AioRpcError):
                await answers(coordinator.address, b"\xff" * 100)  # type: ignore[arg-type]
            good.arrive(1, 60)
            await until(lambda: good.received.batches() == [1], "the order")


@in_loop
async def test_a_daemon_that_answers_no_heartbeat_is_taken_for_lost(tmp_path: Path) -> None:
    """The others, which do, stay."""
    hello = pb.FromNode(hello=pb.Hello(protocol=1, protocol_oldest=1, node="dumb"))
    with Coordinator(tmp_path, config=FAST) as coordinator:
        async with Node("good", coordinator.address) as good:
            good.arrive(1, 60)
            await until(lambda: good.received.batches() == [1], "the order")
            async with grpc.aio.insecure_channel(coordinator.address) as channel:
                call = channel.stream_stream(
                    LINK, request_serializer=pb.FromNode.SerializeToString, response_deserializer=pb.ToNode.FromString
                )()
                await call.write(hello)
                got = [message.WhichOneof("kind") async for message in call]
            assert got[0] == "welcome" and set(got[1:]) == {"heartbeat"}, "then the stream has ended"
            coordinator.wait_line("event=daemon-silent node=dumb for_s=1")
            assert [n.node for n in coordinator.status().nodes if n.connected] == ["good"]
            assert good.log.events("coordinator-lost") == []


# ---- certificates -------------------------------------------------------------------------------------


def tls_config(files: TlsFiles) -> str:
    return FAST + f'ca = "{files.ca}"\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'


@in_loop
async def test_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Coordinator(tmp_path, config=tls_config(authority.issue("coordinator"))) as coordinator:
        node = authority.issue("node", "a")
        async with Node("a", coordinator.address, tls=node) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            config = tmp_path / "node.toml"
            config.write_text(
                f'[cluster]\ncoordinators = ["{coordinator.address}"]\nca = "{node.ca}"\n'
                f'certificate = "{node.certificate}"\nkey = "{node.key}"\n'
            )
            output = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "mfsd.cli.ctl", "coordinator", "status", "--config", str(config)),
                stdout=subprocess.PIPE,
            )
            assert b"1 batches" in (await output.communicate())[0]
            assert output.returncode == 0


@in_loop
async def test_no_node_takes_the_place_of_another(tmp_path: Path) -> None:
    """A certificate is good for the names that it carries, as alternative names or as the common name."""
    authority = Authority(tmp_path)
    with Coordinator(tmp_path, config=tls_config(authority.issue("coordinator"))) as coordinator:
        async with Node("a", coordinator.address, tls=authority.issue("rack-1", "a", "b")) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            async with Node("a", coordinator.address, tls=authority.issue("c")) as intruder:
                await until(lambda: intruder.log.events("coordinator-lost"), "the refusal")
                (output,) = intruder.log.events("coordinator-lost")
                assert "the certificate is for 127.0.0.1, c, not for node a" in str(output["problem"])
                assert not intruder.received.changes
            coordinator.wait_line("event=daemon-refused")
            async with (
                Node("b", coordinator.address, tls=authority.issue("rack-2", "a", "b")) as b,
                Node("c", coordinator.address, tls=authority.issue("c")) as c,
            ):
                await until(lambda: b.link.status().connected and c.link.status().connected, "both are admitted")
            assert a.link.status().connected and a.log.events("coordinator-lost") == []
        assert not [line for line in coordinator.lines if "nodes-not-authenticated" in line]


@in_loop
async def test_without_certificates_names_are_believed_and_the_coordinator_says_so(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST) as coordinator:
        async with Node("a", coordinator.address) as a, Node("b", coordinator.address) as b:
            await until(lambda: a.link.status().connected and b.link.status().connected, "both are admitted")
        assert len([line for line in coordinator.lines if "event=nodes-not-authenticated" in line]) == 1


@pytest.mark.parametrize("fault", ["other authority", "no certificate", "server of another authority", "wrong name"])
def test_wrong_certificates_are_refused_with_one_clear_line(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: Counter[str] = Counter()
    attempt = LinkStream._open

    async def counted(stream: LinkStream, call: Call, address: str) -> None:
        attempts[address] += 1
        await attempt(stream, call, address)

    monkeypatch.setattr(LinkStream, "_open", counted)
    authority, other = Authority(tmp_path), Authority(tmp_path, "stranger")
    server = authority.issue("coordinator", "coord.example" if fault == "wrong name" else "127.0.0.1")
    node: TlsFiles | None = authority.issue("node")
    if fault == "other authority":
        files = other.issue("node")
        node = TlsFiles(ca=authority.ca, certificate=files.certificate, key=files.key)
    elif fault == "no certificate":
        node = None
    elif fault == "server of another authority":
        files = other.issue("coordinator")
        server = TlsFiles(ca=authority.ca, certificate=files.certificate, key=files.key)

    async def check(coordinator: Coordinator) -> None:
        async with Node("a", coordinator.address, tls=node) as a:
            a.arrive(1, 60)
            await until(lambda: a.log.events("coordinator-lost"), "the daemon says why")
            await until(lambda: attempts[coordinator.address] > 3, "several attempts")
            lines = a.log.events("coordinator-lost")
            assert len(lines) == 1, "one line, however often it is tried"
            hint = "check ca, certificate and key at both ends" if node else "does the coordinator expect certificates"
            assert hint in str(lines[0]["problem"])
            assert not a.link.status().connected
            assert not a.received.changes

    with Coordinator(tmp_path, config=tls_config(server)) as coordinator:
        asyncio.run(check(coordinator))


@pytest.mark.parametrize("broken", ["missing", "garbage", "key of another"])
def test_unusable_certificate_files_are_named_at_start(tmp_path: Path, broken: str) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("coordinator")
    if broken == "missing":
        files.certificate.unlink()
    elif broken == "garbage":
        assert files.ca is not None
        files.ca.write_text("garbage")
    else:
        files.key.write_bytes(authority.issue("another").key.read_bytes())
    coordinator = Coordinator(tmp_path, config=tls_config(files))
    try:
        assert coordinator.wait_end() == 1
        (line,) = coordinator.lines
        named = {"missing": files.certificate, "garbage": files.ca, "key of another": files.key}[broken]
        assert str(named) in line
    finally:
        coordinator.__exit__(None, None, None)


def copied(files: TlsFiles, to: Path) -> TlsFiles:
    """The files under names that stay when they are renewed."""
    to.mkdir(exist_ok=True)
    own = TlsFiles(ca=to / "ca.pem", certificate=to / "own.pem", key=to / "own.key")
    assert files.ca is not None and own.ca is not None
    for source, target in ((files.ca, own.ca), (files.certificate, own.certificate), (files.key, own.key)):
        target.write_bytes(source.read_bytes())
    return own


@in_loop
async def test_renewed_certificates_need_no_restart(tmp_path: Path) -> None:
    """Both ends go over to another authority; the connection that is there stays."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    server = copied(old.issue("coordinator"), tmp_path / "server")
    node = copied(old.issue("node", "a"), tmp_path / "node")
    with Coordinator(tmp_path, config=tls_config(server)) as coordinator:
        async with Node("a", coordinator.address, tls=node) as a:
            a.arrive(1, 60)
            await until(lambda: a.received.batches() == [1], "the order")
            copied(new.issue("coordinator"), tmp_path / "server")
            async with Node("b", coordinator.address, tls=new.issue("b")) as b:
                b.arrive(2, 60)
                await until(lambda: b.received.batches() == [2], "the new authority's node is admitted")
            async with Node("c", coordinator.address, tls=old.issue("c")) as c:
                await until(lambda: c.log.events("coordinator-lost"), "the old authority's is not")
                assert not c.link.status().connected
            assert a.link.status().connected
            assert a.log.events("coordinator-lost") == []
            copied(new.issue("node", "a"), tmp_path / "node")
            coordinator.process.kill()
            coordinator.process.wait()
            await until(lambda: not a.link.status().connected, "the link notices")
            with Coordinator(tmp_path, config=tls_config(server), port=coordinator.port):
                await until(lambda: a.link.status().connected, "it comes back with its new certificate")
            assert len(a.log.events("certificates-renewed")) == 1


@in_loop
async def test_certificates_that_cannot_be_used_leave_the_old_ones_in_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = copied(authority.issue("coordinator"), tmp_path / "server")
    with Coordinator(tmp_path, config=tls_config(server)) as coordinator:
        server.certificate.write_bytes(authority.issue("another").certificate.read_bytes())  # its key is still to come
        async with Node("a", coordinator.address, tls=authority.issue("a")) as a:
            await until(lambda: a.link.status().connected, "admitted by the old certificate")
        coordinator.wait_line("event=certificates-unusable")
        server.key.unlink()
        async with Node("b", coordinator.address, tls=authority.issue("b")) as b:
            await until(lambda: b.link.status().connected, "admitted by the old certificate")


# ---- the process --------------------------------------------------------------------------------------


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with Coordinator(tmp_path) as coordinator:
        second = Coordinator(tmp_path, port=coordinator.port)
        try:
            assert second.wait_end() == 1
            assert f"cannot listen on {coordinator.address}: another process may use the port" in second.lines[-1]
        finally:
            second.__exit__(None, None, None)


@in_loop
async def test_reload_replaces_the_policy_and_keeps_a_bad_file_out(tmp_path: Path) -> None:
    with Coordinator(tmp_path, config=FAST + "[policy]\ndrop_budget = 0.5\n") as coordinator:
        async with Node("a", coordinator.address) as a, Node("b", coordinator.address) as b:
            a.arrive(3, 1000, port="b/in", size=900 * 10**9)
            await until(lambda: a.received.batches() == [3], "the order")
            b.arrive(4, 1200, port="b/in", size=400 * 10**9)
            await until(lambda: a.received.pruned == {3000}, "pruned")
            coordinator.config_file.write_text("[policy]\ndrop_budget = 7\n")
            coordinator.process.send_signal(signal.SIGHUP)
            coordinator.wait_line("event=reload-failed")
            assert a.received.pruned == {3000}
            coordinator.config_file.write_text("[policy]\ndrop_budget = 0.0\n")
            coordinator.process.send_signal(signal.SIGHUP)
            await until(lambda: a.received.pruned == set(), "nothing is pruned under the new policy")


def test_sigterm_ends_it_cleanly(tmp_path: Path) -> None:
    with Coordinator(tmp_path) as coordinator:
        coordinator.process.terminate()
        assert coordinator.wait_end() == 0
        assert "event=stopped" in coordinator.lines[-1]

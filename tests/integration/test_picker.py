"""The gateway's endpoint picker under a real Envoy, in front of engines that are processes."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec
import pytest

from bench.ports import free_port
from mfsd.proto import ext_proc_pb2 as pb
from mfsd.serve.gateway.picker import HEALTH, SERVICE
from tests.support.cluster import Authority
from tests.support.envoy import EnvoyProcess, envoy
from tests.support.gateway import ROOT, GatewayProcess, gateway, replicas
from tests.support.openai_engine import MODEL, PROMPT_MAX, StandIn, engines
from tests.support.waiting import eventually

FAST, SELDOM = "[state]\npoll_ms = 50\n", "[state]\npoll_ms = 60000\n"
CHAT = "[tiers.chat]\nttft_ms = 500\nimportance = 1\n"


class Setting(NamedTuple):
    proxy: EnvoyProcess
    gateway: GatewayProcess
    engines: list[StandIn]


@pytest.fixture(scope="module")
def three() -> Iterator[list[StandIn]]:
    with engines(3) as made:
        yield made


def config(made: list[StandIn], port: int, more: str, **each: object) -> str:
    return replicas(*(one.url for one in made), **each) + more + f'[ext_proc]\nlisten = "127.0.0.1:{port}"\n'


@pytest.fixture(scope="module")
def setting(three: list[StandIn], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder, port = tmp_path_factory.mktemp("picker"), free_port()
    with (
        gateway(folder, config(three, port, FAST + CHAT)) as front,
        envoy(folder, port, [one.port for one in three]) as proxy,
    ):
        yield Setting(proxy, front, three)


def marked(made: list[StandIn], mark: str) -> list[dict[str, Any]]:
    return [request for one in made for request in one.seen() if request["body"].get("user") == mark]


def states(made: list[StandIn], mark: str) -> list[str]:
    return [request["state"] for request in marked(made, mark)]


def body(mark: str, **more: object) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "one two three", "user": mark, **more}


def idle(front: GatewayProcess) -> bool:
    """It counts no request any more, and no stream of the proxy is open."""
    return "mfs_gateway_ext_proc_streams 0.0" in front.metrics() and not any(
        replica["waiting"] + replica["running"] for replica in front.status()["replicas"]
    )


def test_answers_come_from_the_replica_that_was_chosen_whole_and_as_a_stream(setting: Setting) -> None:
    proxy, front, made = setting
    status, headers, answer = proxy.post(body("whole"))
    assert (status, answer["choices"][0]["text"]) == (200, "a b")
    assert headers["x-test-served"] == f"127.0.0.1:{made['abc'.index(headers['x-mfs-replica'])].port}"
    status, headers, text = proxy.post(body("stream", stream=True, max_tokens=3))
    assert text.count("data: ") == 4 and text.endswith("data: [DONE]\n\n")
    assert [states(made, mark) for mark in ("whole", "stream")] == [["finished"], ["finished"]]
    eventually(lambda: idle(front), "the end of both")
    assert 'outcome="answered",tier="default"} 2.0' in front.metrics()


def test_calls_go_to_the_least_loaded_whichever_front_has_the_others(setting: Setting) -> None:
    proxy, front, made = setting
    fronts = (proxy, front, proxy)
    with ThreadPoolExecutor(3) as pool:
        answers = []
        for number, one in enumerate(fronts, 1):
            answers.append(pool.submit(one.post, body("spread", stream=True, hold=1)))
            eventually(lambda count=number: states(made, "spread") == ["held"] * count, "the call", pause_s=0.02)
        for engine in made:
            engine.release()
        assert {answer.result()[1]["x-mfs-replica"] for answer in answers} == {"a", "b", "c"}


def test_long_prompts_stay_with_their_program(setting: Setting) -> None:
    proxy, front, made = setting
    session, long = {"x-session-id": "chat-1"}, body("long", prompt=list(range(3000)))
    home = proxy.post(long, session)[1]["x-mfs-replica"]
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(proxy.post, body("busy", stream=True, hold=1), session)
        eventually(lambda: states(made, "busy") == ["held"], "the other call", pause_s=0.02)
        assert [one.post(long, session)[1]["x-mfs-replica"] for one in (proxy, front)] == [home] * 2
        for one in made:
            one.release()
        busy.result()


def test_words_reach_the_engine_made_safe(setting: Setting) -> None:
    proxy, _, made = setting
    headers = {"x-tier": "chat", "x-session-id": "s" * 10_000, "x-slo-tbt-ms": "NaN", "x-gateway-fairness-id": "acme"}
    proxy.post(body("words", vllm_xargs={"own": 1, "ttlt_slo_ms": -3}, prompt="long " * 60_000 + "\n"), headers)
    assert not marked(made, "words"), "its prompt is too long"
    proxy.post(body("words", vllm_xargs={"own": 1, "ttlt_slo_ms": -3}, prompt="x" * 300_000), headers)
    (request,) = marked(made, "words")
    assert len(request["body"]["prompt"]) == 300_000, "in several parts"
    xargs = request["body"]["vllm_xargs"]
    assert set(xargs) == {"own", "ttft_slo_ms", "importance", "tenant", "session", "tier"}
    assert 0 < xargs["ttft_slo_ms"] <= 500 and len(xargs["session"]) == 64
    assert not {"x-session-id", "x-slo-tbt-ms", "x-tier"} & {name.lower() for name in request["headers"]}


def test_what_cannot_be_served_is_refused_with_the_reason(setting: Setting) -> None:
    proxy, _, made = setting
    status, headers, answer = proxy.post(body("none", prompt=[1] * (PROMPT_MAX + 1)))
    assert (status, answer["error"]["limit"]) == (413, PROMPT_MAX)
    assert headers["content-type"] == "application/json"
    assert proxy.post({**body("none"), "model": "other"})[0] == 404
    assert [proxy.post(raw)[0] for raw in (b"{", b"[1]")] == [400, 400]
    assert proxy.post(b'"' + b"x" * 33_554_432 + b'"')[0] == 413
    assert not marked(made, "none")


def test_only_endpoints_of_the_subset_are_taken(setting: Setting) -> None:
    proxy, _, made = setting
    for replica, one in zip("abc", made, strict=True):
        answer = proxy.post(body("subset"), {"x-test-subset": f"127.0.0.1:{one.port},10.0.0.1:80"})
        assert (answer[0], answer[1]["x-mfs-replica"]) == (200, replica)
    status, headers, answer = proxy.post(body("nowhere"), {"x-test-subset": "10.0.0.1:80"})
    assert status == 503 and "retry-after" in headers and not marked(made, "nowhere")


def test_what_is_no_request_for_tokens_is_passed_on(setting: Setting) -> None:
    proxy, front, _ = setting
    before = front.status()
    assert json.load(urllib.request.urlopen(proxy.url + "/v1/models"))["data"][0]["id"] == MODEL
    assert proxy.post(b"any text", path="/release")[0] == 200
    assert proxy.post(b"any text", path="/nowhere")[0] == 404
    eventually(lambda: idle(front), "their end")
    assert [r["sent"] for r in front.status()["replicas"]] == [r["sent"] for r in before["replicas"]]


def test_a_client_that_leaves_takes_its_call_with_it(setting: Setting) -> None:
    proxy, front, made = setting
    for mark, hold in (("leaves", 1), ("leaves early", 0)):
        connection = proxy.begin(body(mark, stream=bool(hold), hold=hold))
        eventually(lambda mark=mark: states(made, mark) == ["held"], "the call", pause_s=0.02)
        connection.close()
        eventually(lambda mark=mark: states(made, mark) == ["aborted"], "the engine's abort", pause_s=0.02)
    eventually(lambda: 'outcome="withdrawn",tier="default"} 2.0' in front.metrics(), "the count", pause_s=0.02)
    eventually(lambda: idle(front), "the release", pause_s=0.02)


def test_at_the_bound_calls_wait_in_order_and_then_are_refused(tmp_path: Path, three: list[StandIn]) -> None:
    port, bound = free_port(), "[admission]\nqueue_max = 2\n"
    with (
        gateway(tmp_path, config(three[:1], port, FAST + bound + CHAT, requests_max=1)) as front,
        envoy(tmp_path, port, [three[0].port]) as proxy,
        ThreadPoolExecutor(4) as pool,
    ):
        first = pool.submit(proxy.post, body("q0", hold=0))
        eventually(lambda: states(three, "q0") == ["held"], "the first", pause_s=0.02)
        last = pool.submit(front.post, body("q1"))
        eventually(lambda: front.status()["queue"] == 1, "one that waits")
        leaves = proxy.begin(body("leaves the queue"))
        eventually(lambda: front.status()["queue"] == 2, "two that wait")
        leaves.close()
        eventually(lambda: front.status()["queue"] == 1, "one that has left the queue")
        second = pool.submit(proxy.post, body("q2"))
        eventually(lambda: front.status()["queue"] == 2, "two that wait")
        status, headers, answer = proxy.post(body("q3"))
        assert status == 429 and int(headers["retry-after"]) >= 1 and answer["error"]["code"] == "saturated"
        important = pool.submit(proxy.post, body("q4"), {"x-tier": "chat"})
        assert second.result()[0] == 429  # the last in order made room
        three[0].release()
        assert [future.result()[0] for future in (first, important, last)] == [200, 200, 200]
        order = [r["body"]["user"] for r in three[0].seen() if r["body"].get("user") in ("q1", "q4")]
        assert order == ["q4", "q1"]
        eventually(lambda: idle(front), "the release", pause_s=0.02)
    assert not [mark for mark in ("q2", "q3", "leaves the queue") if marked(three, mark)]


@pytest.mark.parametrize("names_served", [True, False], ids=["metadata", "attribute"])
def test_a_killed_replica_loses_only_what_it_had_begun_and_nothing_runs_twice(
    tmp_path: Path, names_served: bool
) -> None:
    port = free_port()
    with (
        engines(2) as made,
        gateway(tmp_path, config(made, port, SELDOM)) as front,
        envoy(tmp_path, port, [one.port for one in made], names_served=names_served) as proxy,
    ):
        streams = [proxy.begin(body(f"k{i}", stream=True, hold=1)) for i in range(2)]
        answers = [stream.getresponse() for stream in streams]
        assert all(answer.read1(100) for answer in answers)
        (own,) = [i for i, answer in enumerate(answers) if answer.headers["x-mfs-replica"] == "a"]
        made[0].kill()
        eventually(lambda: front.status()["replicas"][0]["healthy"] is False, "what its broken stream brings about")
        made[1].release()
        assert answers[1 - own].read().decode().endswith("[DONE]\n\n")
        assert not marked(made[1:], f"k{own}")
        done = [proxy.post(body(f"after {i}"))[:2] for i in range(10)]
        assert {(status, headers["x-mfs-replica"]) for status, headers in done} == {(200, "b")}
        users = [r["body"]["user"] for r in made[1].seen()]
        assert sorted(u for u in users if u.startswith("after")) == sorted(f"after {i}" for i in range(10))
        made[1].kill()
        assert proxy.post(body("none"))[0] == 503  # Envoy's own: no poll has seen it
        eventually(lambda: not any(r["healthy"] for r in front.status()["replicas"]), "the doubt that this raised")
        status, headers, answer = proxy.post(body("none"))
        assert status == 503 and "retry-after" in headers and answer["error"]["code"] == "no_replica"
        eventually(lambda: idle(front), "the release", pause_s=0.02)


def test_the_next_endpoint_serves_where_the_chosen_one_cannot_be_connected_to(tmp_path: Path) -> None:
    port = free_port()
    with (
        engines(2) as made,
        gateway(tmp_path, config(made, port, SELDOM)) as front,
        envoy(tmp_path, port, [one.port for one in made]) as proxy,
    ):
        made[0].kill()  # nothing was sent there, so that it is not known
        status, headers, _ = proxy.post(body("elsewhere"))
        assert (status, headers["x-mfs-replica"]) == (200, "b")
        assert states(made[1:], "elsewhere") == ["finished"]
        metrics = front.metrics()
        for name, count in (("picked_total", "a"), ("sent_elsewhere_total", "a"), ("sent_total", "b")):
            assert f'mfs_gateway_{name}{{replica="{count}"}} 1.0' in metrics
        eventually(lambda: front.status()["replicas"][0]["healthy"] is False, "what Envoy has found")
        eventually(lambda: idle(front), "the release", pause_s=0.02)


@pytest.mark.parametrize(
    "mode",
    [
        {"request_body_mode": "BUFFERED", "response_body_mode": "NONE"},
        {"request_body_mode": "NONE", "response_body_mode": "STREAMED"},
    ],
    ids=["buffered", "head alone"],
)
def test_proxies_that_send_less(tmp_path: Path, three: list[StandIn], mode: dict[str, str]) -> None:
    port = free_port()
    with (
        gateway(tmp_path, config(three, port, FAST + CHAT)) as front,
        envoy(tmp_path, port, [one.port for one in three], mode) as proxy,
    ):
        mark = str(sorted(mode.items()))
        headers = {"x-tier": "chat", "x-session-id": "s"}
        assert proxy.post(body(mark, stream=True), headers)[2].endswith("data: [DONE]\n\n")
        (request,) = marked(three, mark)
        if mode["request_body_mode"] == "BUFFERED":
            assert request["body"]["vllm_xargs"]["tier"] == "chat"
        else:
            assert {name.lower(): value for name, value in request["headers"].items()}["x-tier"] == "chat"
        assert front.status()["programs"] == 1
        eventually(lambda: idle(front), "the release", pause_s=0.02)
        assert 'outcome="answered",tier="chat"} 1.0' in front.metrics()


def test_each_address_of_a_name_may_be_chosen(tmp_path: Path, three: list[StandIn]) -> None:
    port, one = free_port(), three[0]
    more = f'each_address = true\n{FAST}[ext_proc]\nlisten = "127.0.0.1:{port}"\n'
    with (
        gateway(tmp_path, f'[[replicas]]\nurl = "http://localhost:{one.port}"\n{more}') as front,
        envoy(tmp_path, port, [one.port]) as proxy,
    ):
        eventually(lambda: any(r["healthy"] for r in front.status()["replicas"]), "its address", pause_s=0.02)
        for each in (proxy, front):
            status, headers, _ = each.post(body("named"))
            assert (status, headers["x-mfs-replica"]) == (200, f"127.0.0.1:{one.port}")


def ask_health(channel: grpc.Channel, service: str, wait: bool = True) -> int:
    check = channel.unary_unary(
        f"/{HEALTH}/Check",
        request_serializer=pb.HealthCheckRequest.SerializeToString,
        response_deserializer=pb.HealthCheckResponse.FromString,
    )
    reply: pb.HealthCheckResponse = check(pb.HealthCheckRequest(service=service), timeout=30, wait_for_ready=wait)
    return reply.status


def test_health_says_whether_a_replica_answers(tmp_path: Path) -> None:
    port = free_port()
    serving, not_serving = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
    with (
        engines(1) as made,
        gateway(tmp_path, config(made, port, FAST)),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        assert [ask_health(channel, name) for name in ("", "readiness", "liveness", SERVICE)] == [serving] * 4
        with pytest.raises(grpc.RpcError) as error:
            ask_health(channel, "other")
        assert isinstance(error.value, grpc.Call) and error.value.code() is grpc.StatusCode.NOT_FOUND
        made[0].kill()
        eventually(lambda: ask_health(channel, SERVICE) == not_serving, "the end of its only replica", pause_s=0.02)
        assert ask_health(channel, "liveness") == serving


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(tmp_path: Path, three: list[StandIn], mutual: bool) -> None:
    authority, port = Authority(tmp_path), free_port()
    own, proxy = authority.issue("gateway"), authority.issue("proxy")
    tls = f'certificate = "{own.certificate}"\nkey = "{own.key}"\n' + (f'ca = "{own.ca}"\n' if mutual else "")
    assert own.ca is not None and proxy.ca is not None
    ca = own.ca.read_bytes()
    with gateway(tmp_path, config(three, port, FAST) + tls):
        anonymous = grpc.ssl_channel_credentials(ca)
        known = grpc.ssl_channel_credentials(ca, proxy.key.read_bytes(), proxy.certificate.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{port}", known) as channel:
            assert ask_health(channel, "liveness") == pb.HealthCheckResponse.SERVING
        with grpc.secure_channel(f"127.0.0.1:{port}", anonymous) as channel:
            if not mutual:
                assert ask_health(channel, "liveness") == pb.HealthCheckResponse.SERVING
                return
            with pytest.raises(grpc.RpcError):
                ask_health(channel, "liveness", wait=False)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("ext_proc", "ext_proc: cannot listen on 127.0.0.1:"),
        ("metrics", "metrics.listen = 127.0.0.1:"),
        ("", "listen = 127.0.0.1:"),
    ],
)
def test_a_port_that_is_taken_is_one_line(tmp_path: Path, setting: Setting, table: str, error: str) -> None:
    served = msgspec.toml.decode(setting.gateway.file.read_bytes())
    here = served["listen"] if table == "" else f"127.0.0.1:{free_port()}"
    taken = {"metrics": "", **({table: served[table]["listen"]} if table else {})}
    file = tmp_path / "gateway.toml"
    tables = "".join(f'[{name}]\nlisten = "{listen}"\n' for name, listen in taken.items())
    file.write_text(f'listen = "{here}"\n' + replicas(setting.engines[0].url) + tables)
    command = (sys.executable, "-m", "mfsd.cli.daemon", "--gateway", "--config", file)
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    lines = [line for line in found.stderr.splitlines() if "add_port.cc" not in line]  # gRPC's own
    assert lines[-1].startswith(f"mfsd: cannot start: {error}"), found.stderr
    assert "Traceback" not in found.stderr and "event=ready" not in found.stderr

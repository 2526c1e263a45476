"""The gateway's process in front of engines that are processes, too."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench.ports import free_port
from tests.support.cluster import Coordinator, Node, in_loop
from tests.support.gateway import ROOT, GatewayProcess, gateway, replicas
from tests.support.openai_engine import MODEL, PROMPT_MAX, StandIn, engines
from tests.support.waiting import eventually

FAST = "[state]\npoll_ms = 50\n"


@pytest.fixture(scope="module")
def three() -> Iterator[list[StandIn]]:
    with engines(3) as made:
        yield made


@pytest.fixture(scope="module")
def front(three: list[StandIn], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    tiers = "[tiers.chat]\nttft_ms = 500\nimportance = 1\n"
    urls = [one.url for one in three]
    with gateway(tmp_path_factory.mktemp("gateway"), replicas(*urls) + FAST + tiers) as made:
        yield made


def marked(made: list[StandIn], mark: str) -> list[dict[str, Any]]:
    """The requests with this mark that reached any engine."""
    return [request for one in made for request in one.seen() if request["body"].get("user") == mark]


def held(made: list[StandIn], mark: str, count: int = 1) -> bool:
    return [request["state"] for request in marked(made, mark)] == ["held"] * count


def body(mark: str, **more: object) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "one two three", "user": mark, **more}


def test_answers_are_passed_on_whole_and_as_a_stream(front: GatewayProcess, three: list[StandIn]) -> None:
    status, headers, answer = front.post(body("whole"))
    assert (status, answer["choices"][0]["text"]) == (200, "a b")
    assert headers["x-mfs-replica"] in ("a", "b", "c")
    status, headers, text = front.post(body("stream", stream=True, max_tokens=3))
    assert text.count("data: ") == 4 and text.endswith("data: [DONE]\n\n")
    assert headers["content-type"].startswith("text/event-stream")
    assert [len(marked(three, mark)) for mark in ("whole", "stream")] == [1, 1]


def test_how_long_answers_take_is_measured_by_tier(tmp_path: Path, three: list[StandIn]) -> None:
    config = replicas(three[0].url, requests_max=1) + FAST + "[tiers.chat]\nttft_ms = 500\n"
    with gateway(tmp_path, config) as front, ThreadPoolExecutor(2) as pool:
        first = pool.submit(front.post, body("times", stream=True, hold=1), {"x-tier": "chat"})
        eventually(lambda: held(three, "times"), "the first call")
        second = pool.submit(front.post, body("after"))
        eventually(lambda: front.status()["queue"] == 1, "one that waits")
        three[0].release()
        assert (first.result()[0], second.result()[0]) == (200, 200)
        found = dict(line.rsplit(" ", 1) for line in front.metrics().splitlines() if not line.startswith("#"))

        def seconds(name: str, tier: str, part: str = "sum") -> float:
            return float(found[f'mfs_gateway_{name}_seconds_{part}{{tier="{tier}"}}'])

        assert [seconds(name, "chat", "count") for name in ("first_token", "duration", "queue_wait")] == [1, 1, 1]
        assert 0 < seconds("first_token", "chat") < seconds("duration", "chat")
        assert seconds("queue_wait", "chat") < seconds("queue_wait", "default") < seconds("duration", "default")
        assert not any(name.startswith('mfs_gateway_first_token_seconds_sum{tier="default"') for name in found)
        assert found["mfs_gateway_ready"] == "1.0"


def test_errors_of_paths_and_methods_are_in_openais_form(front: GatewayProcess) -> None:
    model = {"id": MODEL, "object": "model", "owned_by": "mfs", "created": 7, "max_model_len": PROMPT_MAX}
    assert json.loads(front.get("/v1/models")) == {"object": "list", "data": [model]}
    assert json.loads(front.get(f"/v1/models/{MODEL}")) == model
    for path, method, status, code in (
        ("/v1/models/org/none", "GET", 404, "model_not_found"),
        ("/v1/none", "POST", 404, "not_found"),
        ("/status.json", "GET", 404, "not_found"),  # what it shows of itself is elsewhere
        ("/metrics", "GET", 404, "not_found"),
        ("/v1/models", "POST", 405, "method_not_allowed"),
        ("/v1/completions", "GET", 405, "method_not_allowed"),
    ):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(front.url + path, method=method), timeout=20)
        assert error.value.code == status and json.loads(error.value.read())["error"]["code"] == code
        assert status != 405 or error.value.headers["allow"]


def test_a_slash_too_many_is_redirected(front: GatewayProcess) -> None:
    client = http.client.HTTPConnection("127.0.0.1", front.port, timeout=60)
    client.request("POST", "/v1/completions/", json.dumps(body("slash")))
    answer = client.getresponse()
    assert answer.status == 307 and str(answer.headers["location"]).endswith("/v1/completions")
    client.close()


def test_the_official_client_works(front: GatewayProcess) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=front.url + "/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    parts = client.completions.create(model=MODEL, prompt="x", stream=True, max_tokens=5)
    assert "".join(part.choices[0].text for part in parts) == "t0 t1 t2 t3 t4 "


def test_calls_go_to_the_least_loaded_and_long_ones_stay_with_their_program(
    front: GatewayProcess, three: list[StandIn]
) -> None:
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(front.post, body("spread", stream=True, hold=1)) for _ in range(3)]
        eventually(lambda: held(three, "spread", 3), "all three at engines")
        for one in three:
            one.release()
        assert {answer.result()[1]["x-mfs-replica"] for answer in answers} == {"a", "b", "c"}
    session = {"x-session-id": "chat-1"}
    long = body("long", prompt=list(range(3000)))
    home = front.post(long, session)[1]["x-mfs-replica"]
    at_home = three["abc".index(home)]
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(front.post, body("busy", stream=True, hold=1), session)
        eventually(lambda: held(three, "busy"), "the other call")
        assert front.post(long, session)[1]["x-mfs-replica"] == home
        for one in three:
            one.release()
        busy.result()
    assert len([r for r in at_home.seen() if r["body"].get("user") == "long"]) == 2


def test_a_program_that_begins_short_has_one_home_once_its_prompts_are_long(
    front: GatewayProcess, three: list[StandIn]
) -> None:
    session = {"x-session-id": "grows"}
    with ThreadPoolExecutor(3) as pool:
        short = [pool.submit(front.post, body("grows", stream=True, hold=1), session) for _ in range(3)]
        eventually(lambda: held(three, "grows", 3), "a short call at each")
        for one in three:
            one.release()
        assert {answer.result()[1]["x-mfs-replica"] for answer in short} == {"a", "b", "c"}
    long = body("grown", prompt=list(range(3000)))
    home = front.post(long, session)[1]["x-mfs-replica"]
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(front.post, body("at-home", prompt=list(range(3000)), stream=True, hold=1), session)
        eventually(lambda: held(three, "at-home"), "the long call that lasts")
        assert {front.post(long, session)[1]["x-mfs-replica"] for _ in range(3)} == {home}
        for one in three:
            one.release()
        assert busy.result()[1]["x-mfs-replica"] == home


def test_words_reach_the_engine_made_safe(front: GatewayProcess, three: list[StandIn]) -> None:
    headers = {"x-tier": "chat", "x-session-id": "s" * 10_000, "x-slo-tbt-ms": "NaN", "x-gateway-fairness-id": "acme"}
    headers["x-expected-output-tokens"] = "300"
    front.post(body("words", vllm_xargs={"own": 1, "ttlt_slo_ms": -3}), headers)
    (request,) = marked(three, "words")
    xargs = request["body"]["vllm_xargs"]
    assert set(xargs) == {"own", "ttft_slo_ms", "importance", "tenant", "session", "tier", "expected_output_tokens"}
    assert 0 < xargs["ttft_slo_ms"] <= 500 and xargs["importance"] == 1 and xargs["tenant"] == "acme"
    assert len(xargs["session"]) == 64 and xargs["expected_output_tokens"] == 300
    assert not {"x-session-id", "x-slo-tbt-ms"} & {name.lower() for name in request["headers"]}
    front.post(body("words", vllm_xargs={"session": "a\nb\x00"}))
    assert marked(three, "words")[-1]["body"]["vllm_xargs"]["session"].isprintable()
    for value in ("nan", "-1", "soon", "1e99"):
        assert front.post(body("slo"), {"x-slo-ttft-ms": value})[0] == 200
    assert all("vllm_xargs" not in request["body"] for request in marked(three, "slo"))
    log = front.log.read_text()
    assert log.count("ttft_slo_ms") == 1 and log.count("tbt_slo_ms") == 1
    assert 'mfs_gateway_unusable_words_total{word="ttft"} 4.0' in front.metrics()


def test_a_parent_that_is_unknown_or_the_child_of_its_child_is_taken_as_root(front: GatewayProcess) -> None:
    before = front.status()["programs"]
    for session, parent in (("x", "y"), ("y", "x"), ("x", "x"), ("z", "nowhere")):
        assert front.post(body("tree"), {"x-session-id": session, "x-parent-session-id": parent})[0] == 200
    assert front.status()["programs"] == before + 2  # x with y, and z
    assert front.log.read_text().count("is not known here") == 1


def test_what_cannot_be_served_is_refused_with_the_reason(front: GatewayProcess, three: list[StandIn]) -> None:
    status, _, answer = front.post(body("long", prompt=[1] * (PROMPT_MAX + 1)))
    assert status == 413 and answer["error"]["limit"] == PROMPT_MAX and str(PROMPT_MAX) in answer["error"]["message"]
    assert front.post(body("long", prompt="word " * (PROMPT_MAX + 1)))[0] == 413
    assert front.post(body("fits", prompt="wordword" * PROMPT_MAX))[0] == 200  # one word: the engine decides
    for cut in ({"truncate_prompt_tokens": -1}, {"truncation": "auto"}, {"truncation": None}):  # the engine shortens it
        assert front.post(body("long", prompt=[1] * (PROMPT_MAX + 1), **cut))[0] == 200
    assert front.post({**body("other"), "model": "other"})[0] == 404
    for raw in (b"{", b'{"a\x9a": 1}', b"[" * 100_000):
        assert front.post(raw)[0] == 400
    assert front.post([1])[0] == 400
    assert not marked(three, "other")
    status, _, answer = front.post(b'"' + b"x" * 33_554_432 + b'"')
    assert (status, answer["error"]["limit"]) == (413, 33_554_432)


def test_a_client_that_leaves_takes_its_call_with_it(front: GatewayProcess, three: list[StandIn]) -> None:
    connection = front.begin(body("leaves", stream=True, hold=1))
    assert connection.getresponse().read1(100)
    connection.close()
    eventually(lambda: [r["state"] for r in marked(three, "leaves")] == ["aborted"], "the engine's abort", pause_s=0.02)
    before_any_byte = front.begin(body("leaves early", hold=0))
    eventually(lambda: marked(three, "leaves early"), "the call", pause_s=0.02)
    before_any_byte.close()
    eventually(lambda: [r["state"] for r in marked(three, "leaves early")] == ["aborted"], "the abort", pause_s=0.02)
    eventually(lambda: 'outcome="withdrawn",tier="default"} 2.0' in front.metrics(), "the count")


def test_at_the_bound_calls_wait_in_order_and_then_are_refused(tmp_path: Path, three: list[StandIn]) -> None:
    config = (
        replicas(three[0].url, requests_max=1) + FAST + "[admission]\nqueue_max = 2\n[tiers.chat]\nimportance = 1\n"
    )
    with gateway(tmp_path, config) as front, ThreadPoolExecutor(4) as pool:
        first = pool.submit(front.post, body("q0", hold=0))
        eventually(lambda: held(three, "q0"), "the first")
        last = pool.submit(front.post, body("q1"))
        eventually(lambda: front.status()["queue"] == 1, "one that waits")
        second = pool.submit(front.post, body("q2"))
        eventually(lambda: front.status()["queue"] == 2, "two that wait")
        status, headers, answer = front.post(body("q3"))
        assert status == 429 and int(headers["retry-after"]) >= 1 and answer["error"]["code"] == "saturated"
        important = pool.submit(front.post, body("q4"), {"x-tier": "chat"})
        assert second.result()[0] == 429  # the last in order made room
        leaver = front.begin(body("q5"))
        assert leaver.getresponse().status == 429
        three[0].release()
        assert [future.result()[0] for future in (first, important, last)] == [200, 200, 200]
        order = [r["body"]["user"] for r in three[0].seen() if r["body"].get("user") in ("q1", "q4")]
        assert order == ["q4", "q1"]
    assert not marked(three, "q2") and not marked(three, "q3")


def test_a_tier_has_no_more_requests_at_engines_than_it_may(tmp_path: Path, three: list[StandIn]) -> None:
    config = replicas(three[0].url) + FAST + "[admission.requests_max]\nbatch = 1\n[tiers.batch]\n"
    with gateway(tmp_path, config) as front, ThreadPoolExecutor(2) as pool:
        first = pool.submit(front.post, body("t0", hold=0), {"x-tier": "batch"})
        eventually(lambda: held(three, "t0"), "the first")
        second = pool.submit(front.post, body("t1"), {"x-tier": "batch"})
        eventually(lambda: front.status()["queue"] == 1, "the second waits")
        assert front.post(body("t2"))[0] == 200
        assert not marked(three, "t1")
        three[0].release()
        assert (first.result()[0], second.result()[0]) == (200, 200)


def test_a_killed_replica_loses_only_what_it_had_begun_and_nothing_runs_twice(tmp_path: Path) -> None:
    with (
        engines(2) as made,
        gateway(tmp_path, replicas(*(one.url for one in made)) + "[state]\npoll_ms = 60000\n") as front,
    ):
        streams = [front.begin(body(f"k{i}", stream=True, hold=1)) for i in range(2)]
        answers = [stream.getresponse() for stream in streams]
        assert all(answer.read1(100) for answer in answers)
        (own,) = [i for i, answer in enumerate(answers) if answer.headers["x-mfs-replica"] == "a"]
        made[0].kill()
        text = answers[own].read().decode()
        assert '"code":"engine_lost"' in text and "[DONE]" not in text
        made[1].release()
        assert answers[1 - own].read().decode().endswith("[DONE]\n\n")
        assert len([r for r in made[1].seen() if r["body"]["user"] == f"k{own}"]) == 0
        # No poll has seen it: the first that finds it away goes elsewhere, once.
        done = [front.post(body(f"after {i}"))[:2] for i in range(10)]
        assert {(status, headers["x-mfs-replica"]) for status, headers in done} == {(200, "b")}
        users = [r["body"]["user"] for r in made[1].seen()]
        assert sorted(u for u in users if u.startswith("after")) == sorted(f"after {i}" for i in range(10))
        assert 'mfs_gateway_sent_elsewhere_total{replica="a"} 1.0' in front.metrics()
        made[1].kill()
        status, headers, answer = front.post(body("none"))
        assert status == 503 and "retry-after" in headers and answer["error"]["code"] == "no_replica"


def test_an_engine_that_dies_before_its_answer_is_an_error_and_not_asked_again(tmp_path: Path) -> None:
    with engines(2) as made, gateway(tmp_path, replicas(*(one.url for one in made)) + FAST) as front:
        found: list[Any] = []
        client = threading.Thread(target=lambda: found.append(front.post(body("dies", hold=0))))
        client.start()
        eventually(lambda: marked(made, "dies"), "the call")
        (at,) = [one for one in made if any(r["body"]["user"] == "dies" for r in one.seen())]
        (other,) = [one for one in made if one is not at]
        at.kill()
        client.join()
        assert found[0][0] == 502 and found[0][2]["error"]["code"] == "engine_lost"
        assert not marked([other], "dies")


def test_an_engine_that_falls_silent_is_lost_and_its_requests_end(tmp_path: Path) -> None:
    with engines(2) as made:
        urls = [one.url for one in made]
        with gateway(tmp_path, replicas(*urls) + "[state]\npoll_ms = 50\nlost_after_s = 1\n") as front:
            streams = [front.begin(body("silent", stream=True, hold=1)) for _ in range(2)]
            answers = [stream.getresponse() for stream in streams]
            own, other = sorted(answers, key=lambda answer: answer.headers["x-mfs-replica"])
            assert own.read1(100) and other.read1(100)
            waiting = front.begin(body("silent before its answer", hold=0))
            eventually(lambda: marked(made[:1], "silent before its answer"), "the call")
            made[0].process.send_signal(signal.SIGSTOP)
            text = own.read().decode()
            assert '"code":"engine_lost"' in text and "nothing was received from it for 1 s" in text
            assert "[DONE]" not in text
            answer = waiting.getresponse()
            assert (answer.status, json.loads(answer.read())["error"]["code"]) == (502, "engine_lost")
            state = front.status()["replicas"][0]
            assert (state["healthy"], state["waiting"], state["running"], state["failed"]) == (False, 0, 0, 2)
            assert front.post(body("elsewhere"))[1]["x-mfs-replica"] == "b"
            assert front.log.read_text().count("event=replica-lost") == 1
            made[1].release()
            assert other.read().decode().endswith("[DONE]\n\n"), "those of others go on"
            made[0].process.send_signal(signal.SIGCONT)
            eventually(lambda: front.status()["replicas"][0]["healthy"], "it is back")
            states = [r["state"] for r in made[0].seen() if r["body"]["user"].startswith("silent")]
            assert states == ["aborted", "aborted"]


def test_an_engine_that_fails_at_once_is_not_the_least_loaded_one(tmp_path: Path) -> None:
    with engines(2) as made:
        config = replicas(*(one.url for one in made), requests_max=1) + FAST
        with gateway(tmp_path, config) as front, ThreadPoolExecutor(2) as pool:
            made[0].fail(True)
            found = [front.post(body("failing"))[:2] for _ in range(9)]
            assert [status for status, _ in found] == [500] * 3 + [200] * 6
            assert {headers["x-mfs-replica"] for status, headers in found if status == 200} == {"b"}
            busy = pool.submit(front.post, body("busy", hold=0))
            eventually(lambda: held(made, "busy"), "that the other one is full")
            waits = pool.submit(front.post, body("waits"))
            eventually(lambda: front.status()["queue"] == 1, "one that waits for it")
            made[1].release()
            assert (busy.result()[0], waits.result()[0]) == (200, 200)
            metrics = front.metrics()
            assert 'mfs_gateway_answers_total{replica="a",status="5xx"} 3.0' in metrics
            assert 'mfs_gateway_answers_total{replica="b",status="2xx"} 8.0' in metrics
            assert front.log.read_text().count("event=replica-behind") == 1
            made[0].fail(False)
            made[1].kill()
            assert front.post(body("only"))[:1] == (200,), "what no other may have it is given"


def test_sigterm_takes_requests_a_while_and_lets_them_end(tmp_path: Path) -> None:
    with engines(1) as made:
        times = "lame_duck_s = 3\ndrain_s = 30\n"
        with gateway(tmp_path, times + replicas(made[0].url) + FAST) as front, ThreadPoolExecutor(1) as pool:
            left = front.begin(body("left", stream=True, hold=1)).getresponse()
            assert left.read1(100)
            front.process.send_signal(signal.SIGTERM)
            eventually(lambda: "event=stops" in front.log.read_text(), "that it stops")
            status, headers, _ = front.post(body("late"))
            assert (status, headers["connection"]) == (200, "close"), "proxies do not know yet"
            with pytest.raises(urllib.error.HTTPError, match="503"):
                front.get("/health")
            ends = pool.submit(front.post, body("ends", stream=True, hold=2))
            eventually(lambda: held(made, "ends"), "the other one")
            eventually(lambda: not _listens(front), "that it takes no more")
            assert front.process.poll() is None
            made[0].release()
            for text in (left.read().decode(), ends.result()[2]):
                assert text.endswith("[DONE]\n\n")
        assert front.process.returncode == 0


def _listens(front: GatewayProcess) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", front.port)):
        return True
    return False


def test_a_request_that_outlasts_the_drain_ends_with_an_error(tmp_path: Path) -> None:
    with engines(1) as made, gateway(tmp_path, "drain_s = 0.5\n" + replicas(made[0].url) + FAST) as front:
        stream = front.begin(body("left", stream=True, hold=1)).getresponse()
        assert stream.read1(100)
        whole = front.begin(body("whole", hold=0))
        eventually(lambda: held(made, "whole"), "the other one")
        front.process.terminate()
        text = stream.read().decode()
        assert '"code":"gateway_stopped"' in text and "[DONE]" not in text
        answer = whole.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (503, "gateway_stopped")
        assert front.process.wait(20) == 0
        log = front.log.read_text()
        assert "event=requests-ended requests=2" in log and "Traceback" not in log
        assert [r["state"] for r in made[0].seen()] == ["aborted", "aborted"]


def test_sighup_is_logged_and_ends_nothing(front: GatewayProcess, three: list[StandIn]) -> None:
    front.process.send_signal(signal.SIGHUP)
    eventually(lambda: "event=sighup-ignored" in front.log.read_text(), "the line")
    assert front.post(body("after"))[0] == 200


def _open_now(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


EARLY = """
import signal, sys, uvicorn
from mfsd.cli.daemon import main

run = uvicorn.Server.run

def signalled(server):
    signal.raise_signal(signal.SIGTERM)
    run(server)

uvicorn.Server.run = signalled
sys.argv[0] = "mfsd"
main()
"""


def test_a_signal_just_before_the_gateway_serves_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    tables = replicas(f"http://127.0.0.1:{free_port()}")
    file.write_text(f'listen = "127.0.0.1:{free_port()}"\n{tables}[metrics]\nlisten = ""\n')
    command = (sys.executable, "-c", EARLY, "--gateway", "--config", file)
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0


def test_without_a_descriptor_requests_get_503_and_replicas_stay(tmp_path: Path, three: list[StandIn]) -> None:
    with gateway(tmp_path, replicas(three[0].url) + FAST) as front, contextlib.ExitStack() as stack:
        process = front.process.pid
        soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
        assert soft == min(hard, 65_536)
        clients = [http.client.HTTPConnection("127.0.0.1", front.port, timeout=60) for _ in range(7)]
        for client in clients:
            client.connect()
            stack.callback(client.close)
        front.get("/health")  # a connection after those: they are accepted
        most = _open_now(process) + 2
        resource.prlimit(process, resource.RLIMIT_NOFILE, (most, hard))
        more = [stack.enter_context(socket.create_connection(("127.0.0.1", front.port))) for _ in range(9)]
        eventually(lambda: _open_now(process) >= most, "the last descriptor")
        for client in clients[:-1]:  # what is open to the engine is used, and then there is none
            client.request("POST", "/v1/completions", json.dumps(body("fills", hold=0)))
        eventually(lambda: "no-socket" in front.log.read_text(), "that there is none")
        clients[-1].request("POST", "/v1/completions", json.dumps(body("refused")))
        answer = clients[-1].getresponse()
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        assert json.loads(answer.read())["error"]["code"] == "no_socket" and not marked(three, "refused")
        resource.prlimit(process, resource.RLIMIT_NOFILE, (soft, hard))
        for one in more:
            one.close()
        eventually(lambda: front.post(body("again"))[0] == 200, "a request")
        log = front.log.read_text()
        assert "replica-down" not in log and log.count("event=no-socket") == 1 and "LimitNOFILE" in log
        assert 'mfs_gateway_refused_total{reason="no-socket"}' in front.metrics()
        three[0].release()


@pytest.mark.parametrize("connector", ["nixl", "mooncake"])
def test_prefill_and_decode_apart(tmp_path: Path, three: list[StandIn], connector: str) -> None:
    prefill = replicas(three[0].url, role="prefill", engine_id="P", bootstrap="http://127.0.0.1:9")
    decode = replicas(three[1].url, role="decode").replace('"a"', '"d"')
    mark = f"pd {connector}"
    with gateway(tmp_path, prefill + decode + FAST + f'[disaggregation]\nconnector = "{connector}"\n') as front:
        status, headers, text = front.post(
            body(mark, stream=True, max_tokens=2, stream_options={"include_usage": True})
        )
    assert (status, headers["x-mfs-replica"]) == (200, "d") and text.endswith("[DONE]\n\n")
    (first,), (second,) = marked([three[0]], mark), marked([three[1]], mark)
    sent, got = first["body"], second["body"]
    assert (sent["max_tokens"], sent["stream"], "stream_options" in sent) == (1, False, False)
    assert sent["kv_transfer_params"]["do_remote_decode"] is True
    assert (got["max_tokens"], got["stream"]) == (2, True)
    if connector == "nixl":
        assert got["kv_transfer_params"] == {"do_remote_prefill": True, "remote_engine_id": "P", "remote_port": 1}
    else:
        assert got["kv_transfer_params"]["transfer_id"] == sent["kv_transfer_params"]["transfer_id"]
        assert got["kv_transfer_params"]["remote_bootstrap_addr"] == "http://127.0.0.1:9"
    names = {name.lower(): value for name, value in first["headers"].items()}
    assert names["x-request-id"] == {n.lower(): v for n, v in second["headers"].items()}["x-request-id"]


@in_loop
async def test_what_ports_owe_is_told_as_it_changes_and_again_by_a_coordinator_that_was_restarted(
    tmp_path: Path, three: list[StandIn]
) -> None:
    web, port = free_port(), free_port()
    config = f'[coordinator]\nheartbeat = "100ms"\nweb = "127.0.0.1:{web}"\n'
    url = f"http://127.0.0.1:{web}"
    state = f'[state]\npoll_ms = 60000\ncoordinators = ["http://127.0.0.1:{free_port()}", "{url}"]\n'

    def owes(front: GatewayProcess, expected: bool | None) -> bool:
        found = front.status()
        owed = found["replicas"][0]["owed_bytes"]
        return owed is None if expected is None else found["watched"] and owed is not None and (owed > 0) is expected

    async def comes(front: GatewayProcess, expected: bool | None, what: str) -> None:
        await asyncio.to_thread(eventually, lambda: owes(front, expected), what, pause_s=0.02)

    with gateway(tmp_path, replicas(three[0].url, port="node-b") + state) as front:
        async with Node("node-b", f"127.0.0.1:{port}") as node:
            with Coordinator(tmp_path, config=config, port=port) as first:
                await comes(front, False, "a port that owes nothing")
                node.arrive(4, 1200, port="node-b/in", size=400 * 10**9)
                await comes(front, True, "what it owes")
                assert front.status()["coordinator"] == url
                node.link.departed(4)
                await comes(front, False, "that it owes nothing any more")
                node.arrive(5, 1200, port="node-b/in", size=400 * 10**9)
                await comes(front, True, "the next one")
                first.process.kill()
                await comes(front, None, "that nothing is known")
            with Coordinator(tmp_path, config=config, port=port):
                await comes(front, True, "the same from the one that was restarted")
        assert front.log.read_text().count("coordinator-silent") <= 1

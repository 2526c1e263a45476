"""vLLM behind a gateway, all together: two models on three replicas, policies switched and a replica killed while
requests run, prefill and decode apart, and engines that start and stop: make e2e-vllm."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mfsd.serve.learn.rows import read_rows
from mfsd.serve.publish import read_all
from mfsd.serve.records import Step
from mfsd.serve.records import read as read_decisions
from tests.e2e.cluster import PYTHON, ROOT, START_S, TOKEN_BYTES, until
from tests.e2e.demo_serve import lost, twice
from tests.e2e.replicas import Engine, Outcome, Replicas, running, with_a_death
from tests.e2e.test_nixl import BLOCK_TOKENS, NixlCluster, started
from tests.e2e.test_vllm import prompt
from tests.support.gateway import Front, gateway, replicas

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-vllm"),
    pytest.mark.timeout(1800),
]
MFS = ("--scheduler-cls", "mooncake_adapter.vllm_scheduler.MfsScheduler")
JSON = {"content-type": "application/json"}
SESSIONS = 8
POLICIES = ("edf", "srpf", "two-lane", "wfq", "fcfs")
SWITCHED_FROM = 1000
"""Numbers of requests: those of the death come first."""


@pytest.fixture(scope="module")
def other_model() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-model-"))
    subprocess.run([PYTHON, ROOT / "tests/e2e/model.py", folder, "7"], check=True, capture_output=True)
    yield folder
    shutil.rmtree(folder)


def asked(port: int, model: str, tokens: list[int], most: int = 8, **more: object) -> tuple[list[int], str]:
    """The answer's tokens, and the replica that a gateway names."""
    body = {"model": model, "prompt": tokens, "max_tokens": most, "temperature": 0, "ignore_eos": True, **more}
    status, headers, answer = Front(port, START_S).post({**body, "return_token_ids": True}, JSON)
    assert status == 200, answer
    found: list[int] = answer["choices"][0]["token_ids"]
    return found, headers.get("x-mfs-replica", "")


def models(port: int) -> list[str]:
    answer: dict[str, Any] = json.loads(Front(port).get("/v1/models"))
    return [model["id"] for model in answer["data"]]


# ---- prefill and decode apart ----------------------------------------------------------------------------------------


def test_prefill_and_decode_behind_the_gateway(tmp_path: Path) -> None:
    """Once with the decode instance chosen after the prefill, and once before it, by ports."""
    with started(NixlCluster, "tcp") as cluster:
        lengths = (40, 200, 500, 900)
        size = sum(-(-n // BLOCK_TOKENS) * BLOCK_TOKENS * TOKEN_BYTES for n in lengths)
        for first, ports in enumerate(({"P": "", "D": ""}, {"P": "10.0.0.1", "D": "10.0.0.2"})):
            prefill = replicas(f"http://127.0.0.1:{cluster.ports['P']}", role="prefill", port=ports["P"])
            decode = replicas(f"http://127.0.0.1:{cluster.ports['D']}", role="decode", port=ports["D"])
            prompts = [prompt(length, seed + 10 * first) for seed, length in enumerate(lengths)]
            wanted = [cluster.alone(one) for one in prompts]
            before = cluster.granted()[0]
            folder = tmp_path / str(first)
            folder.mkdir()
            with gateway(folder, prefill + decode.replace('"a"', '"d"')) as front:
                until(lambda front=front: all(one["healthy"] for one in front.status()["replicas"]), "both")
                found = [asked(front.port, "tiny", one) for one in prompts]
                assert found == [(tokens, "d") for tokens in wanted]
                until(lambda before=before: cluster.granted()[0] - before >= size, "the daemon's count")
                assert cluster.granted()[0] - before == size, "all of the cache, once"
                with ThreadPoolExecutor(len(prompts)) as pool:
                    together = list(pool.map(lambda one, at=front.port: asked(at, "tiny", one)[0], prompts))
                assert together == wanted
                assert [one["sent"] for one in front.status()["replicas"]] == [2 * len(prompts)] * 2
                assert not any(one["failed"] for one in front.status()["replicas"])


# ---- engines that start and stop -------------------------------------------------------------------------------------


class Residents(Replicas):
    """Engines that the gateway starts; there is memory for one."""

    def table(self, name: str) -> str:
        command = ["sh", "-c", 'exec "$@" >>"$0" 2>&1', str(self.log(name)), *self.command(name)]
        more = {"models": [self.engines[name].served], "command": command, "memory_bytes": 60}
        return super().table(name) + "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())

    def start(self) -> None:
        for name in self.engines:
            self.log(name).touch()
        self.start_gateway()
        until(lambda: self._answers("gateway", self.gateway_port), "the gateway", START_S)

    def stages(self) -> dict[str, str]:
        return {replica["name"]: replica["stage"] for replica in self.status()["replicas"]}

    def memory_mib(self, name: str) -> float:
        """Of all processes that have the engine's port or a parent that has."""
        return sum(_resident_mib(pid) for pid in _with_children(str(self.ports[name])))


def _with_children(word: str) -> set[int]:
    parents: dict[int, int] = {}
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if word.encode() in words:
            found.add(int(path.name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _resident_mib(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def test_a_model_gives_its_memory_to_another_one_and_is_loaded_again(tmp_path: Path, other_model: Path) -> None:
    engines = (Engine("a"), Engine("c", "other", other_model))
    one, config = prompt(100, 3), "[residency]\nmemory_bytes = 100\n"
    with running(Residents(tmp_path, engines, config)) as made, ThreadPoolExecutor(2) as pool:
        assert isinstance(made, Residents)
        port = made.gateway_port
        assert models(port) == ["other", "tiny"] and not made.memory_mib("a")
        tokens, _ = asked(port, "tiny", one)
        loaded_mib = made.memory_mib("a")
        first = threading.Semaphore(0)
        stream = pool.submit(made.stream, 1, "busy", first)
        first.acquire()
        found, replica = pool.submit(asked, port, "other", one).result()
        assert stream.result().end == "done", "who has requests is not stopped"
        assert (found != tokens, replica) == (True, "c")
        assert made.stages() == {"a": "stopped", "c": "runs"}
        freed_mib, other_mib = made.memory_mib("a"), made.memory_mib("c")
        assert loaded_mib > 500 and other_mib > 500 and freed_mib == 0
        assert asked(port, "tiny", one) == (tokens, "a"), "as before"
        assert made.stages() == {"a": "runs", "c": "stopped"} and not made.memory_mib("c")
        metrics = made.shown("/metrics")
    assert not made.memory_mib("a"), "it ends with the gateway"
    assert 'mfs_gateway_engine_changes_total{change="started",replica="a"} 2.0' in metrics
    assert made.received() == {"a": {"demo-1": 1}, "c": {}}
    print(json.dumps({"loaded_mib": round(loaded_mib), "freed_mib": freed_mib, "other_mib": round(other_mib)}))


class Sleepers(Residents):
    """Engines that sleep in place of being stopped; there is host memory for both."""

    def table(self, name: str) -> str:
        more = {"sleep": "vllm", "weights_bytes": 40, "sleeping_bytes": 20}
        return super().table(name) + "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())

    def command(self, name: str) -> list[str]:
        return ["env", "VLLM_SERVER_DEV_MODE=1", *super().command(name)]

    def asleep(self, name: str) -> bool:
        """As the engine itself says."""
        return json.loads(Front(self.ports[name]).get("/is_sleeping")) == {"is_sleeping": True}


def test_a_model_sleeps_while_another_one_runs_and_wakes(tmp_path: Path, other_model: Path) -> None:
    """By vLLM's own /sleep and /wake_up. On a CPU they pause its scheduler and clear its cache, and free no memory:
    tests/gpu/test_sleep.py has that."""
    engines, one = (Engine("a"), Engine("c", "other", other_model)), prompt(100, 3)
    config = "[residency]\nmemory_bytes = 100\nhost_memory_bytes = 80\n"
    with running(Sleepers(tmp_path, engines, config)) as made, ThreadPoolExecutor(2) as pool:
        assert isinstance(made, Sleepers)
        port = made.gateway_port
        tokens, _ = asked(port, "tiny", one)
        first = threading.Semaphore(0)
        stream = pool.submit(made.stream, 1, "busy", first)
        first.acquire()
        other, replica = pool.submit(asked, port, "other", one).result()
        assert stream.result().end == "done", "who has requests is not put to sleep"
        assert (other != tokens, replica) == (True, "c")
        assert made.stages() == {"a": "sleeps", "c": "runs"} and made.asleep("a") and not made.asleep("c")
        assert asked(port, "tiny", one) == (tokens, "a"), "as before"
        assert made.stages() == {"a": "runs", "c": "sleeps"} and not made.asleep("a") and made.asleep("c")
        assert asked(port, "other", one) == (other, "c")
        metrics = made.shown("/metrics")
        assert made.memory_mib("a") and made.memory_mib("c")
    assert not made.memory_mib("a") and not made.memory_mib("c"), "the sleeping one ends with the gateway, too"
    for name, slept, woken in (("a", 2, 1), ("c", 1, 1)):
        for change, count in (("started", 1), ("slept", slept), ("woken", woken)):
            assert f'engine_changes_total{{change="{change}",replica="{name}"}} {count}.0' in metrics
    assert "failed" not in metrics.partition("engine_changes_total{")[2].partition("# HELP")[0]


# ---- how long answers are --------------------------------------------------------------------------------------------


def learned(folder: Path) -> Path:
    """A model of requests of one role, whose answers have about 30 tokens."""
    rows = [
        {"session_id": n, "timestamp": n, "input_length": 20 + n % 30, "output_length": 25 + n % 10, "role": "writer"}
        for n in range(400)
    ]
    requests, model = folder / "recorded.jsonl", folder / "lengths.model"
    requests.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [sys.executable, "-m", "mfsd.cli.ctl", "learn", "--requests", str(requests), "--out", str(model)]
    subprocess.run(command, check=True, capture_output=True)
    return model


def test_predicted_lengths_reach_the_engine_and_its_usage_is_recorded(tmp_path: Path) -> None:
    """The decisions of the engine have what it expects of each answer."""
    pytest.importorskip("lightgbm")
    pytest.importorskip("sklearn")
    record, decisions = tmp_path / "requests.jsonl", tmp_path / "decisions"
    config = f'[predict]\nrecord = "{record}"\nmodel = "{learned(tmp_path)}"\n'
    more = (*MFS, "--additional-config", json.dumps({"mfs_serve": {"record": {"folder": str(decisions)}}}))
    wanted = [(most, stream) for most in (3, 9, 200) for stream in (False, True)]
    with running(Replicas(tmp_path, (Engine("a", more=more),), config)) as made:
        for number, (most, stream) in enumerate(wanted):
            streams = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            body = {
                "model": "tiny",
                "prompt": prompt(40 + number, number),
                "max_tokens": most,
                "ignore_eos": True,
                **streams,
            }
            headers = {**JSON, "x-session-id": f"s{number}", "x-role": "writer"}
            assert Front(made.gateway_port, START_S).post({**body, **streams}, headers)[0] == 200
        metrics = made.shown("/metrics")
    assert f'mfs_gateway_prediction_error_tokens_count{{by="model"}} {len(wanted)}.0' in metrics
    assert [row.output_length for row in read_rows(record)] == [most for most, _ in wanted]
    expected = {
        request.num_prompt_tokens: request.output_tokens
        for path in decisions.iterdir()
        for _, step in read_decisions(path)
        if isinstance(step, Step)
        for request in step.view.waiting
    }
    lengths = [expected[40 + number] for number in range(len(wanted))]
    assert lengths[:4] == [3, 3, 9, 9] and all(20 < length < 40 for length in lengths[4:]), "learned, or the limit"


# ---- three replicas, two models --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three(other_model: Path) -> Iterator[Replicas]:
    """a and b serve one model, c another one; sessions stay where they have run. The folder stays where this fails."""
    folder = Path(tempfile.mkdtemp(prefix="mfs-e2e-"))
    engines = (Engine("a", more=MFS), Engine("b", more=MFS), Engine("c", "other", other_model, MFS))
    with running(Replicas(folder, engines, "[route]\nlocality_tokens = 16\n")) as made:
        yield made
    shutil.rmtree(folder)


def test_two_models_by_their_names(three: Replicas) -> None:
    assert models(three.gateway_port) == ["other", "tiny"]
    prompts = [prompt(length, length) for length in (40, 300)]
    wanted = {name: [asked(three.ports[name], three.engines[name].served, one)[0] for one in prompts] for name in "abc"}
    assert wanted["a"] == wanted["b"] and all(one != two for one, two in zip(wanted["a"], wanted["c"], strict=True))
    for model, at in (("tiny", {"a", "b"}), ("other", {"c"})):
        found = [asked(three.gateway_port, model, one) for one in prompts]
        assert [tokens for tokens, _ in found] == wanted[min(at)]
        assert {replica for _, replica in found} <= at
    status, _, answer = Front(three.gateway_port).post({"model": "third", "prompt": [3]}, JSON)
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


def test_no_request_is_lost_while_the_policy_is_switched(three: Replicas) -> None:
    numbers, enough = itertools.count(SWITCHED_FROM), threading.Event()
    outcomes: list[Outcome] = []

    def client(at: int) -> None:
        while not enough.is_set():
            number = next(numbers)
            outcomes.append(three.stream(number, f"switched-{at}", model="other" if at % 2 else "tiny"))

    def policies() -> list[str]:
        return [engine.config.policy.value for engine in read_all([three.status_folder])[0]]

    with ThreadPoolExecutor(SESSIONS) as pool:
        clients = [pool.submit(client, at) for at in range(SESSIONS)]
        try:
            for policy in POLICIES:
                command = (sys.executable, "-m", "mfsd.cli.ctl", "serve", "policy", policy, "--folder")
                subprocess.run((*command, three.status_folder), cwd=ROOT, check=True, capture_output=True)
                until(lambda wanted=policy: policies() == [wanted] * 3, f"{policy} in all engines")
                before = len(outcomes)
                until(lambda count=before: len(outcomes) >= count + SESSIONS, "requests under it")
        finally:
            enough.set()
        for one in clients:
            one.result()
    assert not [one for one in outcomes if one.end != "done"]
    assert times_received(three, SWITCHED_FROM) == {f"demo-{one.number}": 1 for one in outcomes}
    for engine in read_all([three.status_folder])[0]:
        assert not engine.counts.get("failed_plans", 0) and engine.counts["plans"] > 0
    print(json.dumps({"policies": len(POLICIES), "requests": len(outcomes)}))


def times_received(made: Replicas, first: int) -> Counter[str]:
    """By all engines together, from that number on."""
    every = sum(made.received().values(), Counter[str]())
    return Counter({name: count for name, count in every.items() if int(name.removeprefix("demo-")) >= first})


def test_sessions_of_a_killed_replica_go_on_at_another_one(three: Replicas) -> None:
    """Last of this cluster."""
    before = {name: sum(times.values()) for name, times in three.received().items()}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(three.stream, 900, "beside", model="other")
        outcomes = with_a_death(three, "b", SESSIONS, 2 * SESSIONS)
        assert beside.result().end == "done" and beside.result().replica == "c"
    until(lambda: "b" not in three.up(), "the gateway's poll")
    homes = {one.session: one.replica for one in outcomes if one.number < SESSIONS}
    assert set(homes.values()) == {"a", "b"}, "both had some"
    assert not lost(outcomes) and {one.replica for one in outcomes if one.end == "engine_lost"} <= {"b"}
    later = [one for one in outcomes if one.number >= SESSIONS]
    assert Counter(one.session for one in later) == dict.fromkeys(homes, 2)
    assert {(one.end, one.replica) for one in later} == {("done", "a")}
    received = three.received()
    assert not twice(received)
    own = {f"demo-{one.number}" for one in outcomes}
    assert {name for times in received.values() for name in times if int(name[5:]) < 900} == own
    counts = {name: sum(times.values()) - before[name] for name, times in received.items()}
    ends = Counter(one.end for one in outcomes)
    print(json.dumps({"received": counts, "ends": ends}))

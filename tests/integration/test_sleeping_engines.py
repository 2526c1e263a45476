"""A gateway that puts its engines to sleep and wakes them, by the APIs of vLLM and SGLang."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.gateway import ROOT, GatewayProcess, gateway
from tests.support.residents import FAST, Resident, body, lives, stages
from tests.support.waiting import eventually

CHANGE = re.compile(r'engine_changes_total\{change="(\w+)",replica="(\w+)"\} (\d+)')
SHARED = """[residency]
memory_bytes = {memory}
host_memory_bytes = {host}
sleep_max_s = {most_s}
stop_max_s = 2.0
idle_s = {idle_s}
"""


def engines(folder: Path, *names: str) -> list[Resident]:
    return [Resident(folder, name) for name in names]


def config(made: list[Resident], kind: str = "vllm", **more: float) -> str:
    """Accelerator memory for one engine that runs beside two that sleep, and host memory for one."""
    tables = (one.table(memory_bytes=60, weights_bytes=40, sleeping_bytes=10, sleep=kind) for one in made)
    return "".join(tables) + SHARED.format(**{"memory": 100, "host": 40, "most_s": 60, "idle_s": 0, **more}) + FAST


def changes(front: GatewayProcess) -> Counter[str]:
    """Changes so far, as "one slept"."""
    return Counter({f"{name} {change}": int(count) for change, name, count in CHANGE.findall(front.metrics())})


def answered(front: GatewayProcess, model: str) -> None:
    status, headers, _ = front.post(body(model))
    assert (status, headers["x-mfs-replica"]) == (200, model)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_engine_sleeps_while_another_has_its_memory_and_wakes_for_its_next_request(
    tmp_path: Path, kind: str
) -> None:
    one, two = engines(tmp_path, "one", "two")
    with gateway(tmp_path, config([one, two], host=80, kind=kind)) as front:
        for model in ("one", "two"):
            answered(front, model)
        assert stages(front) == {"one": "sleeps", "two": "runs"}
        assert not front.status()["replicas"][0]["healthy"] and '"one"' in front.get("/v1/models")
        answered(front, "one")
        assert stages(front) == {"one": "runs", "two": "sleeps"}
        assert (len(one.pids()), len(two.pids()), len(one.seen())) == (1, 1, 2)
        assert one.asked_asleep() == [], "neither polls nor requests"
        assert changes(front) == {"one started": 1, "one slept": 1, "one woken": 1, "two started": 1, "two slept": 1}
    assert not any(map(lives, one.pids() + two.pids())), "sleeping ones end with the gateway, too"


def test_host_memory_for_one_is_kept_by_the_one_that_has_slept(tmp_path: Path) -> None:
    one, two = engines(tmp_path, "one", "two")
    with gateway(tmp_path, config([one, two])) as front:
        for model in ("one", "two", "one"):
            answered(front, model)
        assert stages(front) == {"one": "runs", "two": "stopped"}
        answered(front, "two")
        assert stages(front) == {"one": "sleeps", "two": "runs"}
        assert (len(one.pids()), len(two.pids())) == (1, 2)


def test_the_sleeping_one_used_the_longest_ago_stops_where_host_memory_is_full(tmp_path: Path) -> None:
    made = engines(tmp_path, "one", "two", "three")
    with gateway(tmp_path, config(made)) as front:
        for model in ("one", "two", "three"):
            answered(front, model)
        assert stages(front) == {"one": "stopped", "two": "sleeps", "three": "runs"}
        answered(front, "one")
        assert stages(front) == {"one": "runs", "two": "stopped", "three": "sleeps"}


def test_an_engine_without_the_setting_stops(tmp_path: Path) -> None:
    one, two = engines(tmp_path, "one", "two")
    text = one.table(memory_bytes=60) + config([two])
    with gateway(tmp_path, text) as front:
        for model in ("one", "two", "one"):
            answered(front, model)
        assert stages(front) == {"one": "runs", "two": "sleeps"} and len(one.pids()) == 2


def test_an_engine_that_does_not_wake_starts_anew_and_the_request_runs_once(tmp_path: Path) -> None:
    one, two = engines(tmp_path, "one", "two")
    with gateway(tmp_path, config([one, two])) as front:
        for model in ("one", "two"):
            answered(front, model)
        one.fail(True)
        answered(front, "one")
        assert len(one.pids()) == 2 and not lives(one.pids()[0])
        assert len(one.seen()) == 1, "of the new process"
        assert changes(front)["one failed"] == 1 and "wake: POST /wake_up answers 500" in front.log.read_text()


@pytest.mark.parametrize(
    ("most_s", "problem"), [(0.3, "no answer within 0.3 s"), (60, "level=1&mode=wait answers 500")]
)
def test_an_engine_that_does_not_fall_asleep_stops(tmp_path: Path, most_s: float, problem: str) -> None:
    one, two = engines(tmp_path, "one", "two")
    with gateway(tmp_path, config([one, two], most_s=most_s)) as front:
        answered(front, "one")
        one.hang() if most_s < 1 else one.fail(True)
        answered(front, "two")
        assert stages(front) == {"one": "stopped", "two": "runs"} and not lives(one.pids()[0])
        assert problem in front.log.read_text()
        answered(front, "one")
        assert len(one.pids()) == 2


def test_an_engine_of_sglang_that_would_forget_its_weights_is_not_put_to_sleep(tmp_path: Path) -> None:
    one, two = engines(tmp_path, "one", "two")
    one.command[-1] += " forgetful"
    with gateway(tmp_path, config([one, two], kind="sglang")) as front:
        for model in ("one", "two"):
            answered(front, model)
        assert stages(front) == {"one": "stopped", "two": "runs"}
        assert "start SGLang with --enable-weights-cpu-backup" in front.log.read_text()


def test_an_engine_with_requests_is_not_put_to_sleep(tmp_path: Path) -> None:
    one, two = engines(tmp_path, "one", "two")
    with gateway(tmp_path, config([one, two])) as front, ThreadPoolExecutor(2) as pool:
        first = pool.submit(front.post, body("one", hold=0))
        eventually(lambda: one.pids() and one.answers() and one.seen(), "a request at the first", pause_s=0.02)
        second = pool.submit(front.post, body("two"))
        eventually(lambda: "engine-held" in front.log.read_text(), "the second has waited", pause_s=0.02)
        assert stages(front) == {"one": "runs", "two": "stopped"}
        one.release()
        assert [answer.result()[0] for answer in (first, second)] == [200, 200]
        assert stages(front) == {"one": "sleeps", "two": "runs"}


def test_an_engine_that_dies_asleep_starts_again(tmp_path: Path) -> None:
    one, two = engines(tmp_path, "one", "two")
    with gateway(tmp_path, config([one, two])) as front:
        for model in ("one", "two"):
            answered(front, model)
        os.kill(one.pids()[0], signal.SIGKILL)
        eventually(lambda: stages(front)["one"] == "stopped", "its end is seen", pause_s=0.02)
        answered(front, "one")
        assert changes(front)["one ended"] == 1 and stages(front) == {"one": "runs", "two": "sleeps"}


def test_an_idle_engine_sleeps_and_the_next_one_ends_it_where_host_memory_is_full(tmp_path: Path) -> None:
    made = engines(tmp_path, "one", "two")
    with gateway(tmp_path, config(made, memory=200, idle_s=0.2)) as front:
        answered(front, "one")
        eventually(lambda: changes(front)["one slept"] == 1, "it sleeps", pause_s=0.02)
        answered(front, "one")
        eventually(lambda: changes(front)["one slept"] == 2, "it sleeps again", pause_s=0.02)
        answered(front, "two")
        eventually(lambda: stages(front) == {"one": "stopped", "two": "sleeps"}, "the other one sleeps", pause_s=0.02)
        assert len(one_pids := made[0].pids()) == 1 and not lives(one_pids[0])


def test_an_engine_of_another_program_is_not_put_to_sleep(tmp_path: Path) -> None:
    one, two = engines(tmp_path, "one", "two")
    with contextlib.ExitStack() as ends:
        before = subprocess.Popen(one.command, cwd=ROOT)
        ends.callback(before.wait)
        ends.callback(before.kill)
        eventually(one.answers, "the engine of another program")
        front = ends.enter_context(gateway(tmp_path, config([one, two], memory=200, idle_s=0.1)))
        answered(front, "one")
        answered(front, "two")
        eventually(lambda: stages(front) == {"one": "runs", "two": "sleeps"}, "its own one sleeps", pause_s=0.02)
        assert one.asked_asleep() == [] and changes(front)["one slept"] == 0


def test_a_gateway_ends_while_an_engine_falls_asleep(tmp_path: Path) -> None:
    one, two = engines(tmp_path, "one", "two")
    with gateway(tmp_path, config([one, two])) as front:
        answered(front, "one")
        one.hang()
        with contextlib.closing(front.begin(body("two"))):
            eventually(lambda: stages(front)["one"] == "sleeps", "it is to sleep", pause_s=0.02)
            front.process.send_signal(signal.SIGTERM)
            front.process.send_signal(signal.SIGINT)
        assert front.process.wait(60) == 0 and not lives(one.pids()[0]) and not two.pids()
        assert "Traceback" not in front.log.read_text()

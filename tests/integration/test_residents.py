"""A gateway that starts and stops its engines itself: for memory, for idleness, and when they end or do not start."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.gateway import ROOT, gateway
from tests.support.openai_engine import engines
from tests.support.residents import FAST, Resident, body, lives, stages
from tests.support.waiting import eventually


def test_an_engine_gives_its_memory_to_another_one_once_it_has_no_requests(tmp_path: Path) -> None:
    one, two = Resident(tmp_path, "one"), Resident(tmp_path, "two")
    config = one.table(memory_bytes=60) + two.table(memory_bytes=60) + "[residency]\nmemory_bytes = 100\n" + FAST
    with gateway(tmp_path, config) as front, ThreadPoolExecutor(2) as pool:
        assert stages(front) == {"one": "stopped", "two": "stopped"} and not one.pids()
        first = pool.submit(front.post, body("one", hold=0))
        eventually(lambda: one.pids() and one.answers() and one.seen(), "a request at the first", pause_s=0.02)
        second = pool.submit(front.post, body("two"))
        eventually(lambda: front.status()["queue"] == 1, "one that waits for memory")
        assert front.post(body("one"))[0] == 200 and not two.pids(), "who has requests stays"
        one.release()
        assert [answer.result()[0] for answer in (first, second)] == [200, 200]
        assert stages(front) == {"one": "stopped", "two": "runs"}
        assert [lives(pid) for pid in one.pids() + two.pids()] == [False, True]
        assert front.post(body("one"))[1]["x-mfs-replica"] == "one"
        assert [lives(pid) for pid in one.pids() + two.pids()] == [False, True, False]
        assert front.post(body("three"))[0] == 404
    assert not any(map(lives, one.pids())), "they end with the gateway"


def test_an_engine_in_use_is_given_no_more_calls_once_another_one_has_waited_for_its_memory(tmp_path: Path) -> None:
    one, two = Resident(tmp_path, "one"), Resident(tmp_path, "two")
    config = one.table(memory_bytes=60) + two.table(memory_bytes=60) + "[residency]\nmemory_bytes = 100\n" + FAST
    with gateway(tmp_path, config) as front, ThreadPoolExecutor(3) as pool:
        first = pool.submit(front.post, body("one", hold=0))
        eventually(lambda: one.pids() and one.answers() and one.seen(), "a request at the first", pause_s=0.02)
        second = pool.submit(front.post, body("two"))
        eventually(lambda: "engine-held" in front.log.read_text(), "the second has waited", pause_s=0.02)
        third = pool.submit(front.post, body("one"))
        eventually(lambda: front.status()["queue"] == 2, "one that waits for its turn")
        assert len(one.seen()) == 1 and not two.pids()
        one.release()
        assert [answer.result()[0] for answer in (first, second, third)] == [200] * 3
        assert (len(one.pids()), len(two.pids())) == (2, 1), "each had its turn, and each start served a call"


def test_an_engine_waits_no_more_once_who_wanted_it_has_left(tmp_path: Path) -> None:
    one, two = Resident(tmp_path, "one"), Resident(tmp_path, "two")
    config = one.table(memory_bytes=60) + two.table(memory_bytes=60) + "[residency]\nmemory_bytes = 100\n" + FAST
    with gateway(tmp_path, config) as front, ThreadPoolExecutor(2) as pool:
        first = pool.submit(front.post, body("one", hold=0))
        eventually(lambda: one.pids() and one.answers() and one.seen(), "a request at the first", pause_s=0.02)
        with contextlib.closing(front.begin(body("two"))):
            eventually(lambda: "engine-held" in front.log.read_text(), "the second has waited", pause_s=0.02)
            third = pool.submit(front.post, body("one"))
            eventually(lambda: front.status()["queue"] == 2, "one that waits for its turn")
        assert third.result()[0] == 200 and not two.pids()
        one.release()
        assert first.result()[0] == 200 and len(one.pids()) == 1


def test_an_idle_engine_stops_and_starts_when_it_is_wanted(tmp_path: Path) -> None:
    one = Resident(tmp_path, "one", before="sleep 1000 &")
    with gateway(tmp_path, one.table() + "[residency]\nidle_s = 0.2\n" + FAST) as front:
        for times in range(1, 4):
            assert front.post(body("one"))[0] == 200
            eventually(lambda: stages(front) == {"one": "stopped"}, "the stop", pause_s=0.02)
            assert len(one.pids()) == times
        for pid in one.pids():
            assert not lives(pid) and not of_session(pid), "nor what it had started"
        assert 'mfs_gateway_engine_changes_total{change="stopped",replica="one"} 3.0' in front.metrics()


def of_session(session: int) -> list[str]:
    """Processes that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(path.parent.name)
    return found


def test_an_engine_that_was_killed_starts_again_for_the_next_request(tmp_path: Path) -> None:
    one = Resident(tmp_path, "one")
    with gateway(tmp_path, one.table() + FAST) as front, ThreadPoolExecutor(1) as pool:
        running = pool.submit(front.post, body("one", hold=0))
        eventually(lambda: one.pids() and one.answers() and one.seen(), "a request", pause_s=0.02)
        os.kill(one.pids()[0], signal.SIGKILL)
        status, _, answer = running.result()
        assert (status, answer["error"]["code"]) == (502, "engine_lost"), "it may have run"
        eventually(lambda: stages(front) == {"one": "stopped"}, "its end is seen", pause_s=0.02)
        assert front.post(body("one"))[0] == 200
        assert len(one.seen()) == 1 and len(one.pids()) == 2


def test_an_engine_that_does_not_start_is_an_error_at_once(tmp_path: Path) -> None:
    one, two, three = Resident(tmp_path, "one"), Resident(tmp_path, "two"), Resident(tmp_path, "three")
    one.command, two.command, three.command = ["false"], ["/nowhere/engine"], ["sleep", "1000"]
    config = "".join(engine.table() for engine in (one, two, three)) + "[residency]\nstart_max_s = 0.2\n" + FAST
    with gateway(tmp_path, config) as front:
        for engine in (one, two, three):
            status, headers, answer = front.post(body(engine.model))
            assert (status, answer["error"]["code"]) == (503, "no_replica") and "retry-after" in headers
            assert front.post(body(engine.model))[0] == 503
            started = f'mfs_gateway_engine_changes_total{{change="failed",replica="{engine.model}"}} 1.0'
            assert started in front.metrics(), "the second request did not try again"


def test_an_engine_that_hears_nothing_is_killed(tmp_path: Path) -> None:
    one = Resident(tmp_path, "one")
    one.command = ["sh", "-c", f"trap '' TERM; echo $$ >>{one.pids_file}; while :; do sleep 0.1; done"]
    with (
        gateway(tmp_path, one.table() + "[residency]\nstop_max_s = 0.2\n" + FAST) as front,
        contextlib.closing(front.begin(body("one"))),
    ):
        eventually(one.pids, "its process")
    assert not lives(one.pids()[0])


def test_a_second_interrupt_ends_requests_at_once_and_leaves_no_engine(tmp_path: Path) -> None:
    one = Resident(tmp_path, "one")
    with (
        gateway(tmp_path, one.table() + "[residency]\nstop_max_s = 1\n" + FAST) as front,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(front.post, body("one", hold=0))
        eventually(lambda: one.pids() and one.answers() and one.seen(), "a request", pause_s=0.02)
        front.process.send_signal(signal.SIGINT)
        eventually(lambda: not listens(front.port), "it takes no more", pause_s=0.02)
        front.process.send_signal(signal.SIGINT)
        status, _, answer = running.result()
        assert (status, answer["error"]["code"]) == (503, "gateway_stopped")
        assert front.process.wait(60) == 0 and not lives(one.pids()[0])
        assert "Traceback" not in front.log.read_text()


def listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_an_engine_that_was_there_before_is_left_alone(tmp_path: Path) -> None:
    with engines(1) as (engine,):
        one = Resident(tmp_path, "one")
        one.url = engine.url
        with gateway(tmp_path, one.table() + "[residency]\nidle_s = 0.1\n" + FAST) as front:
            assert front.post(body("one"))[0] == 200 and stages(front) == {"one": "runs"}
        assert engine.answers() and not one.pids()


def test_an_engine_that_was_there_before_and_died_starts_again_and_its_memory_is_free(tmp_path: Path) -> None:
    one, two = Resident(tmp_path, "one"), Resident(tmp_path, "two")
    config = one.table(memory_bytes=60) + two.table(memory_bytes=60) + "[residency]\nmemory_bytes = 100\n" + FAST
    with contextlib.ExitStack() as ends:
        before = subprocess.Popen(one.command, cwd=ROOT)
        ends.callback(before.wait)
        ends.callback(before.kill)
        eventually(one.answers, "the engine of another program")
        front = ends.enter_context(gateway(tmp_path, config))
        assert stages(front) == {"one": "runs", "two": "stopped"}
        before.send_signal(signal.SIGSTOP)
        eventually(lambda: not front.status()["replicas"][0]["healthy"], "it is silent")
        assert stages(front)["one"] == "runs", "it still has its memory"
        before.kill()
        eventually(lambda: stages(front)["one"] == "stopped", "its end is seen")
        assert [front.post(body(model))[0] for model in ("two", "one")] == [200, 200]
        assert (len(one.pids()), len(two.pids())) == (2, 1)


def test_a_silent_engine_that_was_there_before_is_not_started_a_second_time(tmp_path: Path) -> None:
    one = Resident(tmp_path, "one")
    with contextlib.ExitStack() as ends:
        before = subprocess.Popen(one.command, cwd=ROOT)
        ends.callback(before.wait)
        ends.callback(before.kill)
        eventually(one.answers, "the engine of another program")
        before.send_signal(signal.SIGSTOP)
        front = ends.enter_context(gateway(tmp_path, one.table() + FAST))
        assert stages(front) == {"one": "runs"}, "it has its memory and its port"
        assert front.post(body("one"))[0] == 503
        before.send_signal(signal.SIGCONT)
        eventually(lambda: front.status()["replicas"][0]["healthy"], "it answers again")
        assert front.post(body("one"))[0] == 200 and len(one.pids()) == 1


def test_memory_of_all_engines_that_were_there_before_is_taken(tmp_path: Path) -> None:
    """Also where it is more than there should be: nothing is started beside them until one is gone."""
    one, two, three = (Resident(tmp_path, name) for name in ("one", "two", "three"))
    config = "".join(engine.table(memory_bytes=60) for engine in (one, two)) + three.table(memory_bytes=40)
    config += "[residency]\nmemory_bytes = 100\n" + FAST
    with contextlib.ExitStack() as ends:
        before = [subprocess.Popen(engine.command, cwd=ROOT) for engine in (one, two)]
        for process in before:
            ends.callback(process.wait)
            ends.callback(process.kill)
        eventually(lambda: one.answers() and two.answers(), "the engines of another program")
        front = ends.enter_context(gateway(tmp_path, config))
        pool = ends.enter_context(ThreadPoolExecutor(1))
        assert stages(front) == {"one": "runs", "two": "runs", "three": "stopped"}
        running = pool.submit(front.post, body("three"))
        eventually(lambda: front.status()["queue"] == 1 or three.pids(), "it waits")
        assert stages(front)["three"] == "stopped" and not three.pids()
        before[0].kill()
        assert running.result()[0] == 200


def test_engines_end_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    """They would keep their memory, and the gateway that comes after would take them for another program's."""
    one = Resident(tmp_path, "one")
    with contextlib.ExitStack() as ends:
        front = ends.enter_context(gateway(tmp_path, one.table() + FAST))
        assert front.post(body("one"))[0] == 200
        front.process.kill()
        front.process.wait()
        eventually(lambda: not one.answers(), "it ends, too", pause_s=0.02)

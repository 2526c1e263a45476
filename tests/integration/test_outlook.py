"""The outlook page between real processes: what one announces all see, and what no daemon knows is unknown."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mfsd.client import Session, Stage
from mooncake_adapter.slo import Defaults
from mooncake_adapter.vllm.announce import Announcer, Source
from mooncake_adapter.vllm.requests import Requests
from mooncake_adapter.vllm.token_bytes import TokenBytes
from mooncake_adapter.warn_once import WarnOnce
from tests.support.cluster import ask_status
from tests.support.coordinator import Running, running_coordinator
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.waiting import eventually
from tests.unit.adapters.test_reuse import request

MB = 10**6
OWNER = "10.7.0.9"
FAR = f"{'00' * 10}ffff0a070009 True"
CONFIG = """
[nic."slow"]
rate = "8mbit"
address = "10.7.0.1"
[arbiter]
window_min = "1gib"
max_hold = "5s"
[cluster]
node = "{node}"
unit = "prefill-1"
ttl = "3s"
"""
FAST = """
[nic."slow"]
rate = "400gbit"
address = "10.7.0.1"
[arbiter]
window_min = "1mib"
max_hold = "5s"
"""


@pytest.fixture
def coordinator() -> Iterator[Running]:
    with running_coordinator() as running:
        yield running


def fetching(size_bytes: int) -> list[dict[str, object]]:
    return [{"stage": Stage.REUSE, "peer": OWNER, "size_bytes": size_bytes, "incoming": True}]


def test_what_one_process_has_waiting_delays_the_fetch_of_another(folder: Path) -> None:
    with (
        Daemon(folder, CONFIG.format(node="here")) as daemon,
        Engine(daemon.socket, "slow", "worker") as worker,
        Engine(daemon.socket, "slow", "scheduler") as scheduler,
    ):
        alone_ns = eventually(lambda: scheduler("fetch_ns", size_bytes=MB, deadline_ns=1), "the page")
        assert alone_ns == 10**9  # at 1 MB/s
        for task, size in (("flies", 900 * MB), ("waits", 800 * MB)):  # more than any credit, minutes of the NIC
            worker("submit", task=task, size_bytes=size, stage=Stage.REUSE, incoming=True)
        worker("submit", task="behind", size_bytes=600 * MB, stage=Stage.BACKGROUND, incoming=True)
        eventually(lambda: scheduler("outlook")["in"]["waiting_bytes"] == [0, 800 * MB, 0, 600 * MB], "the backlog")
        assert scheduler("outlook")["in"]["in_flight_bytes"] == 900 * MB
        assert scheduler("outlook")["out"]["waiting_bytes"] == [0, 0, 0, 0]
        assert scheduler("fetch_ns", size_bytes=MB, deadline_ns=1) == 1701 * 10**9
        assert scheduler("fetch_ns", size_bytes=MB) == 2301 * 10**9  # nothing waits for it: behind the background, too
        worker("complete", task="flies")
        eventually(lambda: scheduler("fetch_ns", size_bytes=MB, deadline_ns=1) == 801 * 10**9, "one is over")


def test_a_request_that_another_process_announced_is_seen_pruned(coordinator: Running, folder: Path) -> None:
    process, address = coordinator
    with (
        Daemon(folder, CONFIG.format(node="here"), "--coordinator-address", address) as daemon,
        Engine(daemon.socket, "slow", "worker") as worker,
        Engine(daemon.socket, "slow", "scheduler") as scheduler,
    ):
        # Both want 1 MB/s: 400 s of it within 450 s, and 300 s within 600 s. One must go, and the larger one goes.
        for batch, request, due_s, size in ((90, 9, 450, 400), (10, 1, 600, 300)):
            flows = [{"stage": Stage.P2D, "peer": OWNER, "size_bytes": size * MB}]
            due_ns = time.monotonic_ns() + due_s * 10**9
            worker(
                "batch",
                batch_id=batch,
                layers=4,
                requests=[{"request_id": request, "deadline_ns": due_ns, "flows": flows}],
            )
        eventually(lambda: scheduler("pruned", request_id=9), "the scheduler sees it")
        assert not scheduler("pruned", request_id=1)
        process.kill()
        eventually(lambda: not scheduler("pruned", request_id=9), "without a coordinator no request is pruned")


def read_slowly(engine: Engine) -> None:
    """As fast as two processes answer each other, a small share of the port's rate: sixteenths of the window, four
    under way at once."""
    for n in range(4 + 64):
        if n >= 4:
            engine("complete", task=f"read-{n - 4}")
        if n < 64:
            engine("submit", task=f"read-{n}", size_bytes=5 << 17, stage=Stage.REUSE, incoming=True, peer=OWNER)
            engine("wait", task=f"read-{n}")


def test_a_slow_read_of_long_ago_says_nothing_of_the_next(folder: Path) -> None:
    """Without a coordinator a forecast is bytes over the rate of the last reads. Who computes again because of it sends
    none after, so the rate held for ever."""
    with Daemon(folder, FAST) as daemon, Engine(daemon.socket, "slow", "engine") as engine:
        engine("watch", peers=[OWNER])

        def forecast_ns() -> int | None:
            found: int | None = engine("fetch_ns", size_bytes=MB, peer=OWNER, deadline_ns=1)
            return found

        alone_ns = eventually(forecast_ns, "the page")

        def slow() -> bool:
            read_slowly(engine)
            return (forecast_ns() or 0) > 5 * alone_ns

        eventually(slow, "the reads were slow")
        eventually(lambda: forecast_ns() == alone_ns, "after a pause its own port alone says how long it takes")


@contextmanager
def engines_of_two_nodes(folder: Path, address: str) -> Iterator[tuple[Daemon, Engine, Engine]]:
    """This node's daemon, an engine of it that asks, and one of another node that owes."""
    other = folder / "other"
    other.mkdir()
    there_config = CONFIG.format(node="there").replace("10.7.0.1", "10.7.0.2")
    with (
        Daemon(folder, CONFIG.format(node="here"), "--coordinator-address", address) as here,
        Daemon(other, there_config, "--coordinator-address", address) as there,
        Engine(here.socket, "slow", "here") as asks,
        Engine(there.socket, "slow", "there") as owes,
    ):
        yield here, asks, owes


def test_what_waits_elsewhere_is_owed_at_the_owner_until_the_coordinator_is_gone(
    coordinator: Running, folder: Path
) -> None:
    process, address = coordinator
    with engines_of_two_nodes(folder, address) as (_, asks, owes):
        asks("waiting", requests=[{"request_id": 1, "rank": 1, "flows": fetching(MB)}])
        small_ns = eventually(lambda: asks("outlook")["fars"].get(FAR), "its own load at the owner")
        owes("waiting", requests=[{"request_id": 2, "rank": 1, "flows": fetching(20_000 * MB)}])
        eventually(lambda: asks("outlook")["fars"][FAR] > 10**9 + small_ns, "and the other node's")
        long_ns = asks("fetch_ns", size_bytes=MB, peer=OWNER, deadline_ns=1)
        assert long_ns > 10**9 + small_ns
        own_ns = asks("fetch_ns", size_bytes=MB, peer=OWNER, deadline_ns=1, announced_bytes=20_000 * MB)
        assert own_ns == 10**9, "if those bytes are its own, they do not go before it"
        far_ns = asks("fetch_ns", size_bytes=MB, peer=OWNER, deadline_ns=1, owner_bytes=20_000 * MB)
        assert far_ns > long_ns + 10**9, "what other NICs fetch with it goes through the owner's port"
        owes("waiting", requests=[])
        eventually(lambda: asks("outlook")["fars"][FAR] == small_ns, "the other has left the queue")
        owes("waiting", requests=[{"request_id": 2, "rank": 1, "flows": fetching(20_000 * MB)}])
        eventually(lambda: asks("outlook")["fars"][FAR] > small_ns, "and is back")
        owes.kill()
        eventually(lambda: asks("outlook")["fars"][FAR] == small_ns, "its program is gone")
        process.kill()
        eventually(lambda: asks("outlook")["fars"].get(FAR, 0) is None, "nothing is known of the far port")
        assert asks("fetch_ns", size_bytes=MB, peer=OWNER, deadline_ns=1) == 10**9  # of its own port alone


def test_what_queues_for_a_decode_instance_is_owed_at_its_port_until_it_leaves(
    coordinator: Running, folder: Path
) -> None:
    """The adapter's own announcer at a prefill node, and another node that sends to the same decode instance."""
    _, address = coordinator
    requests, far = Requests(Defaults(), "tiny", WarnOnce()), f"{'00' * 10}ffff0a070009 False"
    with engines_of_two_nodes(folder, address) as (here, asks, owes):
        pushed = [{"stage": Stage.P2D, "peer": OWNER, "size_bytes": MB}]
        asks("waiting", requests=[{"request_id": 1, "rank": 1, "flows": pushed}])
        small_ns = eventually(lambda: asks("outlook")["fars"].get(far), "its own push")
        with Session.open(socket_path=str(here.socket), process="scheduler") as session:
            source = Source(TokenBytes(10**6, 8 * 10**6), session.nic("slow"))
            announcer = Announcer(session, requests, source, WarnOnce())
            for name, words in (("named", {"decode_nic": OWNER}), ("unnamed", {})):
                requests.arrived(request(name, 200, parameters={"do_remote_decode": True, **words}))
            announcer.tick()
            eventually(lambda: asks("outlook")["fars"][far] == 201 * small_ns, "what queues: of the two one is named")
            assert [one["fetches"] for one in queue(here, "--json")["requests"] if one["request_id"] != 1] == [[], []]
            owes("watch", peers=["10.7.0.1"])
            own = f"{'00' * 10}ffff0a070001 True"
            eventually(lambda: (owes("outlook")["fars"].get(own) or 0) > 400 * 10**9, "this node sends both")
            requests.ended("named")
            announcer.withdraw()
            eventually(lambda: asks("outlook")["fars"][far] == small_ns, "it was aborted")


def test_an_owner_that_is_watched_is_known_before_anything_here_fetches_from_it(
    coordinator: Running, folder: Path
) -> None:
    """Else the first request of an idle engine would be decided on without what others read from there."""
    _, address = coordinator
    with engines_of_two_nodes(folder, address) as (here, asks, owes):
        owes("waiting", requests=[{"request_id": 2, "rank": 1, "flows": fetching(20_000 * MB)}])
        alone_ns = eventually(lambda: asks("fetch_ns", size_bytes=MB, peer=OWNER, deadline_ns=1), "the page")
        assert alone_ns == 10**9 and asks("outlook")["fars"] == {}
        asks("watch", peers=[OWNER])
        eventually(lambda: (asks("outlook")["fars"].get(FAR) or 0) > 10**9, "what the other node reads")
        assert asks("fetch_ns", size_bytes=MB, peer=OWNER, deadline_ns=1) > 10**9
        asks("waiting", requests=[{"request_id": 1, "rank": 1, "flows": fetching(MB)}])
        shown = eventually(lambda: queue(here, "--json")["requests"], "what queues")
        assert [one["request_id"] for one in shown] == [1], "what watches is no request"
        asks("waiting", requests=[])
        eventually(lambda: queue(here, "--json")["requests"] == [], "the queue is empty")
        assert asks("outlook")["fars"][FAR] > 10**9, "and the owner is still known"
        asks("watch", peers=[])
        eventually(lambda: asks("outlook")["fars"] == {}, "nothing is watched")


def test_a_relegated_request_is_a_pruned_one_and_spends_the_drop_budget(coordinator: Running, folder: Path) -> None:
    _, address = coordinator
    with (
        Daemon(folder, CONFIG.format(node="here"), "--coordinator-address", address) as daemon,
        Engine(daemon.socket, "slow", "worker") as worker,
        Engine(daemon.socket, "slow", "scheduler") as scheduler,
    ):
        scheduler("waiting", requests=[{"request_id": 5, "relegated": True, "flows": fetching(MB)}])
        eventually(lambda: worker("pruned", request_id=5), "one that queues")
        flows = [{"stage": Stage.P2D, "peer": OWNER, "size_bytes": MB}]
        due_ns = time.monotonic_ns() + 3600 * 10**9
        request = {"request_id": 9, "deadline_ns": due_ns, "flows": flows, "relegated": True}
        worker("batch", batch_id=90, layers=4, requests=[request])
        eventually(lambda: scheduler("pruned", request_id=9), "one that runs")
        eventually(lambda: [p.request_id for p in ask_status(address).pruned] == [9], "the coordinator's set has it")
        assert ask_status(address).drop_budget == 0
        scheduler("waiting", requests=[])
        eventually(lambda: not worker("pruned", request_id=5), "it has left")


def test_a_dead_daemon_leaves_nothing_that_is_believed(folder: Path) -> None:
    with (
        Daemon(folder, CONFIG.format(node="here")) as daemon,
        Engine(daemon.socket, "slow", "engine") as engine,
    ):
        eventually(lambda: engine("outlook"), "the page")
        daemon.process.kill()
        eventually(lambda: engine("outlook") is None, "the page is stale")
        assert engine("fetch_ns", size_bytes=MB) is None


def queue(daemon: Daemon, *options: str) -> Any:
    command = (sys.executable, "-m", "mfsd.cli.ctl", "--socket", str(daemon.socket), "serve", "queue", *options)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout) if "--json" in options else done.stdout


def test_mfsctl_shows_what_queues_and_a_daemon_that_starts_again_learns_it(folder: Path) -> None:
    """The adapter's own announcer, at a real daemon: nothing is announced twice by hand."""
    requests, config = Requests(Defaults(), "tiny", WarnOnce()), CONFIG.format(node="here")
    with Daemon(folder, config) as first, Session.open(socket_path=str(first.socket), process="scheduler") as session:
        announcer = Announcer(
            session, requests, Source(TokenBytes(1000, 1000), session.nic("slow"), (OWNER,)), WarnOnce()
        )
        for name in "ab":
            requests.arrived(request(name, ttft_slo_ms=3_600_000))
        requests.found("b", 900)
        announcer.ordered("ba")
        announcer.tick()
        shown = eventually(lambda: queue(first, "--json")["requests"], "what queues")
        numbers = [requests.waiting[name].info.number for name in "ba"]
        assert [one["request_id"] for one in shown] == numbers
        assert shown[0]["fetches"] == [{"owner": OWNER, "nic": "slow", "size_bytes": 900_000}]
        assert [one["tokens_left"] for one in shown] == [100, 1000] and shown[0]["process"] == "scheduler"
        assert 0 < shown[0]["needed_in_s"] <= shown[0]["deadline_left_s"] <= 3600
        assert OWNER in (table := queue(first)) and str(numbers[0]) in table
        assert "1 more; see --limit" in queue(first, "--limit", "1")
        first.process.kill()
        first.process.wait(60)
        with Daemon(folder, config) as second:
            # an engine ticks with each step: one tick may come while the session still holds the first daemon for alive
            again = eventually(lambda: announcer.tick() or queue(second, "--json")["requests"], "announced again")
            assert session.scheduled and [one["request_id"] for one in again] == numbers
            requests.ended("b")
            announcer.withdraw()
            left = eventually(lambda: len(queue(second, "--json")["requests"]) == 1, "withdrawn")
            assert left
            requests.ended("a")
            announcer.withdraw()
            eventually(lambda: "No engine" in queue(second), "nothing queues")

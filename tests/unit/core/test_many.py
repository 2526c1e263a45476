"""More clients than a turn polls: one that is left out rings, and nothing is lost (`arbiter_many.c`)."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable

from mfsd._native import Client, Stage
from mfsd.transfer import Transfer
from tests.support.arbiter import Server
from tests.support.native import CorePrograms, core

CLIENTS, THREADS, ASKS = 48, 6, 60
PATIENCE_NS = 30 * 10**9


def test_which_clients_are_polled_and_which_ring(core_programs: CorePrograms) -> None:
    sources = core("arbiter/arbiter.c", "arbiter/command.c")  # less what the program includes
    program = core_programs.build("arbiter_many", "address", sources)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_no_client_waits_for_a_bell_that_did_not_ring(serve: Callable[..., Server]) -> None:
    """No heartbeat helps. Each client is silent for longer than it is polled, now and then."""
    server = serve(heartbeat_ns=900 * 10**9)
    clients = [server.attach() for _ in range(CLIENTS)]
    for client in clients:
        client.nic("rdma0")
    failed: list[object] = []

    def asks(mine: list[Client], seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(ASKS):
            client = rng.choice(mine)
            permit = client.ask(Transfer(1, Stage.P2D), 0, None, 0, PATIENCE_NS, 6)
            if permit is None:
                failed.append(client)
                return
            permit.complete()
            time.sleep(rng.choice([0, 0.0005, 0.001, 0.0015]))  # the pauses are the load

    threads = [threading.Thread(target=asks, args=(clients[n::THREADS], n)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sum(server.arbiter.client_stats(c.client_id)["submits"] for c in clients) == THREADS * ASKS

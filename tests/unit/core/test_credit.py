"""Credit: where nothing waits a task goes without asking, in the class and with the accounts that asking would give."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from mfsd._native import LAYOUT, Client, Mode, Permit, Policy, RequestInfo, Stage, Variant, Verdict
from mfsd.transfer import Transfer
from tests.support.arbiter import Server

if TYPE_CHECKING:
    from mfsd._native import ClientStats  # only in the stub

Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]

SLOW = 1
"""Byte a second: what is in flight is not overdue, which would end credit, while this test does not get its turn."""
WINDOW_BYTES = 1_000_000
FOREVER_NS = 2**63
AT_REST = 2
"""enum mfs_asleep"""


def ask(client: Client, size_bytes: int = 1000, stage: Stage = Stage.P2D, nic: int = 0, **fields: Any) -> Permit:
    permit = client.ask(Transfer(size_bytes, stage, **fields), nic, fields.get("batch"), 0, FOREVER_NS, 6)
    assert permit is not None
    return permit


@pytest.fixture
def lent(serve: Callable[..., Server], eventually: Eventually) -> Callable[..., tuple[Server, Client]]:
    """A client that has credit for NIC 0, with an arbiter that is at rest."""

    def make(**options: object) -> tuple[Server, Client]:
        server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES, quiet_ns=1, **options)
        client = server.attach()
        client.nic("rdma0", 0, SLOW)
        eventually(lambda: on_credit(server, client), "credit")
        return server, client

    return make


def taken(server: Server, client: Client) -> int:
    return int(server.arbiter.client_stats(client.client_id)["taken"])


def settled(server: Server, client: Client, completes: int, eventually: Eventually) -> ClientStats:
    """The client's counts when so many tasks have been read to their ends."""

    def completed() -> ClientStats | None:
        stats = server.arbiter.client_stats(client.client_id)
        return stats if stats["completes"] == completes else None

    stats: ClientStats = eventually(completed, f"{completes} completions")
    return stats


def on_credit(server: Server, client: Client, **words: object) -> bool:
    before = taken(server, client)
    ask(client, 1, **words).complete()  # type: ignore[arg-type]
    return taken(server, client) > before


def test_a_task_larger_than_the_credit_goes_on_it(
    lent: Callable[..., tuple[Server, Client]], eventually: Eventually
) -> None:
    server, client = lent()
    before = taken(server, client)
    ask(client, 2 * WINDOW_BYTES).complete()
    eventually(lambda: taken(server, client) == before + 1, "the report of the task, which did not ask")


def test_no_thread_is_woken_and_all_is_sent(lent: Callable[..., tuple[Server, Client]], eventually: Eventually) -> None:
    server, client = lent()
    before = server.arbiter.client_stats(client.client_id)
    bytes_before = sum(server.arbiter.nic_stats(0)["granted_bytes"])
    for n in range(200):
        ask(client, 100 + n).complete()
    after = settled(server, client, before["completes"] + 200, eventually)
    assert after["taken"] - before["taken"] == after["grants"] - before["grants"] == 200
    assert sum(server.arbiter.nic_stats(0)["granted_bytes"]) - bytes_before == sum(range(100, 300))
    assert server.arbiter.nic_stats(0)["in_flight_bytes"] == [0, 0]
    assert after["posted_bytes"] == after["completed_bytes"]


def test_an_arbiter_at_rest_sleeps_on(lent: Callable[..., tuple[Server, Client]], eventually: Eventually) -> None:
    """Its doorbell is silent for what goes on credit: all that wakes it is the question how often it was woken."""
    server, client = lent(heartbeat_ns=50_000_000)
    asleep = LAYOUT["header.arbiter_asleep"]

    def no_client_rang() -> bool:
        """Not in the first try where this machine stood still for so long that the arbiter went dormant."""
        before = server.arbiter.stats()["wakeups"]
        eventually(lambda: server.segments[client.client_id][asleep] == AT_REST, "rest")
        for _ in range(50):
            ask(client).complete()
        return bool(server.arbiter.stats()["wakeups"] == before + 1)

    eventually(no_client_rang, "fifty tasks for which no client rings")


@pytest.mark.parametrize("variant", list(Variant))
def test_the_class_is_that_of_asking(serve: Callable[..., Server], eventually: Eventually, variant: Variant) -> None:
    """With any number of classes. All arbiters wait at once for what takes a second: that there are no collectives."""
    servers = [serve(policy=Policy(variant=variant, classes=classes)) for classes in range(2, 9)]
    clients = [server.attach() for server in servers]
    for client in clients:
        client.nic("rdma0", 0, SLOW)
    for server, client in zip(servers, clients, strict=True):
        asking_gives_the_class_of_credit(server, client, eventually)
        client.detach()


def asking_gives_the_class_of_credit(server: Server, client: Client, eventually: Eventually) -> None:
    batch = client.batch_begin(7, 40, 0, 10**12)
    later_ns = time.monotonic_ns() + 10**15
    words = [
        {"stage": stage, "deadline_ns": deadline_ns, "batch": reported, "layer": layer, "request_id": request_id}
        for stage, deadline_ns, reported, layer, request_id in itertools.product(
            (Stage.REUSE, Stage.P2D, Stage.BACKGROUND), (0, later_ns), (None, batch), (0, 3, 5, 30), (0, 9)
        )
    ]
    eventually(lambda: on_credit(server, client, stage=Stage.BACKGROUND), "credit")
    client.batch_layer(batch, 3)
    went = 0
    for word in words:
        before = taken(server, client)
        lent = ask(client, **word)  # type: ignore[arg-type]
        lent.complete()
        went += taken(server, client) - before
        task = client.submit(1000, **word)  # type: ignore[arg-type]
        found: list[tuple[int, int]] = []
        eventually(lambda found=found: found.extend(client.permits()) or found, "a permit")
        client.complete(task)
        assert found == [(task, lent.wire_class)], (server.path, word)
    assert went > len(words) / 3


def test_what_waits_takes_it_back(
    lent: Callable[..., tuple[Server, Client]], take: Take, eventually: Eventually
) -> None:
    server, client = lent()
    full = [client.submit(WINDOW_BYTES, stage=Stage.P2D) for _ in range(2)]
    assert take(client, 1) == full[:1]
    eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] >= 3)
    answers: list[Permit] = []
    asking = threading.Thread(target=lambda: answers.append(ask(client)))
    asking.start()
    eventually(lambda: sum(server.arbiter.nic_stats(0)["held_tasks"]) == 2, "both wait")
    assert answers == []
    assert ask(client, incoming=True).wire_class == 6  # the other direction is free
    client.complete(full[0])
    take(client, 1)
    client.complete(full[1])
    asking.join()
    answers.pop().complete()
    eventually(lambda: on_credit(server, client), "credit again")


def test_all_clients_together_have_half_of_the_window(
    lent: Callable[..., tuple[Server, Client]], eventually: Eventually
) -> None:
    server, client = lent()
    with server.attach() as other:
        other.nic("rdma0", 0, SLOW)
        eventually(lambda: on_credit(server, other), "credit of the other")
        share_bytes = WINDOW_BYTES // 4
        eventually(
            lambda: sum(r.wire_class for r in held_on_credit(server, client, share_bytes // 10)) == 10 * 6, "a share"
        )


def held_on_credit(server: Server, client: Client, size_bytes: int) -> list[Permit]:
    """Permits that are held at once, as long as they are on credit; then all are given back."""
    held: list[Permit] = []
    while len(held) < 100:
        before = taken(server, client)
        permit = ask(client, size_bytes)
        if taken(server, client) == before:
            permit.complete()
            break
        held.append(permit)
    for permit in held:
        permit.complete()
    return held


def test_not_beside_collectives_unless_apart(
    lent: Callable[..., tuple[Server, Client]], eventually: Eventually
) -> None:
    """On the class of collectives or without marks it asks while any are under way, in this process or another."""
    server, client = lent()
    server.arbiter.wire([48, 40, 34, 26, 18, 10, 8, 1])
    with server.attach() as other:
        other.nic("rdma0", 0, SLOW)
        eventually(lambda: on_credit(server, other) and on_credit(server, client, class_marked=True))
        client.count_posted(0, Stage.COLLECTIVE, 10_000)
        assert on_credit(server, client, class_marked=True)
        assert not on_credit(server, client)
        eventually(lambda: not on_credit(server, other), "the other is reported")
        assert on_credit(server, other, class_marked=True)
        client.count_completed(0, Stage.COLLECTIVE, 10_000)
        eventually(lambda: on_credit(server, other), "credit, when none were seen for a while")


def test_a_critical_flow_ends_it(lent: Callable[..., tuple[Server, Client]], eventually: Eventually) -> None:
    """Its class is known to the queue alone, so its process asks until there were none for a while."""
    server, client = lent(policy=Policy(critical_laxity_share=1.0))
    near_ns = time.monotonic_ns() + 100 * 10**9
    assert on_credit(server, client, request_id=5, deadline_ns=near_ns)  # it was not known
    assert not on_credit(server, client, request_id=5, deadline_ns=near_ns)
    assert not on_credit(server, client)
    eventually(lambda: on_credit(server, client), "credit, a while after")


def test_what_takes_credit_or_nothing_asks_for_nothing(
    lent: Callable[..., tuple[Server, Client]], eventually: Eventually
) -> None:
    server, client = lent()
    before = taken(server, client)
    permit = client.take(Transfer(1000, Stage.P2D), 0, None, 0)
    assert permit is not None and permit.ready() and permit.wait() == permit.wire_class
    permit.complete()
    eventually(lambda: taken(server, client) == before + 1)
    client.count_posted(0, Stage.COLLECTIVE, 10_000)
    asked = server.arbiter.client_stats(client.client_id)["submits"]
    assert client.take(Transfer(1000, Stage.P2D), 0, None, 0) is None
    ask(client).complete()  # the arbiter has read all that came before
    assert server.arbiter.client_stats(client.client_id)["submits"] == asked + 1
    client.count_completed(0, Stage.COLLECTIVE, 10_000)


def test_what_is_no_transfer_is_refused(lent: Callable[..., tuple[Server, Client]]) -> None:
    _, client = lent()
    with pytest.raises(TypeError, match="tuple is no Transfer"):
        client.ask((1, 3), 0, None, 0, 0, 6)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int is no Transfer"):
        client.submit_transfer(1000, 0, None, 0)  # type: ignore[arg-type]


def test_there_is_none_where_nothing_is_enforced(lent: Callable[..., tuple[Server, Client]]) -> None:
    server, client = lent()
    server.arbiter.mode(Mode.OBSERVE)
    before = taken(server, client)
    assert client.ask(Transfer(1, 3), 0, None, 0, 0, 6) is None
    assert client.submit(1000, stage=Stage.P2D, asked=True)
    assert taken(server, client) == before


def test_who_asks_sees_all_that_was_sent(lent: Callable[..., tuple[Server, Client]], eventually: Eventually) -> None:
    """Far more than the arbiter reads in one turn lies in the ring of a client that rang for none of it."""
    server, client = lent(heartbeat_ns=500_000_000)
    eventually(lambda: server.segments[client.client_id][LAYOUT["header.arbiter_asleep"]] == AT_REST, "rest")
    before = server.arbiter.client_stats(client.client_id)["completes"]
    for _ in range(300):
        ask(client).complete()
    assert server.arbiter.client_stats(client.client_id)["completes"] == before + 300


def test_a_crowded_ring_is_read(lent: Callable[..., tuple[Server, Client]], eventually: Eventually) -> None:
    """More messages than the ring has slots between two heartbeats: the doorbell rings in time, none is refused."""
    server, client = lent(heartbeat_ns=10**9)
    before = server.arbiter.client_stats(client.client_id)
    for _ in range(10_000):
        ask(client).complete()
    after = settled(server, client, before["completes"] + 10_000, eventually)
    assert after["bypassed_overflow"] == after["bypassed_stale"] == 0


@pytest.mark.parametrize("completer_first", [False, True])
def test_accounts_are_whole_whichever_thread_is_read_first(
    lent: Callable[..., tuple[Server, Client]], eventually: Eventually, completer_first: bool
) -> None:
    """One thread sends, another sees it arrive, a third ends the request; lanes are read long after, in any order."""
    server, client = lent(heartbeat_ns=200_000_000)
    sizes = range(1000, 1400)
    with ThreadPoolExecutor(1) as sender, ThreadPoolExecutor(1) as completer:
        for thread in (completer, sender) if completer_first else (sender, completer):  # so their lanes are made
            thread.submit(ask, client).result().complete()
        request = RequestInfo(77, deadline_ns=time.monotonic_ns() + 10**15, budget_ns=10**15)
        batch, _ = client.batch_begin_with(8, 4, [request])
        for size_bytes in sizes:
            permit = sender.submit(ask, client, size_bytes, request_id=77, batch=batch).result()
            completer.submit(permit.complete).result()
        client.batch_end(batch)
    (done,) = eventually(server.arbiter.finished, "the end of the request")
    assert done.size_bytes == sum(sizes)
    assert done.verdict == Verdict.MET
    assert server.arbiter.ledger_totals()["unaccounted"] == 0

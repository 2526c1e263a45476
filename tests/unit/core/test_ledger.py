"""Accounts of requests: what each has moved by stage and layer, when it was done, and what makes room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from mfsd import _native
from mfsd._native import Account, Arbiter, Client, Finished, RequestInfo, Stage, Verdict
from tests.support.arbiter import Server

Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]


def cells(account: Account) -> dict[tuple[int, int], tuple[int, int, int, int]]:
    return {
        (c.stage, c.layer): (c.submitted_bytes, c.completed_bytes, c.bypassed_bytes, c.dropped_bytes)
        for c in account.cells
    }


def all_finished(arbiter: Arbiter, n: int, eventually: Eventually) -> list[Finished]:
    found: list[Finished] = []

    def poll() -> bool:
        found.extend(arbiter.finished())
        return len(found) >= n

    eventually(poll, f"{n} finished requests")
    return found


def test_bytes_by_stage_and_layer(serve: Callable[..., Server], take: Take, eventually: Eventually) -> None:
    server = serve()
    client = server.attach()
    nic = client.nic("soft0")
    for layer, size in ((0, 1000), (0, 500), (1, 300)):
        (task,) = (client.submit(size, stage=Stage.P2D, nic=nic, request_id=7, layer=layer),)
        assert take(client, 1) == [task]
        client.complete(task)
    task = client.submit(40, stage=Stage.REUSE, nic=nic, request_id=7, layer=3)
    client.cancel(task, bypassed=True)
    task = client.submit(50, stage=Stage.REUSE, nic=nic, request_id=7, layer=3)
    client.cancel(task)
    client.submit(9, stage=Stage.P2D, nic=nic)  # of no request

    def settled() -> bool:
        found = server.arbiter.accounts(7)
        return bool(found) and found[0].open == 0 and len(found[0].cells) == 3 and found[0].cells[0].tasks == 2

    eventually(settled, "the account")
    (account,) = server.arbiter.accounts()
    assert cells(account) == {
        (Stage.P2D, 0): (1500, 1500, 0, 0),
        (Stage.P2D, 1): (300, 300, 0, 0),
        (Stage.REUSE, 3): (90, 0, 40, 50),
    }
    assert not account.announced and account.end_ns == 0
    assert server.arbiter.opened()["bypass"] == 1
    client.detach()


def test_when_a_load_must_be_there_is_not_when_its_request_is_due(
    serve: Callable[..., Server], eventually: Eventually
) -> None:
    server = serve()
    client = server.attach()
    nic = client.nic("soft0")
    due_ns = time.monotonic_ns() + 10**12
    for tasks, (stage, deadline_ns, wanted_ns) in enumerate(
        [(Stage.REUSE, due_ns - 10**11, 0), (Stage.P2D, due_ns, due_ns)], start=1
    ):
        client.submit(100, stage=stage, nic=nic, request_id=7, deadline_ns=deadline_ns)

        def counted(tasks: int = tasks) -> bool:
            found = server.arbiter.accounts(7)
            return bool(found) and sum(cell.tasks for cell in found[0].cells) == tasks

        eventually(counted, "the task in the account")
        assert server.arbiter.accounts(7)[0].deadline_ns == wanted_ns
    client.detach()


def test_two_processes_have_two_accounts(serve: Callable[..., Server], eventually: Eventually) -> None:
    server = serve()
    with server.attach() as a, server.attach() as b:
        for client in (a, b):
            client.submit(10, stage=Stage.P2D, nic=client.nic("soft0"), request_id=5)
        eventually(lambda: len(server.arbiter.accounts(5)) == 2, "both")
        assert {account.client_id for account in server.arbiter.accounts()} == {a.client_id, b.client_id}
    eventually(lambda: all(x.open == 0 for x in server.arbiter.accounts()), "what they left being dropped")
    assert [cells(x)[Stage.P2D, 0] for x in server.arbiter.accounts()] == [(10, 0, 0, 10)] * 2


def test_verdicts(serve: Callable[..., Server], take: Take, eventually: Eventually) -> None:
    """In time, too late, without a deadline, without a flow, and one whose flow outlives the reported end."""
    server = serve()
    client = server.attach()
    nic = client.nic("soft0")
    now_ns = time.monotonic_ns()
    far_ns = now_ns + 1000 * 10**9
    requests = [
        RequestInfo(1, deadline_ns=far_ns),
        RequestInfo(2, deadline_ns=1),
        RequestInfo(3),
        RequestInfo(4, 0, far_ns),
    ]
    slot, _ = client.batch_begin_with(70, 4, requests)
    sent = {}
    for request_id in (1, 2, 3):
        sent[request_id] = client.submit(100 * request_id, stage=Stage.P2D, nic=nic, request_id=request_id, batch=slot)
    take(client, 3)
    client.complete(sent[1])
    client.complete(sent[3])
    client.batch_end(slot)
    early = {f.request_id: f for f in all_finished(server.arbiter, 3, eventually)}
    assert {r: f.verdict for r, f in early.items()} == {1: Verdict.MET, 3: Verdict.NONE, 4: Verdict.MET}
    client.complete(sent[2])
    (late,) = all_finished(server.arbiter, 1, eventually)
    assert (late.request_id, late.verdict, late.size_bytes, late.batch_id) == (2, Verdict.MISSED, 200, 70)
    assert late.done_ns >= late.end_ns >= late.begin_ns
    assert early[1].done_ns <= early[1].end_ns and early[4].done_ns == early[4].end_ns
    assert server.arbiter.finished() == []


def test_a_request_in_two_batches_ends_once(serve: Callable[..., Server], eventually: Eventually) -> None:
    server = serve()
    with server.attach() as client:
        first, _ = client.batch_begin_with(1, 4, [RequestInfo(9, deadline_ns=time.monotonic_ns() + 10**12)])
        second, _ = client.batch_begin_with(2, 4, [RequestInfo(9, deadline_ns=time.monotonic_ns() + 10**12)])
        client.batch_end(first)
        marker, _ = client.batch_begin_with(3, 4, [RequestInfo(10)])
        eventually(
            lambda: server.arbiter.accounts(10), "the marker"
        )  # what has ended before it is seen is never evaluated
        client.batch_end(marker)
        assert [f.request_id for f in all_finished(server.arbiter, 1, eventually)] == [10]
        client.batch_end(second)
        assert [f.request_id for f in all_finished(server.arbiter, 1, eventually)] == [9]


def test_a_program_that_ends_is_not_evaluated(serve: Callable[..., Server], eventually: Eventually) -> None:
    server = serve()
    client = server.attach()
    client.batch_begin_with(1, 4, [RequestInfo(9, deadline_ns=time.monotonic_ns() + 10**12)])
    eventually(lambda: server.arbiter.accounts(9), "the request")
    client.detach()
    (ended,) = all_finished(server.arbiter, 1, eventually)
    assert (ended.request_id, ended.verdict) == (9, Verdict.NONE)


def test_the_least_recently_used_makes_room(serve: Callable[..., Server], take: Take, eventually: Eventually) -> None:
    server = serve()
    client = server.attach()
    nic = client.nic("soft0")
    kept = client.submit(10, stage=Stage.P2D, nic=nic, request_id=1)  # open: it stays, old as it is
    take(client, 1)
    for request_id in range(2, _native.LEDGER_REQUESTS + 102):
        task = client.submit(1, stage=Stage.BACKGROUND, nic=nic, request_id=request_id)
        client.cancel(task, bypassed=True)
        if request_id % 512 == 0:
            eventually(lambda: server.arbiter.accounts(request_id), "the request")  # noqa: B023
    last = _native.LEDGER_REQUESTS + 101
    eventually(lambda: server.arbiter.accounts(last) and not server.arbiter.accounts(last)[0].open, "the last one")
    totals = server.arbiter.ledger_totals()
    assert (totals["requests"], totals["evicted"], totals["unaccounted"]) == (_native.LEDGER_REQUESTS, 101, 0)
    known = {account.request_id for account in server.arbiter.accounts()}
    assert known == {1} | set(range(103, last + 1))
    client.complete(kept)
    eventually(lambda: not server.arbiter.accounts(1)[0].open, "the completion")


def test_one_request_cannot_take_all_cells(serve: Callable[..., Server], eventually: Eventually) -> None:
    server = serve()
    client = server.attach()
    nic = client.nic("soft0")
    n = _native.LEDGER_REQUEST_CELLS + 50
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})  # one lane, so that no task's end is read before its beginning
    try:
        for layer in range(n):
            client.cancel(client.submit(1, stage=Stage.P2D, nic=nic, request_id=1, layer=layer), bypassed=True)
    finally:
        os.sched_setaffinity(0, cpus)
    eventually(lambda: sum(c.tasks for c in server.arbiter.accounts(1)[0].cells) == n, "all of them")
    (account,) = server.arbiter.accounts()
    assert len(account.cells) == _native.LEDGER_REQUEST_CELLS + 1
    rest = account.cells[-1]
    assert (rest.layer, rest.bypassed_bytes) == (_native.LEDGER_LAYER_REST, 50)

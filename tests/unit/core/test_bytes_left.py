"""What a sender says it has behind a message: the daemon sizes a request's load by all of it, not by what has been
asked for so far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd._native import Client, Rmlq, Stage
from mfsd.capi import lib
from tests.unit.core.test_permits import Eventually, Take, hold_with_one

RATE_BYTES_PER_S = 10**9
PIECE_BYTES = 10**6
SHORT, LONG = 1, 5
"""Classes of loads whose rest takes the port up to 8 ms, and more than 128."""
TASK_BYTES_MAX = 2**40 - 1
FINEST_BYTES = 64 << 10


@given(st.integers(0, TASK_BYTES_MAX))
def test_a_code_is_at_most_an_eighth_below(behind_bytes: int) -> None:
    found_bytes = lib.mfs_behind_bytes(lib.mfs_behind_code(behind_bytes))
    if behind_bytes < FINEST_BYTES:
        assert found_bytes == 0
    else:
        assert behind_bytes * 7 / 8 <= found_bytes <= behind_bytes


def test_every_byte_is_a_size_and_larger_ones_are_larger() -> None:
    """Whatever a client writes there."""
    sizes = [lib.mfs_behind_bytes(code) for code in range(256)]
    assert sizes == sorted(sizes) and sizes[lib.MFS_BEHIND_NOTHING] == 0 and sizes[-1] == TASK_BYTES_MAX
    made = range(lib.MFS_BEHIND_NOTHING, lib.mfs_behind_code(TASK_BYTES_MAX) + 1)
    assert [lib.mfs_behind_code(sizes[code]) for code in made] == list(made)
    assert lib.mfs_behind_code(2**64 - 1) == made[-1]


def classes(client: Client, n: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < n:
        client.wait(100_000_000)
        found += client.permits(n - len(found))
    return found


def test_a_load_asked_for_piece_by_piece_has_the_class_and_the_place_of_all_of_it(
    serve, eventually: Eventually
) -> None:
    server = serve(window_ns=0, window_bytes_min=1, rate_default_bytes_per_s=RATE_BYTES_PER_S)
    with server.attach() as client:
        nic = client.nic("rdma0")

        def piece(request_id: int, left_bytes: int) -> int:
            return client.submit(
                PIECE_BYTES, stage=Stage.REUSE, nic=nic, request_id=request_id, left_bytes=left_bytes, incoming=True
            )

        first = client.submit(10 * PIECE_BYTES, stage=Stage.BACKGROUND, nic=nic, incoming=True)
        assert classes(client, 1) == [(first, 7)]
        long = piece(1, 200 * PIECE_BYTES)
        middle = [piece(2, 3 * PIECE_BYTES), piece(2, 2 * PIECE_BYTES), piece(2, PIECE_BYTES)]
        unknown = piece(1, 0)
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 6)
        order = []
        for previous in [first, *middle, long]:
            client.complete(previous)
            order += classes(client, 1)
        assert order == [*((task, SHORT) for task in middle), (long, LONG), (unknown, LONG)]


def test_the_latest_says_what_is_left(serve, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=1, rate_default_bytes_per_s=RATE_BYTES_PER_S)
    with server.attach() as client:
        nic = client.nic("rdma0")
        first = client.submit(10 * PIECE_BYTES, stage=Stage.BACKGROUND, nic=nic)
        assert classes(client, 1) == [(first, 7)]
        for left_bytes in (200 * PIECE_BYTES, PIECE_BYTES):
            client.submit(PIECE_BYTES, stage=Stage.REUSE, nic=nic, request_id=1, left_bytes=left_bytes)
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 3)
        client.complete(first)
        assert [wire_class for _, wire_class in classes(client, 1)] == [SHORT]


@pytest.mark.parametrize(("incoming", "last"), [(False, SHORT), (True, LONG)])
def test_what_is_fetched_keeps_the_class_of_the_whole_load_and_what_leaves_has_that_of_its_rest(
    serve, eventually: Eventually, incoming: bool, last: int
) -> None:
    """At its owner's port only classes tell it from what others fetch there."""
    server = serve(window_ns=0, window_bytes_min=1, rate_default_bytes_per_s=RATE_BYTES_PER_S)
    with server.attach() as client:
        nic = client.nic("rdma0")
        first = client.submit(10 * PIECE_BYTES, stage=Stage.BACKGROUND, nic=nic, incoming=incoming)
        assert classes(client, 1) == [(first, 7)]
        sizes = [199 * PIECE_BYTES, PIECE_BYTES]
        parts = [client.submit(size, stage=Stage.REUSE, nic=nic, request_id=1, incoming=incoming) for size in sizes]
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 3)
        shown = [task.bytes_whole for task in server.arbiter.tasks(client.client_id) if task.request_id]
        assert shown == [sum(sizes) if incoming else 0] * 2
        found = []
        for previous in (first, parts[0]):
            client.complete(previous)
            found += classes(client, 1)
        assert found == [(parts[0], LONG), (parts[1], last)]


def test_pieces_that_are_asked_for_one_after_the_other_are_one_load(serve) -> None:
    server = serve(rate_default_bytes_per_s=RATE_BYTES_PER_S)
    with server.attach() as client:
        nic = client.nic("rdma0")
        found = []
        for left_bytes in range(200 * PIECE_BYTES, 0, -50 * PIECE_BYTES):
            task = client.submit(
                50 * PIECE_BYTES, stage=Stage.REUSE, nic=nic, request_id=1, left_bytes=left_bytes, incoming=True
            )
            found += classes(client, 1)
            client.complete(task)
        assert [wire_class for _, wire_class in found] == [LONG] * 4


def test_of_many_loads_between_their_pieces_the_oldest_is_forgotten() -> None:
    queue = Rmlq(RATE_BYTES_PER_S, incoming=True)

    def piece(request: int, left_bytes: int) -> int:
        queue.submit(0, PIECE_BYTES, stage=Stage.REUSE, request=request, left_bytes=left_bytes)
        pick = queue.pick(0)
        assert pick is not None and queue.complete(pick.handle)
        return pick.wire_class

    requests = range(1, 66)
    assert {piece(request, 200 * PIECE_BYTES) for request in requests} == {LONG}
    assert [piece(request, PIECE_BYTES) for request in requests] == [SHORT, *[LONG] * 64]


def test_a_last_stage_counts_what_is_behind_it(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=1)
    with server.attach() as client:
        nic = client.nic("rdma0")
        hold_with_one(client, take, nic)
        behind_bytes = 32 * FINEST_BYTES
        for left_bytes in (PIECE_BYTES + behind_bytes, 0):
            client.submit(PIECE_BYTES, stage=Stage.P2D, nic=nic, request_id=1, left_bytes=left_bytes)
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 3)
        found = [task for task in server.arbiter.tasks(client.client_id) if task.stage == Stage.P2D]
        assert [(task.bytes_left, task.bytes_ahead) for task in found] == [
            (PIECE_BYTES + behind_bytes, behind_bytes - PIECE_BYTES)
        ] * 2


def test_what_waits_shows_what_its_request_or_batch_has(serve, eventually: Eventually) -> None:
    """By which `mfsctl explain` sizes it, as the queue does."""
    server = serve(window_ns=0, window_bytes_min=1, rate_default_bytes_per_s=RATE_BYTES_PER_S)
    with server.attach() as client:
        nic = client.nic("rdma0")
        batch = client.batch_begin(7, layers=10)
        first = client.submit(10 * PIECE_BYTES, stage=Stage.BACKGROUND, nic=nic)
        assert classes(client, 1) == [(first, 7)]
        behind_bytes = 32 * FINEST_BYTES
        for left_bytes in (9 * PIECE_BYTES, PIECE_BYTES + behind_bytes):
            client.submit(PIECE_BYTES, stage=Stage.REUSE, nic=nic, request_id=1, left_bytes=left_bytes)
        for layer in range(3):
            client.submit(PIECE_BYTES, stage=Stage.REUSE, nic=nic, batch=batch, layer=layer)
        eventually(lambda: server.arbiter.client_stats(client.client_id)["submits"] == 6)
        found = [task for task in server.arbiter.tasks(client.client_id) if task.stage == Stage.REUSE]
        assert {task.bytes_left for task in found if task.request_id} == {2 * PIECE_BYTES + behind_bytes}
        assert {task.bytes_left for task in found if task.batch_id} == {3 * PIECE_BYTES}

"""The arbiter's options, modes and rules, and what its clients notice when it or one of them is gone."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from mfsd import _native
from mfsd._native import Arbiter, Client, Mode, Policy, Rule, Stage

WINDOW_BYTES = 100_000
KIB = 1024
Take = Callable[[Client, int], list[int]]
Eventually = Callable[..., Any]


def test_a_client_that_left_blocks_no_other(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=WINDOW_BYTES)
    with server.attach() as client:
        nic = client.nic("rdma0")
        leaver = server.attach()
        granted = leaver.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        assert take(leaver, 1) == [granted]
        leaver.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        leaver.count_posted(nic, Stage.COLLECTIVE, 1_000_000)
        task = client.submit(WINDOW_BYTES, stage=Stage.P2D, nic=nic)
        leaver.detach()
        assert take(client, 1) == [task]
        eventually(lambda: server.arbiter.stats()["clients"] == 1)
        assert server.arbiter.nic_stats(nic)["held_bytes"] == [0] * 8


def test_modes_and_gates(serve, take: Take, eventually: Eventually) -> None:
    server = serve(window_ns=0, window_bytes_min=1)
    with server.attach() as client:
        nic = client.nic("rdma0")
        never = 1 << Stage.CONTROL | 1 << Stage.COLLECTIVE
        assert (client.mode(), client.gate(nic)) == (Mode.ENFORCE, 0xFF & ~never)
        tasks = [client.submit(KIB, stage=Stage.BACKGROUND, nic=nic) for _ in range(20)]
        server.arbiter.mode(Mode.OBSERVE)
        assert sorted(take(client, 20)) == sorted(tasks)  # what was held when the mode changed goes
        assert (client.mode(), client.gate(nic)) == (Mode.OBSERVE, 0)
        assert server.attach().gate(nic) == 0
        server.arbiter.mode(Mode.ENFORCE)
        assert client.gate(nic) == 0xFF & ~never


def test_rules_reach_all_clients(serve) -> None:
    server = serve()
    rules = [
        Rule(library="libnccl", role=1, stage=Stage.COLLECTIVE),
        Rule(
            process="vllm", peer=bytes(range(16)), peer_prefix_bits=96, action=1, stage=Stage.P2D, dscp=26, set_role=4
        ),
    ]
    with server.attach() as before:
        server.arbiter.rules(rules)
        with server.attach() as after:
            for client in (before, after):
                seen = client.rules()
                assert [rule._replace(peer=b"") for rule in seen] == [rule._replace(peer=b"") for rule in rules]
                assert seen[1].peer == bytes(range(16))
    with pytest.raises(ValueError, match=r"rule\.dscp: 64"):
        server.arbiter.rules([Rule(dscp=64)])
    with pytest.raises(ValueError, match=f"rules: {_native.RULES_MAX + 1}"):
        server.arbiter.rules([Rule()] * (_native.RULES_MAX + 1))


def test_waiting_ends_when_the_daemon_gives_up(serve) -> None:
    server = serve()
    client = server.attach()
    assert client.alive()
    assert not client.hung_up()
    assert client.wait(1) is False
    server.arbiter.close()
    assert not client.alive()
    assert client.wait(3600 * 10**9) is False  # at once: no arbiter will ever permit
    with pytest.raises(OSError) as raised:
        client.submit(1, stage=Stage.P2D)
    assert raised.value.errno == errno.ENOTCONN
    server.close()
    assert client.hung_up()


def test_a_heartbeat_that_stopped_is_noticed() -> None:
    arbiter = Arbiter(heartbeat_ns=1, stale_after_ns=2)  # and never started
    try:
        assert arbiter.stats()["clients"] == 0
    finally:
        arbiter.close()
    with pytest.raises(OSError) as raised:
        arbiter.stats()
    assert raised.value.errno == errno.ESHUTDOWN


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heartbeat_ns": 0}, "heartbeat_ns: 0"),
        ({"heartbeat_ns": 50, "stale_after_ns": 50}, "stale_after_ns: 50, at least 51"),
        ({"window_bytes_min": 0}, "window_bytes_min: 0"),
        ({"tasks_max": 2**31}, "tasks_max"),
        ({"mode": 3}, "mode: 3"),
        ({"policy": Policy(classes=1)}, "policy.classes: 1"),
        ({"policy": Policy(levels=9)}, "policy.levels: 9"),
        ({"policy": Policy(threshold=(0.5,))}, "policy.threshold: 1 values, needed 7"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Arbiter(**options)  # type: ignore[arg-type]


def test_nics_run_out(serve) -> None:
    server = serve()
    for i in range(_native.NICS_MAX):
        server.arbiter.nic(f"rdma{i}")
    with pytest.raises(OSError) as raised:
        server.arbiter.nic("one more")
    assert raised.value.errno == errno.ENOSPC
    with server.attach() as client, pytest.raises(OSError) as raised:
        client.nic("one more")
    assert raised.value.errno == errno.ENOSPC
    for nic in (_native.NICS_MAX, 2**32 - 1):
        with pytest.raises(OSError) as raised:
            server.arbiter.nic_stats(nic)
        assert raised.value.errno == errno.ENOENT

"""Who may attach, and how much one container or user may take."""

from __future__ import annotations

import errno
import os
from typing import Any

from mfsd.node.admission import Admission, Peer
from mfsd.node.config import SocketConfig
from mfsd.node.values import GroupId, UserId


def peer(uid: int, *gids: int, pid: int = 10, container: str = "") -> Peer:
    return Peer(pid, uid, frozenset(gids or {uid}), container)


def error_of(admission: Admission, who: Peer, now_s: float = 0.0) -> int | None:
    refusal = admission.admit(who, now_s)
    return refusal.error if refusal else None


def test_every_user_that_can_open_the_socket_may() -> None:
    assert error_of(Admission(SocketConfig()), peer(4711)) is None


def test_lists_name_users_and_groups() -> None:
    admission = Admission(SocketConfig(allowed_uids=[UserId(1000)], allowed_gids=[GroupId(44)]))
    assert error_of(admission, peer(1000)) is None
    assert error_of(admission, peer(1001, 1001, 44)) is None
    assert error_of(admission, peer(1001)) == errno.EACCES
    assert error_of(admission, peer(0)) is None, "root could take the segment anyway"
    assert error_of(admission, peer(os.geteuid())) is None


def test_one_empty_list_admits_no_other() -> None:
    assert error_of(Admission(SocketConfig(allowed_uids=[])), peer(1000)) == errno.EACCES


def test_an_invisible_process_is_reported_why() -> None:
    refusal = Admission(SocketConfig()).admit(peer(1000, pid=0), 0.0)
    assert refusal is not None and "pid namespace" in refusal.reason


def test_one_user_has_so_many_clients_and_another_is_not_affected() -> None:
    admission = Admission(SocketConfig(clients_per_uid=2))
    assert [error_of(admission, peer(1000)) for _ in range(3)] == [None, None, errno.EUSERS]
    assert error_of(admission, peer(1001)) is None
    admission.release(peer(1000))
    assert error_of(admission, peer(1000)) is None


def test_root_of_one_pod_takes_nothing_from_root_of_another() -> None:
    admission = Admission(SocketConfig(clients_per_container=2, clients_per_uid=1))
    one, other = peer(0, container="pod 1"), peer(0, container="pod 2")
    assert [error_of(admission, one) for _ in range(3)] == [None, None, errno.EUSERS]
    assert error_of(admission, other) is None
    assert error_of(admission, peer(0)) is None, "nor from root of the host"
    assert error_of(admission, peer(4711, container="pod 1")) == errno.EUSERS, "root of a pod may become any user in it"
    admission.release(one)
    assert error_of(admission, peer(4711, container="pod 1")) is None


def test_pods_that_attach_often_do_not_slow_down_others() -> None:
    admission = Admission(SocketConfig(attaches_per_s=2))
    one, other = peer(0, container="pod 1"), peer(0, container="pod 2")
    assert [error_of(admission, one) for _ in range(3)] == [None, None, errno.EUSERS]
    assert error_of(admission, other) is None


def test_all_together_have_a_limit_too() -> None:
    admission = Admission(SocketConfig(clients_max=3))
    assert [error_of(admission, peer(n)) for n in range(4)] == [None, None, None, errno.EUSERS]
    refusal = admission.admit(peer(9), 0.0)
    assert refusal is not None and "socket.clients_max" in refusal.reason
    admission.room = 2
    refusal = admission.admit(peer(9), 0.0)
    assert refusal is not None and refusal.error == errno.ENOSPC and "memory limit holds 2" in refusal.reason


def test_one_user_attaches_so_often() -> None:
    admission = Admission(SocketConfig(attaches_per_s=5))

    def attach(uid: int, now_s: float) -> bool:
        admitted = admission.admit(peer(uid), now_s) is None
        if admitted:
            admission.release(peer(uid))
        return admitted

    assert [attach(1000, 1.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert attach(1001, 1.0)
    assert [attach(1000, 1.41) for _ in range(3)] == [True, True, False], "two fifths of a second give two back"
    assert [attach(1000, 9.0) for _ in range(6)] == [True] * 5 + [False], "never more than one second's worth"


def test_reasons_fit_the_welcome() -> None:
    def reason(config: SocketConfig, *, room: int | None = None, pid: int = 10, container: str = "") -> str:
        admission = Admission(config, room)
        who = peer(2**32 - 2, pid=pid, container=container)
        refusals = [admission.admit(who, 0.0) for _ in range(257)]
        assert refusals[-1] is not None
        return refusals[-1].reason

    often = 10_000
    many: dict[str, Any] = {"clients_per_uid": 256, "clients_per_container": 256}
    found = [
        reason(SocketConfig(allowed_uids=[])),
        reason(SocketConfig(), pid=0),
        reason(SocketConfig(attaches_per_s=often, clients_max=100)),
        reason(SocketConfig(attaches_per_s=often, **many), room=100),
        reason(SocketConfig(attaches_per_s=often)),
        reason(SocketConfig(attaches_per_s=often), container="pod"),
        reason(SocketConfig(attaches_per_s=1, **many), container="pod"),
        reason(SocketConfig(attaches_per_s=1, **many)),
    ]
    assert len(set(found)) == len(found) and max(len(text.encode()) for text in found) <= 63, found


def test_forgotten_users_do_not_pile_up() -> None:
    admission = Admission(SocketConfig(attaches_per_s=1))
    for uid in range(5000):
        admission.admit(peer(uid + 1), now_s=uid * 10.0)
    assert len(admission._spent) < 1100

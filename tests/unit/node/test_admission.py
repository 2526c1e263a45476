"""Who may attach, and how much one user may take."""

from __future__ import annotations

import errno
import os

from mfsd.node.admission import Admission, Peer
from mfsd.node.config import SocketConfig
from mfsd.node.values import GroupId, UserId


def peer(uid: int, *gids: int, pid: int = 10) -> Peer:
    return Peer(pid, uid, frozenset(gids or {uid}))


def error_of(admission: Admission, who: Peer, now_s: float = 0.0) -> int | None:
    refusal = admission.admit(who, now_s)
    return refusal.error if refusal else None


def test_everybody_may_who_can_open_the_socket() -> None:
    assert error_of(Admission(SocketConfig()), peer(4711)) is None


def test_lists_name_users_and_groups() -> None:
    admission = Admission(SocketConfig(allowed_uids=[UserId(1000)], allowed_gids=[GroupId(44)]))
    assert error_of(admission, peer(1000)) is None
    assert error_of(admission, peer(1001, 1001, 44)) is None
    assert error_of(admission, peer(1001)) == errno.EACCES
    assert error_of(admission, peer(0)) is None, "root could take the segment anyway"
    assert error_of(admission, peer(os.geteuid())) is None


def test_one_empty_list_admits_nobody_else() -> None:
    assert error_of(Admission(SocketConfig(allowed_uids=[])), peer(1000)) == errno.EACCES


def test_an_invisible_process_is_told_why() -> None:
    refusal = Admission(SocketConfig()).admit(peer(1000, pid=0), 0.0)
    assert refusal is not None and "pid namespace" in refusal.reason


def test_one_user_has_so_many_clients_and_another_is_not_affected() -> None:
    admission = Admission(SocketConfig(clients_per_uid=2))
    assert [error_of(admission, peer(1000)) for _ in range(3)] == [None, None, errno.EUSERS]
    assert error_of(admission, peer(1001)) is None
    admission.release(peer(1000))
    assert error_of(admission, peer(1000)) is None


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
    admission = Admission(SocketConfig(allowed_uids=[], clients_per_uid=256, attaches_per_s=10_000))
    for who in (peer(2**32 - 2), peer(2**32 - 2, pid=0)):
        refusal = admission.admit(who, 0.0)
        assert refusal is not None and len(refusal.reason.encode()) <= 63, refusal
    admission = Admission(SocketConfig(clients_per_uid=256, attaches_per_s=10_000))
    refusals = [admission.admit(peer(2**32 - 2), 0.0) for _ in range(257)]
    assert refusals[-1] is not None and len(refusals[-1].reason.encode()) <= 63


def test_forgotten_users_do_not_pile_up() -> None:
    admission = Admission(SocketConfig(attaches_per_s=1))
    for uid in range(5000):
        admission.admit(peer(uid + 1), now_s=uid * 10.0)
    assert len(admission._spent) < 1100

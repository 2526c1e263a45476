"""Who may attach, and how much of the daemon one user may take. Pure decisions: no socket, no clock."""

from __future__ import annotations

import errno
import os
from collections import Counter

from msgspec import Struct

from mfsd.node.config import SocketConfig


class Peer(Struct, frozen=True):
    """The process at the other end of a unix socket, as the kernel tells it."""

    pid: int
    uid: int
    gids: frozenset[int]
    """The primary and the supplementary groups."""


class Refusal(Struct, frozen=True):
    """Why a client is not served: a positive errno, and a line of at most 63 bytes for people."""

    error: int
    reason: str


class Admission:
    """Keeps the number of connections and the recent attach requests of each user."""

    def __init__(self, config: SocketConfig) -> None:
        self.config = config
        self._connections: Counter[int] = Counter()
        self._spent: dict[int, tuple[float, float]] = {}

    def admit(self, peer: Peer, now_s: float) -> Refusal | None:
        """None: the connection counts against its user until :meth:`release`."""
        if peer.pid <= 0:
            return Refusal(errno.EACCES, "your pid is not visible: run mfsd in the host's pid namespace")
        if not self._allowed(peer):
            return Refusal(errno.EACCES, f"uid {peer.uid} is not in allowed_uids or allowed_gids")
        if self._connections[peer.uid] >= self.config.clients_per_uid:
            return Refusal(errno.EUSERS, f"uid {peer.uid} has {self.config.clients_per_uid} clients, the most")
        if not self._take_token(peer.uid, now_s):
            return Refusal(errno.EUSERS, f"uid {peer.uid} attaches too often; try again in a second")
        self._connections[peer.uid] += 1
        return None

    def release(self, peer: Peer) -> None:
        self._connections[peer.uid] -= 1
        if self._connections[peer.uid] <= 0:
            del self._connections[peer.uid]

    def _allowed(self, peer: Peer) -> bool:
        uids, gids = self.config.allowed_uids, self.config.allowed_gids
        if peer.uid in (0, os.geteuid()) or (uids is None and gids is None):
            return True
        return peer.uid in (uids or ()) or not peer.gids.isdisjoint(gids or ())

    def _take_token(self, uid: int, now_s: float) -> bool:
        """A bucket of one second's attaches for each user, spent ones given back steadily."""
        rate = self.config.attaches_per_s
        spent, at_s = self._spent.get(uid, (0.0, now_s))
        spent = max(0.0, spent - (now_s - at_s) * rate)
        if spent + 1 > rate:
            return False
        if len(self._spent) > 1024:  # users that have paid everything back need no entry
            self._spent = {u: (s, at) for u, (s, at) in self._spent.items() if s > (now_s - at) * rate}
        self._spent[uid] = (spent + 1, now_s)
        return True

"""Who may attach, and how many clients a container or user may have. Pure decisions: no socket, no clock."""

from __future__ import annotations

import errno
import os
from collections import Counter

from msgspec import Struct

from mfsd.node.config import SocketConfig


class Peer(Struct, frozen=True):
    """The process at the other end of a unix socket, according to the kernel."""

    pid: int
    uid: int
    gids: frozenset[int]
    """The primary group and the supplementary groups."""
    container: str = ""
    """Pod, container or pid namespace (:mod:`mfsd.node.container`); empty: none."""

    @property
    def payer(self) -> str:
        """Whose quota it counts against. In a container its users do not matter: root there may become any of them."""
        return self.container or f"uid {self.uid}"


class Refusal(Struct, frozen=True):
    """Why a client is not served: a positive errno, and a message of at most 63 bytes."""

    error: int
    reason: str


class Admission:
    """Keeps the connections and recent attach requests of each container, and of each user outside of containers."""

    def __init__(self, config: SocketConfig, room: int | None = None) -> None:
        """`room`: how many clients fit into memory; None: all."""
        self.config = config
        self.room = room
        self._connections: Counter[str] = Counter()
        self._spent: dict[str, tuple[float, float]] = {}

    def admit(self, peer: Peer, now_s: float) -> Refusal | None:
        """Returns a refusal, or None: the connection then counts against its container or user until it is released."""
        if peer.pid <= 0:
            return Refusal(errno.EACCES, "your pid is not visible: run mfsd in the host's pid namespace")
        if not self._allowed(peer):
            return Refusal(errno.EACCES, f"uid {peer.uid} is not in allowed_uids or allowed_gids")
        if (refusal := self._full(peer)) is not None:
            return refusal
        if not self._take_token(peer.payer, now_s):
            who = "this container" if peer.container else peer.payer
            return Refusal(errno.EUSERS, f"{who} attaches too often; try again in a second")
        self._connections[peer.payer] += 1
        return None

    def release(self, peer: Peer) -> None:
        self._connections[peer.payer] -= 1
        if self._connections[peer.payer] <= 0:
            del self._connections[peer.payer]

    def _full(self, peer: Peer) -> Refusal | None:
        config, clients = self.config, self._connections.total()
        if self.room is not None and clients >= self.room:
            return Refusal(errno.ENOSPC, f"mfsd's memory limit holds {self.room} clients: raise it")
        if clients >= config.clients_max:
            return Refusal(errno.EUSERS, f"mfsd serves {config.clients_max} clients, see socket.clients_max")
        who, key = ("this container", "clients_per_container") if peer.container else (peer.payer, "clients_per_uid")
        most: int = getattr(config, key)
        if self._connections[peer.payer] >= most:
            return Refusal(errno.EUSERS, f"{who} has {most} clients, see {key}")
        return None

    def _allowed(self, peer: Peer) -> bool:
        uids, gids = self.config.allowed_uids, self.config.allowed_gids
        if peer.uid in (0, os.geteuid()) or (uids is None and gids is None):
            return True
        return peer.uid in (uids or ()) or not peer.gids.isdisjoint(gids or ())

    def _take_token(self, payer: str, now_s: float) -> bool:
        """A bucket of one second's attaches for each container or user. Spent ones come back steadily."""
        rate = self.config.attaches_per_s
        spent, at_s = self._spent.get(payer, (0.0, now_s))
        spent = max(0.0, spent - (now_s - at_s) * rate)
        if spent + 1 > rate:
            return False
        if len(self._spent) > 1024:  # full buckets need no entry
            self._spent = {p: (s, at) for p, (s, at) in self._spent.items() if s > (now_s - at) * rate}
        self._spent[payer] = (spent + 1, now_s)
        return True

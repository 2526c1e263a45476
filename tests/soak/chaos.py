"""Faults at random moments, the same for the same seed: who is hit, by what, and how long recovery takes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

from mfsd import _native
from mfsd.fabric.policy import load_profiles
from mfsd.node.control import ReloadRequest
from mfsd.node.control_client import Refused, Unreachable, ask
from tests.soak.hostile import segment_write
from tests.soak.nodes import COME_BACK_S, Cluster, Node, Service, wait_for
from tests.soak.programs import Slot
from tests.soak.tally import Tally

DOWN_S = (0.0, 2.0)
"""How long what was killed stays away, and what was stopped stays stopped: below and above what others wait for it."""
PERMITS = (200, 2000)
"""Of one node between two faults: what has recovered has to go on, however fast the machine is."""
BAD = ('mode = "loud"\n', "[[rule]\n", "\0\0\0", '[nic."mfs0"]\nrate = "fast"\n')


class Chaos:
    def __init__(self, cluster: Cluster, slots: list[Slot], tally: Tally, seed: int) -> None:
        self._cluster, self._slots, self._tally = cluster, slots, tally
        self._chance = random.Random(seed)
        self._faults: list[tuple[Callable[[], None], int]] = [
            (self._kill_daemon, 5),
            (self._stop_daemon, 3),
            (self._kill_coordinator, 3),
            (self._stop_coordinator, 2),
            (self._kill_etcd, 1),
            (self._stop_etcd, 1),
            (self._kill_program, 4),
            (self._kill_peer, 3),
            (self._stop_program, 3),
            (self._poison, 3),
            (self._reload, 3),
            (self._reload_bad, 2),
        ]

    def once(self) -> None:
        """One fault, once a node has gone on for a while, until what was hit serves again."""
        self._go_on(self._chance.choice(self._cluster.nodes), self._chance.randint(*PERMITS))
        faults, weights = zip(*self._faults, strict=True)
        self._chance.choices(faults, weights)[0]()

    # ---- what is hit -----------------------------------------------------------------------------

    def _kill_daemon(self) -> None:
        node = self._chance.choice(self._cluster.nodes)
        self._tally.killed("daemon killed")
        node.daemon.kill()
        self._away()
        node.daemon.start()
        self._until(lambda: bool(node.grants()), "daemon killed", node.daemon)

    def _stop_daemon(self) -> None:
        node = self._chance.choice(self._cluster.nodes)
        before = node.grants()
        self._tally.killed("daemon stopped")
        node.daemon.stop()
        self._away()
        node.daemon.go_on()
        self._until(lambda: (node.grants() or 0) > (before or 0), "daemon stopped", node.daemon)

    def _kill_coordinator(self) -> None:
        one = self._chance.choice(self._cluster.coordinators)
        self._tally.killed("coordinator killed")
        one.kill()
        self._until(self._cluster.leads, "coordinator killed", one)
        self._away()
        one.start()

    def _stop_coordinator(self) -> None:
        one = self._chance.choice(self._cluster.coordinators)
        self._tally.killed("coordinator stopped")
        one.stop()
        self._until(self._cluster.leads, "coordinator stopped", one)
        self._away()
        one.go_on()

    def _kill_etcd(self) -> None:
        self._tally.killed("etcd killed")
        self._cluster.etcd.kill()
        self._away()
        self._cluster.etcd.start()
        self._until(self._cluster.leads, "etcd killed", self._cluster.etcd)

    def _stop_etcd(self) -> None:
        self._tally.killed("etcd stopped")
        self._cluster.etcd.stop()
        self._away()
        self._cluster.etcd.go_on()
        self._until(self._cluster.leads, "etcd stopped", self._cluster.etcd)

    def _kill_program(self) -> None:
        slot = self._chance.choice(self._slots)
        pids = slot.kill()
        if not pids:
            return
        self._tally.killed("program killed")
        for node in self._cluster.nodes:
            self._until(lambda node=node: forgotten(node, pids), "program killed", node.daemon)

    def _kill_peer(self) -> None:
        """One of two that move bytes to each other, in the middle of it."""
        pids = self._chance.choice(self._slots).kill_one(self._chance)
        if not pids:
            return
        self._tally.killed("peer killed")
        for node in self._cluster.nodes:
            self._until(lambda node=node: forgotten(node, pids), "peer killed", node.daemon)

    def _stop_program(self) -> None:
        pids = self._chance.choice(self._slots).pids()
        if not pids:
            return
        pid = self._chance.choice(pids)
        self._tally.killed("program stopped")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGSTOP)
        self._away()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)

    def _poison(self) -> None:
        """Random bytes over the rings of a living program: its daemon gives it up, and it passes through."""
        pid = self._chance.choice(self._slots).pid()
        node = self._chance.choice(self._cluster.nodes)
        if pid is None or not poison(pid, self._chance.randbytes(4096)):
            return
        self._tally.killed("ring poisoned")
        before = node.grants()
        self._until(lambda: (node.grants() or 0) > (before or 0), "ring poisoned", node.daemon)

    def _reload(self) -> None:
        node = self._chance.choice(self._cluster.nodes)
        self._tally.killed("configuration reloaded")
        node.write_config(f'[wire]\nprofile = "{self._chance.choice(sorted(load_profiles()))}"\n')
        self._until(lambda: asked_to_reload(node) is None, "configuration reloaded", node.daemon)

    def _reload_bad(self) -> None:
        node = self._chance.choice(self._cluster.nodes)
        good = node.config.read_bytes()
        self._tally.killed("bad configuration")
        node.config.write_text(node.config.read_text() + self._chance.choice(BAD))
        try:
            self._until(lambda: asked_to_reload(node) == "config", "bad configuration", node.daemon)
        finally:
            node.config.write_bytes(good)

    # ---- and comes back --------------------------------------------------------------------------

    def _go_on(self, node: Node, permits: int) -> None:
        wanted = (node.grants() or 0) + permits
        if not wait_for(lambda: (node.grants() or 0) >= wanted, time.monotonic() + COME_BACK_S):
            self._tally.problem(
                "recovery",
                f"{node.name} gives no {permits} permits in {COME_BACK_S:g} s. Its output: {node.daemon.output()}",
            )

    def _away(self) -> None:
        time.sleep(self._chance.uniform(*DOWN_S))

    def _until(self, serves: Callable[[], bool], what: str, service: Service) -> None:
        began_s = time.monotonic()
        if wait_for(serves, began_s + COME_BACK_S):
            self._tally.recovered(what, time.monotonic() - began_s)
        else:
            self._tally.problem(
                "recovery", f"{what}: {service.name} does not serve again. Its output: {service.output()}"
            )


def forgotten(node: Node, pids: set[int]) -> bool:
    """Whether the daemon holds nothing of these processes any more."""
    status = node.status()
    return status is not None and not any(client.pid in pids for client in status.clients)


def asked_to_reload(node: Node) -> str | None:
    """None when the configuration was taken; otherwise the code of the refusal."""
    try:
        ask(node.control, ReloadRequest(), 2.0)
    except Refused as refused:
        return refused.code
    except Unreachable:
        return "unreachable"
    return None


def poison(pid: int, data: bytes) -> bool:
    """Writes over the first ring of the segment that the process shares with its daemon. False when it has none."""
    ring = _native.LAYOUT["submit.tail"] + _native.SUBMIT_SHARED * _native.SUBMIT_RING_BYTES
    return segment_write(pid, ring, data)

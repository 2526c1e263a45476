"""A load that demonstrates MFS: nodes that prefill, one that stores KV blocks and one that decodes, with deadlines.

    python -m mfsd.playground.load NODE_NUMBER RATE_BYTES_PER_S ADDRESS ...      (the addresses of all nodes)

Runs until it is killed. Every prefill node begins a batch each PERIOD_S: it fetches reusable blocks from the store
(stage 1), runs its layers, each with a collective among the prefill nodes (stage 2), and sends each request's KV to the
decode node (stage 3), whose link is as fast as those of all prefill nodes together. Sizes are shares of what a prefill
node's link carries in a period, so that links are equally busy at every rate.

Short requests have little time and long ones have much, and all KV of a node goes over one connection. If it is sent in
the order in which it is computed, short requests wait behind long ones and are late. If it is sent in the order of
permits, most are in time. Now and then there are two requests so large that one is pruned for the others, and one
whose time is too short in any case.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import threading
import time
from functools import partial
from typing import NamedTuple

from mfsd.client import Flow, Request, Session, Stage, Task
from mfsd.client.batch import Batch
from mfsd.playground.wire import Channel, Link, Queue

DEVICE = "mfs0"
PERIOD_S = 2.0
LAYERS = 4
COMPUTE_S = 0.06
"""Time to compute one layer."""
COLLECTIVE_SHARE = 0.02
"""Size of one layer's collective, as a share of what the link carries in a period."""
PIECE_SHARE = 0.005
"""Largest piece of KV that is submitted and sent at once; a share as in COLLECTIVE_SHARE."""
BACKGROUND_SHARE = 0.05
BACKGROUND_PERIOD_S = 0.5
BATCHES_AT_ONCE = 4
HUGE_EVERY = 6
HOPELESS_EVERY = 5
HOPELESS_S = 0.05
ID_STEP = 1 << 32
"""Distance between the first numbers of two nodes, so that batch and request numbers are unique in the cluster."""


class Kind(NamedTuple):
    """Requests of one kind. Shares are as in COLLECTIVE_SHARE."""

    kv_share: float
    reuse_share: float
    deadline_s: float


SHORT = Kind(kv_share=0.02, reuse_share=0.005, deadline_s=1.2)
LONG = Kind(kv_share=0.28, reuse_share=0.02, deadline_s=6.0)
HUGE = Kind(kv_share=0.6, reuse_share=0.02, deadline_s=2.1)
"""One such request can be in time. Of two at once, one is pruned for the other."""
BATCH = (LONG, LONG, SHORT, SHORT, SHORT, SHORT)
"""The requests of a batch, in the order in which they submit."""


class Roles(NamedTuple):
    """Addresses of the nodes by role. In a small cluster a node has several roles."""

    prefill: list[str]
    store: str
    decode: str


def roles(addresses: list[str]) -> Roles:
    return Roles(addresses[:-2] or addresses[:1], addresses[-2:][0], addresses[-1])


def link_share(number: int, nodes: int) -> int:
    """Returns a node's link rate as a multiple of that of a prefill node."""
    return max(1, nodes - 2) if number == nodes - 1 else 1


class Prefill:
    """A node that computes prompts."""

    def __init__(self, session: Session, link: Link, number: int, own: str, place: Roles, rate_bytes_per_s: int):
        self._session, self._link, self._place = session, link, place
        self._period_bytes = int(rate_bytes_per_s * PERIOD_S)
        self._nic = session.nic(DEVICE, rate_bytes_per_s=rate_bytes_per_s)
        self._identifiers = itertools.count(number * ID_STEP + 1)
        after = place.prefill[(place.prefill.index(own) + 1) % len(place.prefill)]
        self._neighbour = after if after != own else place.store
        self._to_decode = Queue(link, place.decode)
        self._room = threading.Semaphore(BATCHES_AT_ONCE)
        self._chance = random.Random(number)
        self._delay_s = number % len(place.prefill) * PERIOD_S / len(place.prefill) / 2

    def run(self) -> None:
        time.sleep(self._delay_s)
        for number in itertools.count(1):
            began_s = time.monotonic()
            self._room.acquire()
            threading.Thread(target=self._batch, args=(number,), daemon=True).start()
            pause_s = PERIOD_S * self._chance.uniform(0.9, 1.1) - (time.monotonic() - began_s)
            time.sleep(max(0.0, pause_s))

    def _batch(self, number: int) -> None:
        try:
            with contextlib.suppress(OSError):  # the user has killed a node, as the page suggests
                self._run_batch(number)
        finally:
            self._room.release()

    def _run_batch(self, number: int) -> None:
        kinds = list(BATCH)
        if number % HUGE_EVERY == 0:
            kinds[:2] = [HUGE, HUGE]
        if number % HOPELESS_EVERY == 0:
            kinds[0] = LONG._replace(deadline_s=HOPELESS_S)
        now_ns = time.monotonic_ns()
        requests = [self._request(kind, now_ns) for kind in kinds]
        computed = [threading.Event() for _ in range(LAYERS)]
        loaded = [threading.Event() for _ in range(LAYERS)]
        batch_id = next(self._identifiers)
        compute_ns = int(COMPUTE_S * LAYERS * 1e9)
        with self._session.batch(batch_id, layers=LAYERS, requests=requests, compute_ns=compute_ns) as batch:
            workers = [threading.Thread(target=self._load, args=(batch, requests, loaded), daemon=True)]
            workers += [
                threading.Thread(target=self._ship, args=(batch, request, computed), daemon=True)
                for request in requests
            ]
            for worker in workers:
                worker.start()
            self._compute(batch, loaded, computed)
            for worker in workers:
                worker.join()

    def _request(self, kind: Kind, now_ns: int) -> Request:
        kv, reuse = (int(share * self._period_bytes / LAYERS) for share in (kind.kv_share, kind.reuse_share))
        store, decode = self._place.store, self._place.decode
        flows = [Flow(Stage.P2D, decode, kv, self._nic, layer) for layer in range(LAYERS)]
        flows += [Flow(Stage.REUSE, store, reuse, self._nic, layer, incoming=True) for layer in range(LAYERS)]
        budget_ns = int(kind.deadline_s * 1e9)
        return Request(next(self._identifiers), deadline_ns=now_ns + budget_ns, budget_ns=budget_ns, flows=tuple(flows))

    def _load(self, batch: Batch, requests: list[Request], loaded: list[threading.Event]) -> None:
        """Stage 1: fetches the blocks that the store has, layer by layer."""
        try:
            channel = self._link.connect(self._place.store)
            for layer in range(LAYERS):
                for request in requests:
                    size = next(f.size_bytes for f in request.flows if f.incoming and f.layer == layer)
                    with self._task(request, size, Stage.REUSE, batch, layer, self._place.store, incoming=True):
                        channel.pull(size)
                loaded[layer].set()
        except OSError:
            pass
        finally:
            for event in loaded:
                event.set()

    def _compute(self, batch: Batch, loaded: list[threading.Event], computed: list[threading.Event]) -> None:
        """Computes the layers. The collective of each (stage 2) blocks the next layer."""
        try:
            channel = self._link.connect(self._neighbour)
            size = int(COLLECTIVE_SHARE * self._period_bytes)
            for layer in range(LAYERS):
                loaded[layer].wait()
                batch.layer(layer)
                time.sleep(COMPUTE_S)
                with self._session.submit(size, stage=Stage.COLLECTIVE, nic=self._nic, batch=batch, layer=layer):
                    channel.push(size)
                computed[layer].set()
        finally:
            for event in computed:
                event.set()

    def _ship(self, batch: Batch, request: Request, computed: list[threading.Event]) -> None:
        """Stage 3: sends the KV of each layer in pieces, as soon as the layer is computed."""
        sent, posted = threading.Semaphore(0), 0
        for layer in range(LAYERS):
            computed[layer].wait()
            tasks = [
                (size, self._task(request, size, Stage.P2D, batch, layer, self._place.decode))
                for size in self._pieces(request.flows[layer].size_bytes)
            ]
            for size, task in tasks:
                task.wait()
                self._to_decode.post(size, partial(_over, task, sent))
            posted += len(tasks)
        for _ in range(posted):
            sent.acquire()
        batch.done(request.request_id)

    def _pieces(self, size: int) -> list[int]:
        most = int(PIECE_SHARE * self._period_bytes)
        return [min(most, size - at) for at in range(0, size, most)]

    def _task(
        self,
        request: Request,
        size: int,
        stage: Stage,
        batch: Batch,
        layer: int,
        peer: str,
        incoming: bool = False,
    ) -> Task:
        return self._session.submit(
            size,
            stage=stage,
            nic=self._nic,
            request_id=request.request_id,
            deadline_ns=request.deadline_ns,
            batch=batch,
            layer=layer,
            peer=peer,
            incoming=incoming,
        )


def _over(task: Task, sent: threading.Semaphore) -> None:
    task.complete()
    sent.release()


def background(session: Session, link: Link, peer: str, rate_bytes_per_s: int) -> None:
    """Sends traffic without a deadline: copies of the store, or what decoding writes back."""
    nic = session.nic(DEVICE, rate_bytes_per_s=rate_bytes_per_s)
    size = int(rate_bytes_per_s * BACKGROUND_PERIOD_S * BACKGROUND_SHARE)
    channel: Channel | None = None
    while True:
        try:
            channel = channel or link.connect(peer)
            with session.submit(size, stage=Stage.BACKGROUND, nic=nic, peer=peer):
                channel.push(size)
        except OSError:
            channel = None
        time.sleep(BACKGROUND_PERIOD_S)


def main(number: int, rate_bytes_per_s: int, addresses: list[str]) -> None:
    own, place = addresses[number], roles(addresses)
    link = Link(own, rate_bytes_per_s * link_share(number, len(addresses)))
    name = "prefill" if own in place.prefill else "store" if own == place.store else "decode"
    with Session.open(process=name) as session:
        if own in place.prefill:
            Prefill(session, link, number, own, place, rate_bytes_per_s).run()
        else:
            background(session, link, place.decode if own == place.store else place.store, rate_bytes_per_s)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

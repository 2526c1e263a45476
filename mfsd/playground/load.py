"""A load that shows: each node sends the KV of made-up requests to the next one, with deadlines, under its daemon.

    python -m mfsd.playground.load NODE_NUMBER ADDRESS PEER_ADDRESS RATE_BYTES_PER_S

Runs until it is killed. A batch of REQUESTS requests begins every PERIOD_S; each sends MESSAGE_BYTES for each of LAYERS
layers over TCP, when the daemon permits it. Together that is about a third of a link.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import sys
import threading
import time

from mfsd.client import Flow, Request, Session, Stage
from mfsd.client.batch import Batch

PORT = 7999
DEVICE = "mfs0"
LAYERS, REQUESTS = 4, 2
LINK_SHARE = 0.3
PERIOD_S = 0.25
DEADLINES_S = (0.2, 0.5)
SO_MAX_PACING_RATE = 47
ID_STEP = 1 << 32
"""Between the batches and requests of neighbouring nodes: numbers are unique in the cluster."""


def sink(listener: socket.socket) -> None:
    """Takes what others send, and forgets it."""

    def drain(connection: socket.socket) -> None:
        with contextlib.closing(connection), contextlib.suppress(OSError):
            while connection.recv(1 << 18):
                pass

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=drain, args=(connection,), daemon=True).start()


def connect(peer: str, rate_bytes_per_s: int) -> socket.socket:
    """A connection that sends no faster than the device would; waits for the peer."""
    while True:
        sending = socket.socket()
        sending.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, min(rate_bytes_per_s, 2**32 - 2))
        try:
            sending.connect((peer, PORT))
        except OSError:
            sending.close()
            time.sleep(PERIOD_S)
        else:
            return sending


class Sender:
    """Plays one node's prefill: batches of requests whose KV goes to the peer."""

    def __init__(self, session: Session, number: int, peer: str, rate_bytes_per_s: int) -> None:
        self._session, self._peer = session, peer
        self._nic = session.nic(DEVICE, rate_bytes_per_s=rate_bytes_per_s)
        self._message = bytes(int(rate_bytes_per_s * LINK_SHARE * PERIOD_S / (LAYERS * REQUESTS)))
        self._identifiers = itertools.count(number * ID_STEP + 1)

    def batch(self, sending: socket.socket) -> None:
        """One batch from begin to end: everything is asked for at once, and sent as it is permitted."""
        now_ns, size = time.monotonic_ns(), len(self._message)
        requests = [
            Request(
                next(self._identifiers),
                deadline_ns=now_ns + int(deadline_s * 1e9),
                flows=tuple(Flow(Stage.P2D, self._peer, size, self._nic, layer) for layer in range(LAYERS)),
            )
            for deadline_s in DEADLINES_S[:REQUESTS]
        ]
        with self._session.batch(next(self._identifiers), layers=LAYERS, requests=requests) as batch:
            for layer in range(LAYERS):
                batch.layer(layer)
                self._send_layer(sending, batch, requests, layer)

    def _send_layer(self, sending: socket.socket, batch: Batch, requests: list[Request], layer: int) -> None:
        tasks = [
            self._session.submit(
                len(self._message),
                stage=Stage.P2D,
                nic=self._nic,
                request_id=request.request_id,
                deadline_ns=request.deadline_ns,
                batch=batch,
                layer=layer,
                peer=self._peer,
            )
            for request in requests
        ]
        for task in tasks:
            with task:
                sending.sendall(self._message)


def main(number: int, address: str, peer: str, rate_bytes_per_s: int) -> None:
    listener = socket.create_server((address, PORT))
    threading.Thread(target=sink, args=(listener,), daemon=True).start()
    with Session.open(process="playground-load") as session:
        sender = Sender(session, number, peer, rate_bytes_per_s)
        while True:
            with connect(peer, rate_bytes_per_s) as sending, contextlib.suppress(OSError):
                while True:
                    began_s = time.monotonic()
                    sender.batch(sending)
                    time.sleep(max(0.0, PERIOD_S - (time.monotonic() - began_s)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))

"""A program that does to its daemon and to the others what it can: writes nonsense into its own segment, says that it
has collectives, and keeps permits. Attaches again when it was given up.

Its pauses are the attacks themselves: how often a byte comes, how long a permit is kept. Nothing waits by them.

Prints one JSON line, the number of its attacks, and exits 0 when its time is over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mfsd._native import LAYOUT, Client, Stage

PROCESS = "hostile"
EACH_S = 1.0
"""For one attack."""
MESSAGE_BYTES = 256 << 10
PARTS = ("gate", "usage", "batch", "submit", "submit_slot", "grant", "request", "demand")


def segment_write(pid: int | str, offset: int, data: bytes) -> bool:
    """Into the segment that the process shares with its daemon. False when it has none."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "memfd:mfs-segment" in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
                    memory.seek(start + offset)
                    memory.write(data[: max(0, end - start - offset)])
                return True
    return False


class Hostile:
    def __init__(self, client: Client, nic: int, peer: int, chance: random.Random) -> None:
        self._client, self._nic, self._peer, self._chance = client, nic, peer, chance

    def attack(self) -> str:
        attacks: tuple[Callable[[float], None], ...] = (
            self._nonsense,
            self._a_byte_now_and_then,
            self._a_gigabyte_and_a_byte,
            self._dead_peer,
            self._permits_kept,
            self._flood,
            self._messages,
        )
        attack = self._chance.choice(attacks)
        attack(time.monotonic() + EACH_S)
        return attack.__name__

    def _submit(self, size_bytes: int) -> int | None:
        try:
            return self._client.submit(size_bytes, stage=Stage.P2D, nic=self._nic, peer=self._peer, queue=1)
        except BlockingIOError:
            return None

    def _nonsense(self, until_s: float) -> None:
        while time.monotonic() < until_s and self._client.alive():
            offset = LAYOUT[self._chance.choice(PARTS)] + self._chance.randrange(4096)
            segment_write("self", offset, self._chance.randbytes(self._chance.choice((1, 8, 64, 1024))))
            time.sleep(0.01)

    def _a_byte_now_and_then(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            self._client.count_posted(self._nic, Stage.COLLECTIVE, 1)
            time.sleep(0.03)

    def _a_gigabyte_and_a_byte(self, until_s: float) -> None:
        self._submit(1 << 30)
        while time.monotonic() < until_s:
            self._client.count_posted(self._nic, Stage.COLLECTIVE, 1)
            time.sleep(0.1)

    def _dead_peer(self, until_s: float) -> None:
        for _ in range(10):
            self._submit(MESSAGE_BYTES)
        while time.monotonic() < until_s:
            task = self._submit(1024)
            if task is not None:
                self._client.complete(task)
            time.sleep(0.001)

    def _permits_kept(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            for _ in range(4):
                self._submit(MESSAGE_BYTES)
            time.sleep(0.04)
            for task, _ in self._client.permits(64):
                self._client.complete(task)

    def _flood(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            for _ in range(500):
                self._submit(1)
            for task, _ in self._client.permits(500):
                self._client.complete(task)
            time.sleep(0.01)

    def _messages(self, until_s: float) -> None:
        """As many as it can send: tasks that are given up at once, and a batch whose layer changes."""
        batch = self._client.batch_begin(1, 500)
        while time.monotonic() < until_s:
            for layer in range(500):
                if (task := self._submit(1)) is not None:
                    self._client.cancel(task)
                self._client.batch_layer(batch, layer)
        self._client.batch_end(batch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--guid", type=lambda text: int(text, 0), required=True)
    parser.add_argument("--peer", type=lambda text: int(text, 0), required=True)
    parser.add_argument("--seconds", type=float, default=15.0)
    asked = parser.parse_args()
    until_s, attacks, refused, chance = time.monotonic() + asked.seconds, 0, "", random.Random(os.getpid())
    while time.monotonic() < until_s:
        try:
            with Client.attach(asked.socket, process=PROCESS) as client:
                nic = client.nic("mfs0", asked.guid)
                while time.monotonic() < until_s and client.alive():
                    attacks += 1
                    Hostile(client, nic, asked.peer, chance).attack()
        except OSError as error:  # no daemon now, or it has given this program up
            refused = str(error)
            time.sleep(0.1)
    print(json.dumps({"attacks": attacks, "last_refused": refused}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

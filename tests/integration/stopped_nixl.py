"""An agent of NIXL that writes to two peers, of which one is stopped in the middle.

    stopped_nixl.py BACKEND FILE END    END: what becomes of that peer then, "continued" or "killed"

The peers are processes of their own. While one is stopped (SIGSTOP) every write to the other must arrive, and one of
them while the daemon holds earlier ones to the stopped peer. Then FILE.half is written, and the peer's end comes at
FILE.on. When all writes have ended and their handles are released, FILE.rest is written, and the program ends at
FILE.off. Exits 0 when every byte is as it should be: as sent where NIXL says that a write is done, as sent or as before
where it failed, and untouched elsewhere. Prints one JSON line: how those writes to the stopped peer ended that were
started around the stop, and how many were started and arrived in all. With ADAPTED=1 the agents are the adapter's.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy

from bench.programs.nixl_kv import Sleeping
from mfsd.node.address import control_beside
from mfsd.node.control import StatusReply, StatusRequest
from mfsd.node.control_client import ask
from mfsd.playground.sandbox import PR_SET_PDEATHSIG
from tests.support.waiting import TIMEOUT_S, eventually

PIECE = 256 << 10
PIECES = 64
WARM = range(8)
"""Written to both peers while both run."""
IN_THE_MIDDLE, AFTER = range(8, 12), range(12, 16)
"""Started to one just before it is stopped, and just after that."""
LATER = [range(at, at + 10) for at in (16, 26, 36, 46)]
"""And when the daemon knows that it does not answer, until one to the other peer has gone by. What follows is not
written to it."""
MEANWHILE = range(8, PIECES)
"""Written to the other one meanwhile, and again at the end."""
DEPTH = 4
SEED = 1


def pattern() -> Any:
    """What is sent: no byte is as before."""
    return numpy.random.default_rng(SEED).integers(1, 256, PIECE * PIECES, dtype=numpy.uint8)


def part(area: Any, at: int) -> Any:
    return area[at * PIECE : (at + 1) * PIECE]


def agent_of(name: str, backend: str, area: Any) -> Any:
    if os.environ.get("ADAPTED"):
        import mooncake_adapter

        mooncake_adapter.install()
    from nixl_cu12 import _api as api

    api.nixlBind = Sleeping(api.nixlBind)
    agent = api.nixl_agent(name, api.nixl_agent_config(backends=[backend]))
    agent.register_memory([(area.ctypes.data, len(area), 0, "")], "DRAM")
    return agent


def verdict(found: Any, sent: Any) -> str:
    if (found == sent).all():
        return "whole"
    if not found.any():
        return "blank"
    return "part" if ((found == sent) | (found == 0)).all() else "wrong"


def status() -> StatusReply:
    reply = ask(control_beside(Path(os.environ["MFS_SOCKET"])), StatusRequest(), TIMEOUT_S)
    assert isinstance(reply, StatusReply)
    return reply


def held_bytes() -> int:
    """Of this process: what the daemon has given no permit yet."""
    return sum(client.held_bytes for client in status().clients if client.pid == os.getpid())


def written_off() -> int:
    """How often something that was permitted did not end in time."""
    return status().events["failed_open"]["written_off"]


def serve(name: str, backend: str, pipe: Connection) -> None:
    """A peer: says where its memory is, and what is in it as often as it is asked."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a stopped process would stay
    area, sent = numpy.zeros(PIECE * PIECES, dtype=numpy.uint8), pattern()
    agent = agent_of(name, backend, area)
    pipe.send((agent.get_agent_metadata(), area.ctypes.data))
    while pipe.recv():
        pipe.send([verdict(part(area, at), part(sent, at)) for at in range(PIECES)])
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other


class Peer:
    """A peer's process, and the writes to it."""

    def __init__(self, name: str, backend: str, own: Any, area: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(name, backend, theirs), daemon=True)
        self.process.start()
        self.name, self._own, self._area = name, own, area
        metadata, self._address = self._answer()
        own.add_remote_agent(metadata)
        self.handles: dict[int, Any] = {}
        """Under way, by what they write."""
        self.ends: dict[int, str] = {}
        """By what they wrote: the last answer about it."""
        self.started = self.arrived = 0

    def _answer(self) -> Any:
        assert self._pipe.poll(TIMEOUT_S), f"{self.name} does not answer"
        return self._pipe.recv()

    def start(self, at: int) -> None:
        self.started += 1
        lists = [
            self._own.get_xfer_descs([(base + at * PIECE, PIECE, 0)], "DRAM")
            for base in (self._area.ctypes.data, self._address)
        ]
        try:
            handle = self._own.initialize_xfer("WRITE", *lists, self.name)
            self._own.transfer(handle)
        except Exception as error:  # a peer that is gone: NIXL's own answer
            self.ends[at] = type(error).__name__
            return
        self.handles[at] = handle

    def check(self) -> int:
        """Asks how those under way stand, as an engine does every step; how many still are."""
        for at, handle in list(self.handles.items()):
            try:
                state = self._own.check_xfer_state(handle)
            except Exception as error:
                state = type(error).__name__
            if state != "PROC":
                self.ends[at] = state
                self.arrived += state == "DONE"
                self._own.release_xfer_handle(self.handles.pop(at))
        return len(self.handles)

    def write(self, pieces: Iterable[int], beside: Peer | None = None) -> None:
        """Some at a time, until all have arrived. `beside` is asked about its own meanwhile."""
        for at in pieces:
            self.start(at)
            self._eventually_at_most(DEPTH - 1, beside)
        self._eventually_at_most(0, beside)
        assert {self.ends[at] for at in pieces} == {"DONE"}, self.ends

    def _eventually_at_most(self, most: int, beside: Peer | None) -> None:
        def there() -> bool:
            if beside:
                beside.check()
            return self.check() <= most

        eventually(there, f"a write to {self.name}", pause_s=0.0005)

    def found(self) -> list[str]:
        self._pipe.send(True)
        return list(self._answer())

    def signal(self, number: int, *states: str) -> None:
        """Until the process has one of these states."""
        os.kill(self.process.pid or 0, number)
        eventually(lambda: self.state() in states, f"{self.name} in state {' or '.join(states)}")

    def state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def end(self) -> None:
        self._pipe.send(False)
        self.process.join(TIMEOUT_S)


def goes_by(free: Peer, still: Peer, at: int, pieces: Iterable[int]) -> bool:
    """One to the free peer arrives while earlier ones to the stopped one are held. On a machine that is so slow that
    their holds end meanwhile, that cannot be seen; then it is to be tried again."""
    for piece in pieces:
        still.start(piece)
    free.write([at], beside=still)
    return held_bytes() > 0


def main(backend: str, place: str, end: str) -> None:
    area = pattern()
    own = agent_of("writer", backend, area)
    free, still = (Peer(name, backend, own, area) for name in ("free", "still"))
    for peer in (free, still):
        peer.write(WARM)

    for at in IN_THE_MIDDLE:
        still.start(at)
    still.signal(signal.SIGSTOP, "T")
    before = written_off()
    for at in AFTER:
        still.start(at)
    eventually(lambda: still.check() and written_off() > before, "the end of the daemon's patience", pause_s=0.01)
    gone_by = any(goes_by(free, still, at, pieces) for at, pieces in zip(MEANWHILE, LATER, strict=False))
    assert gone_by, "what went to the other peer waited each time until nothing was held any more"
    free.write(MEANWHILE, beside=still)
    assert still.state() == "T" and still.check(), f"{still.state()}, {still.ends}"
    assert free.found() == ["whole"] * PIECES
    Path(place + ".half").touch()
    eventually(lambda: still.check() < 0 or Path(place + ".on").exists(), "the word to go on", pause_s=0.0005)

    if end == "killed":
        still.signal(signal.SIGKILL, "Z")
    else:
        still.signal(signal.SIGCONT, "S", "R")
    eventually(lambda: not still.check(), "the ends of all writes", pause_s=0.0005)
    ends = Counter(state for at, state in still.ends.items() if at not in WARM)
    free.write(MEANWHILE)
    if end == "continued":
        found = still.found()
        for at, one in enumerate(found):
            right = ("whole",) if still.ends.get(at) == "DONE" else ("whole", "part", "blank")
            assert one in (right if at in still.ends else ("blank",)), f"piece {at}: {one}, {still.ends.get(at)}"
        still.write(WARM)
    Path(place + ".rest").touch()
    eventually(Path(place + ".off").exists, "the word to end")
    totals = {"started": free.started + still.started, "arrived": free.arrived + still.arrived}
    print(json.dumps({"ends": ends, **totals}), flush=True)
    free.end()
    if end == "continued":
        still.end()
    os._exit(0)  # at exit the wheel's libnl and the system's fall over each other


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # else it would wait for a peer that is stopped

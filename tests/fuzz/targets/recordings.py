"""What `mfsctl trace record` receives from a daemon, and the files that `mfsctl trace merge` reads."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from mfsd.node.control import RecordStarted
from mfsd.node.events import Kind, decode
from mfsd.observe.perfetto import NotATrace, document, merge, read
from mfsd.observe.recording import Recorded
from tests.fuzz.inputs import BETWEEN, messages
from tests.fuzz.targets.files import one_line

Check = Callable[[bytes], None]

EVENT = struct.Struct("=QQQQQQIIHBBBBBB")
"""Of csrc/include/mfs/trace.h, written here once more: the reader is what is tested."""


def event(kind: Kind, time_ns: int, *, task: int = 0, request: int = 0, batch: int = 0, value: int = 0) -> bytes:
    return EVENT.pack(time_ns, task, 4096, request, batch, 10**9 * bool(request), 1, value, 2, kind, 3, 1, 1, 4, 2)


EVENTS = (
    b"".join(event(kind, 1000 + kind, task=5, request=7, batch=9) for kind in Kind if kind <= Kind.DROP),
    b"".join(event(kind, 1000 + kind, batch=9, value=3) for kind in Kind if Kind.DROP < kind <= Kind.BATCH_END),
    b"".join(event(kind, 1000 + kind, request=7, batch=9, value=1) for kind in Kind if kind > Kind.BATCH_END),
    event(Kind.SUBMIT, 1, task=1) + event(Kind.PERMIT, 2, task=1) + event(Kind.COMPLETE, 3, task=1),
    event(Kind.SUBMIT, 2**64 - 1, task=2**64 - 1) + event(Kind.CANCEL, 0, task=2**64 - 1),
)


def recorded(data: bytes, node: str = "node-a") -> Recorded:
    """ValueError: the bytes are no events."""
    started = RecordStarted(
        node=node, pid=1, epoch=2, monotonic_ns=10**9, realtime_ns=1_800_000_000 * 10**9, uncertainty_ns=50
    )
    return Recorded(started, events=decode(data), processes={1: "engine"}, units={1: "prefill"}, nics={0: "mlx5_0"})


@contextlib.contextmanager
def events(folder: Path) -> Iterator[Check]:
    """A daemon of another version, or one that has lost its mind."""

    def check(data: bytes) -> None:
        try:
            reported = recorded(data)
        except ValueError:
            return
        for request, batch in ((0, 0), (7, 0), (0, 9)):
            written = msgspec.json.encode(document([reported], request, batch))
            assert msgspec.json.encode(read(written)) == written

    yield check


def files() -> tuple[bytes, ...]:
    one = [msgspec.json.encode(document([recorded(data)])) for data in EVENTS]
    both = msgspec.json.encode(document([recorded(EVENTS[0]), recorded(EVENTS[1], "node-b")]))
    return *one, both, BETWEEN.join(one[:3])


@contextlib.contextmanager
def trace_files(folder: Path) -> Iterator[Check]:
    good = [read(files()[0])]

    def check(data: bytes) -> None:
        documents = []
        for message in messages(data)[:8]:
            try:
                documents.append(read(message))
            except NotATrace as error:
                one_line(error)
        for some in ([*good, *documents], documents):
            if some:
                merged = merge(some)
                assert len(merged.traceEvents) == sum(len(d.traceEvents) for d in some)
                assert [n.pid for n in merged.mfs.nodes] == list(range(1, len(merged.mfs.nodes) + 1))
                assert all(n.node.isprintable() for n in merged.mfs.nodes)
                read(msgspec.json.encode(merged))

    yield check

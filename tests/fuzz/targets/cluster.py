"""The messages between daemons and coordinators: any sequence of decoded ones, in any state of the receiver."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import grpc.aio
from google.protobuf.message import DecodeError

from mfsd.coordinator.election import Alone
from mfsd.coordinator.relay import REPLY_BYTES_MAX
from mfsd.coordinator.service import Service
from mfsd.coordinator.settings import Settings
from mfsd.node.link_interface import BatchSummary, Identity, LinkSettings, OrderChange, PortDemand, RequestSummary
from mfsd.node.link_state import LinkState
from mfsd.node.link_stream import LinkStream, _Ended, _Redirect
from mfsd.node.outlook import Promise
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.call import CallEnded
from mfsd.proto.wire import PROTOCOL, address_problem, is_name
from tests.fuzz.inputs import BETWEEN, messages

Check = Callable[[bytes], None]

ANSWER_S = 100.0
S = 1_000_000_000


class Lines:
    """A log that keeps nothing, but checks each line."""

    def info(self, event: str, **values: object) -> None:
        assert event.isprintable()

    warning = error = debug = info


def decoded(kind: type[pb.FromNode] | type[pb.ToNode], data: bytes) -> list[pb.FromNode | pb.ToNode]:
    """What gRPC would hand over; what it cannot read ends a stream before any code sees it."""
    found: list[pb.FromNode | pb.ToNode] = []
    for message in messages(data)[:60]:
        with contextlib.suppress(DecodeError):
            found.append(kind.FromString(message))
    return found


# ---- what the coordinator reads ------------------------------------------------------------------


def _batch(batch_id: int, *requests: int, left_ns: int = 2 * S) -> pb.Batch:
    return pb.Batch(
        batch_id=batch_id,
        unit="prefill-0",
        compute_left_ns=S,
        requests=[
            pb.Request(request_id=r, budget_left_ns=left_ns, port=[0, 1], size_bytes=[10**8, 10**8]) for r in requests
        ],
        port=[0],
        size_bytes=[10**7],
    )


def _from_node() -> tuple[bytes, ...]:
    ports = [pb.Port(number=0, name="10.0.0.1/in", rate_bytes_per_s=10**9), pb.Port(number=1, name="10.0.0.1/out")]
    hello = pb.Hello(protocol=PROTOCOL, protocol_oldest=1, node="n1", version="1", epoch=3, ports=ports, outlook=True)
    later = pb.Hello(protocol=PROTOCOL, protocol_oldest=1, node="n1", authority="alone", term=2**63, ports=ports)
    full = pb.Report(
        term=TERM,
        ports=[pb.Port(number=2, name="10.0.0.2/in")],
        arrived=[_batch(1, 11, 12), _batch(2, 21, left_ns=-5)],
        updated=[_batch(1, 11)],
        departed=[2],
        loads=[
            pb.Load(port=1, rho=0.5, used=pb.Used(permille=[500, 2**32 - 1] * 6, passed_permille=2**31)),
            pb.Load(port=9, rho=math.nan),
        ],
        routed=[pb.Routing(unit="prefill-0", port=[0, 2], size_bytes=[5, 2**63])],
        waiting=[
            pb.Waiting(request_id=5, budget_left_ns=S, rank=1, tokens_left=900, port=[2], size_bytes=[10**9], engine=1),
            pb.Waiting(request_id=6, rank=2**32 - 1, relegated=True, port=[0, 2], size_bytes=[2**64 - 1, 1]),
        ],
        waits_no_more=[5, 2**64 - 1],
        tiers=pb.Tiers(
            engines=2,
            unreadable=1,
            tiers=[
                pb.RequestTier(name="chat", met=9, late=1, waiting=3, engines=2, policies={"fit": 1, "first come": 1}),
                pb.RequestTier(name="batch", no_deadline=2**64 - 1, aborted=1, lost=2**64 - 1, policies={"edf": 2**63}),
            ],
        ),
    )
    asked = pb.Hello(protocol=PROTOCOL, protocol_oldest=1, node="n3", version="1", ports=ports, answers=True)
    answer = pb.Answer(id=1, reply=b'{"reply":"flows"}')
    steps: list[list[pb.Hello | pb.Report | pb.Echo | pb.Answer]] = [
        [hello, pb.Report(term=TERM, snapshot_end=True), full, pb.Report(term=TERM, departed=[1])],
        [hello, full, pb.Report(term=TERM, snapshot_end=True), pb.Echo(stamp_ns=5, epoch=2), full],
        [later, pb.Report(term=2**63 + 1, snapshot_end=True), full],
        [pb.Hello(protocol=9, protocol_oldest=9, node="n2")],
        [pb.Echo(stamp_ns=1), hello],
        [asked, answer, pb.Answer(id=2, last=True), pb.Answer(id=1, reply=b"x" * 1000, last=True), answer],
    ]
    return tuple(BETWEEN.join(_envelope(step).SerializeToString() for step in story) for story in steps)


def _envelope(message: pb.Hello | pb.Report | pb.Echo | pb.Answer) -> pb.FromNode:
    if isinstance(message, pb.Hello):
        return pb.FromNode(hello=message)
    if isinstance(message, pb.Answer):
        return pb.FromNode(answer=message)
    return pb.FromNode(report=message) if isinstance(message, pb.Report) else pb.FromNode(echo=message)


TERM = 1_000_000
FROM_NODE = _from_node()


class Turn:
    """Lets the loop go on with others once, as a read from a socket does."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Stream:
    """What gRPC gives a coordinator for one daemon's stream."""

    def __init__(self, received: list[pb.FromNode | pb.ToNode], *, ends: bool = True) -> None:
        self._received = received
        self._ends = ends
        self.sent: list[pb.ToNode] = []
        self.read_all = asyncio.Event()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> object:
        await Turn()
        if self._received:
            return self._received.pop(0)
        self.read_all.set()
        if not self._ends:
            await asyncio.Event().wait()
        return grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.sent.append(pb.ToNode.FromString(message))


async def _tell_coordinator(data: bytes) -> None:
    settings = Settings(listen="127.0.0.1:0", advertise="127.0.0.1:1", version="fuzz")
    electorate = Alone("127.0.0.1:1", lambda: TERM)
    service = Service(settings, electorate, Lines())
    reported = decoded(pb.FromNode, data)
    half = len(reported) // 2
    waits, honest = Stream(decoded(pb.FromNode, data), ends=False), Stream(decoded(pb.FromNode, FROM_NODE[1]))
    waiting = asyncio.create_task(service.link(None, waits))  # type: ignore[arg-type]
    read = asyncio.create_task(waits.read_all.wait())
    assert (await asyncio.wait({waiting, read}, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED))[0]
    read.cancel()
    leading = asyncio.create_task(electorate.run(service.role_changed))  # with a stream that stood by until now
    asked = asyncio.create_task(_asked(service))
    streams = [honest, Stream(reported), Stream(reported[half:])]
    await asyncio.gather(*(asyncio.wait_for(service.link(None, stream), ANSWER_S) for stream in streams))  # type: ignore[arg-type]
    assert not leading.done(), leading.exception()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert service.cluster is not None
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    service.cluster.remember(2**60)
    seen = service.seen(0, 360, 1)
    seen.SerializeToString()
    names = [node.node for node in seen.nodes] + [batch.unit for batch in seen.batches]
    for name in [*names, *(port.name for node in seen.nodes for port in node.ports)]:
        assert is_name(name), name
    service.cluster.tick(2**60)
    assert not service.sessions
    for stream in (*streams, waits):
        for message in stream.sent:
            if message.WhichOneof("kind") == "refusal":
                assert message.refusal.reason
    # the next daemon is served all the same
    honest = Stream(decoded(pb.FromNode, FROM_NODE[1].replace(b"n1", b"n9")))
    await asyncio.wait_for(service.link(None, honest), ANSWER_S)  # type: ignore[arg-type]
    assert honest.sent and honest.sent[0].WhichOneof("kind") == "welcome"
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def _asked(service: Service) -> None:
    """An operator's question, open all the while."""
    async with contextlib.aclosing(service.questions.ask(pb.AskRequest(request=b"?"))) as replies:
        async for reply in replies:
            assert len(reply.reply) <= REPLY_BYTES_MAX


@contextlib.contextmanager
def coordinator(_folder: Path) -> Iterator[Check]:
    with Runner() as runner:
        yield lambda data: runner.run(_tell_coordinator(data))


class Runner:
    """asyncio.Runner came with Python 3.11."""

    def __enter__(self) -> Runner:
        self._loop = asyncio.new_event_loop()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    def run(self, work: object) -> object:
        return self._loop.run_until_complete(work)  # type: ignore[arg-type]


# ---- what the daemon reads -----------------------------------------------------------------------


def _to_node() -> tuple[bytes, ...]:
    welcome = pb.ToNode(welcome=pb.Welcome(protocol=PROTOCOL, authority="etcd-1", term=5, heartbeat_ns=S))
    order = pb.ToNode(
        order=pb.Order(
            term=5,
            epoch=1,
            snapshot=True,
            batch_id=[1, 2, 77],
            key=[-5, 2**62, 3],
            pruned=[pb.Pruned(batch_id=1, request_id=11, for_batch=2, port="10.0.0.1/in")],
        )
    )
    change = pb.ToNode(
        order=pb.Order(
            term=5,
            epoch=2,
            batch_id=[2],
            key=[-9],
            restored_batch_id=[1],
            restored_request_id=[11],
            refused=[pb.RefusedBatch(batch_id=1, reason="the batch has the same request twice")],
        )
    )
    beat = pb.ToNode(heartbeat=pb.Heartbeat(term=5, epoch=2, stamp_ns=9))
    again = pb.ToNode(welcome=pb.Welcome(protocol=PROTOCOL, authority="etcd-1", term=6, heartbeat_ns=2**64 - 1))
    standby = pb.ToNode(standby=pb.Standby(leader="", authority="etcd-1", term=5, heartbeat_ns=S))
    other = pb.ToNode(standby=pb.Standby(leader="127.0.0.1:1", term=5))
    refusal = pb.ToNode(refusal=pb.Refusal(code=pb.Refusal.REPLACED, reason="node a has connected again"))
    question = pb.ToNode(question=pb.Question(id=3, request=b'{"request":"flows","version":1}'))
    enough = pb.ToNode(question=pb.Question(id=3, end=True))
    promises = pb.ToNode(
        promises=pb.Promises(
            term=5, port=[0, 1, 2**32 - 1], owed_ns=[2**64 - 1, 0, 5], rate_bytes_per_s=[0, 2**64 - 1, 1]
        )
    )
    stories = [
        [welcome, promises, order, promises, beat],
        [welcome, question, order, enough, question],
        [welcome, order, beat, change],
        [standby, welcome, order, again, change, order],
        [welcome, other],
        [refusal],
        [beat, order, welcome, change, beat],
    ]
    return tuple(BETWEEN.join(message.SerializeToString() for message in story) for story in stories)


TO_NODE = _to_node()


class Promised:
    """Holds what is said of ports to what the outlook page can take."""

    def promised(self, promises: Mapping[str, Promise], ttl_ns: int) -> None:
        self.confirmed(ttl_ns)
        assert all(0 <= p.owed_ns < 2**63 and 0 <= p.rate_bytes_per_s < 2**64 for p in promises.values())

    def confirmed(self, ttl_ns: int) -> None:
        assert 0 <= ttl_ns <= 60 * S

    def forgotten(self) -> None: ...


class Listener:
    """Holds every order to the promises of :class:`mfsd.node.link.OrderChange`."""

    def __init__(self) -> None:
        self.term = 0

    def order(self, change: OrderChange) -> None:
        ranks = list(change.ranks.values())
        assert len(set(ranks)) == len(ranks)
        assert all(0 <= rank < 2 for rank in ranks), "of this node's batches, of which there are two"
        assert set(change.ranks) <= {1, 2}
        assert not set(change.pruned_added) & set(change.pruned_removed)

    def order_lost(self) -> None:
        pass


class Asked:
    """Remembers which questions are open."""

    def __init__(self) -> None:
        self.open: set[int] = set()

    def asked(self, question_id: int, request: bytes) -> None:
        self.open.add(question_id)

    def unasked(self, question_id: int) -> None:
        self.open.discard(question_id)

    def forgotten(self) -> None:
        self.open.clear()


class Call:
    """A daemon's end of a stream."""

    free = True

    def __init__(self, received: list[bytes]) -> None:
        self._received = received

    async def read(self, limit_s: float) -> bytes:
        assert 0 < limit_s < 60
        await Turn()
        if not self._received:
            raise CallEnded("over")
        return self._received.pop(0)

    async def write(self, message: bytes) -> None:
        pb.FromNode.FromString(message)

    def put(self, message: bytes) -> None:
        pb.FromNode.FromString(message)


async def _tell_daemon(data: bytes) -> None:
    settings = LinkSettings(addresses=("127.0.0.1:1",))
    state = LinkState(Identity("n1", "fuzz", 1), {"10.0.0.1/in": 10**9}, settings.ttl_ns)
    for batch_id in (1, 2):
        requests = (RequestSummary(batch_id * 10 + 1, S, (PortDemand("10.0.0.1/in", 1000),)),)
        assert state.put(BatchSummary(batch_id, "u", S, requests), 1) is None
    stream = LinkStream(
        settings, state, Listener(), Lines(), asyncio.Event(), lambda: 2, questions=Asked(), promises=Promised()
    )
    tasks: list[asyncio.Task[None]] = []
    try:
        call = Call(messages(data)[:60])
        await asyncio.wait_for(stream._read(call, "127.0.0.1:2", tasks), ANSWER_S)  # type: ignore[arg-type]
    except CallEnded:
        pass
    except _Ended as ended:
        assert str(ended).isprintable() and ended.wait_s < 60, ended
    except _Redirect as redirect:
        assert address_problem(redirect.leader) is None, redirect
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert stream.problem.isprintable()
    assert state.why_pruned(11) is None or state.why_pruned(11).isprintable()  # type: ignore[union-attr]
    state.expire(10**19)


@contextlib.contextmanager
def link(_folder: Path) -> Iterator[Check]:
    with Runner() as runner:
        yield lambda data: runner.run(_tell_daemon(data))

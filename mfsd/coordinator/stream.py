"""One daemon's stream, from its hello message on."""

from __future__ import annotations

import asyncio

import grpc.aio

from mfsd.coordinator import messages
from mfsd.coordinator.identity import identity_problem
from mfsd.coordinator.promises import PromisesOf
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import NAME_LENGTH_MAX, PROTOCOL, PROTOCOL_OLDEST, is_name

HELLO_S = 5.0

Context = grpc.aio.ServicerContext[pb.FromNode, bytes]


class Refused(Exception):
    """Ends the stream with this reason."""

    def __init__(self, code: pb.Refusal.Code, reason: str) -> None:
        self.code = code
        super().__init__(reason)


class Session:
    """One daemon's stream."""

    def __init__(self, hello: pb.Hello, address: str, context: Context) -> None:
        self.hello = hello
        self.node = hello.node
        self.address = address
        self.context = context
        self.ports: list[int] = []
        """The stream's port numbers -> the cluster's."""
        self.wake = asyncio.Event()
        self.control: list[pb.ToNode] = []
        """Messages to be sent before any order."""
        self.welcomed_term = 0
        """0: standing by."""
        self.reader: asyncio.Task[None] | None = None
        self.waits_for_it = False
        """Whether the reader waits for the next message, so that none is being processed."""
        self.unanswered = 0
        """Heartbeats that have become due since its last message."""
        self.received_ns = 0
        self.lag_ns = 0
        self.epoch_applied = 0
        self.epoch_sent = 0
        """Epoch of the last order that was written."""
        self.refused: Refused | None = None
        self.promises = PromisesOf()

    def send(self, message: pb.ToNode) -> None:
        self.control.append(message)
        self.wake.set()

    def end(self, code: pb.Refusal.Code, reason: str) -> None:
        self.refused = Refused(code, reason)
        self.wake.set()


async def read_hello(context: Context, authenticated: bool) -> Session:
    """Reads the first message of a stream; raises Refused. authenticated: the certificate must be for that node."""
    try:
        message = await asyncio.wait_for(context.read(), HELLO_S)
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise Refused(pb.Refusal.HELLO, f"no hello message within {HELLO_S:g} s") from error
    if not isinstance(message, pb.FromNode) or message.WhichOneof("kind") != "hello":
        raise Refused(pb.Refusal.HELLO, "the first message must be a hello message")
    hello = message.hello
    if hello.protocol < PROTOCOL_OLDEST or hello.protocol_oldest > PROTOCOL:
        raise Refused(
            pb.Refusal.PROTOCOL,
            f"mfsd {hello.version} speaks protocols {hello.protocol_oldest} to {hello.protocol}, this coordinator "
            f"speaks {PROTOCOL_OLDEST} to {PROTOCOL}: upgrade the older of the two",
        )
    if not (1 <= len(hello.node) <= 253 and hello.node.isprintable()):
        raise Refused(
            pb.Refusal.HELLO,
            "the node name is empty, longer than 253 characters, or has unprintable characters: set [cluster] node",
        )
    if not is_name(hello.version):
        raise Refused(pb.Refusal.HELLO, "the version in the hello message is invalid: is the client an mfsd?")
    if authenticated:
        problem = identity_problem(hello.node, context.auth_context())
        if problem is not None:
            raise Refused(pb.Refusal.HELLO, problem)
    check_ports(hello.ports, 0)  # now, because an error in one stream must not surface in a change of roles
    return Session(hello, context.peer(), context)


def check_ports(ports: messages.Ports, first: int) -> None:
    """Raises Refused if the ports do not count up from `first` or have no valid name."""
    for number, port in enumerate(ports, first):
        if port.number != number:
            raise Refused(pb.Refusal.HELLO, "port numbers must count up from 0: is the client an mfsd?")
        if not is_name(port.name):
            raise Refused(pb.Refusal.HELLO, f"a port name may have at most {NAME_LENGTH_MAX} characters, all printable")

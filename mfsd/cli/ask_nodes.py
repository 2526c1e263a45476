"""Asks the daemons of all nodes a question, through the leading coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mfsd.node.control import (
    ErrorReply,
    FlowsRequest,
    HealthRequest,
    ProtocolError,
    Reply,
    WhyRequest,
    decode_reply,
    encode,
)

if TYPE_CHECKING:
    from mfsd.proto import mfs_pb2 as pb
    from mfsd.proto.wire import TlsFiles


class CannotAsk(Exception):
    """``str()`` gives the reason."""


class NodeAnswer(NamedTuple):
    node: str
    reply: Reply | None
    problem: str
    lost: int
    """Answers of any node that were dropped so far."""


class NodeAnswers:
    """The answers of the nodes as they arrive. A context manager, so that no node answers for longer than the caller
    reads."""

    def __init__(
        self,
        address: str | None,
        config_file: Path | None,
        request: FlowsRequest | HealthRequest | WhyRequest,
        node: str = "",
        seconds: float | None = None,
    ) -> None:
        """seconds: how long to read; None: until every node has sent its last answer. Raises ConfigError or
        CannotAsk."""
        from mfsd.cli.cluster import advice, cluster_access, reach_leader

        addresses, self._tls = cluster_access(address, config_file)
        status, self._leader, problems = reach_leader(addresses, self._tls, 1)
        if status is None:
            raise CannotAsk(advice(problems))
        if not status.leads:
            raise CannotAsk("no coordinator leads: check etcd and the coordinators")
        self._request, self._node, self._seconds = request, node, seconds
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Iterator[NodeAnswer]:
        call = self._stack.enter_context(
            asking(self._leader, self._tls, encode(self._request), self._node, self._seconds)
        )
        return self._answers(call)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _answers(self, replies: Iterator[pb.AskReply]) -> Iterator[NodeAnswer]:
        for reply in replies:
            if not reply.node:
                if not reply.asked:
                    where = f"no node has {self._node} in its name" if self._node else "no daemon is connected"
                    raise CannotAsk(f"{self._leader}: {where}; see mfsctl cluster")
                continue
            yield read(reply)


def read(reply: pb.AskReply) -> NodeAnswer:
    if reply.problem or not reply.reply:
        return NodeAnswer(reply.node, None, reply.problem, reply.lost)
    try:
        found = decode_reply(reply.reply)
    except ProtocolError as error:
        return NodeAnswer(reply.node, None, f"its answer cannot be read: {error}", reply.lost)
    if isinstance(found, ErrorReply):
        return NodeAnswer(reply.node, found, found.message, reply.lost)
    return NodeAnswer(reply.node, found, "", reply.lost)


@contextlib.contextmanager
def asking(
    leader: str, tls: TlsFiles | None, request: bytes, node: str, seconds: float | None
) -> Iterator[Iterator[pb.AskReply]]:
    """Yields the leader's replies until the time is over. Raises CannotAsk, also while they are read."""
    import grpc

    from mfsd.proto import mfs_pb2 as pb
    from mfsd.proto.wire import ASK, TlsError, channel_credentials, channel_options

    options = channel_options(tls)
    try:
        channel = (
            grpc.secure_channel(leader, channel_credentials(tls), options)
            if tls is not None
            else grpc.insecure_channel(leader, options)
        )
    except TlsError as error:
        raise CannotAsk(str(error)) from error
    with channel:
        ask = channel.unary_stream(
            ASK, request_serializer=pb.AskRequest.SerializeToString, response_deserializer=pb.AskReply.FromString
        )
        call: Any = ask(pb.AskRequest(request=request, node=node), timeout=seconds)
        try:
            yield _until_over(call, leader)
        finally:
            call.cancel()


def _until_over(call: Iterator[pb.AskReply], leader: str) -> Iterator[pb.AskReply]:
    import grpc

    try:
        yield from call
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise CannotAsk(f"{leader} is too old to forward requests to nodes: upgrade the coordinators") from error
        raise CannotAsk(f"{leader}: {' '.join((error.details() or error.code().name).split())}") from error

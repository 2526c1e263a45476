"""The few calls of etcd that an election needs, over gRPC, with several endpoints.

They rely on these facts of etcd's v3 API: a transaction's revision is the create revision of a key that it creates; a
key with a lease is deleted when the lease ends; a lease does not end before its time to live has passed since the last
renewal reached etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from mfsd.proto import etcd_pb2 as pb
from mfsd.proto.certificates import Certificates, Pem, client_credentials
from mfsd.proto.wire import CHANNEL_OPTIONS

CALL_S = 0.5
"""How long one endpoint may take before the next one is tried."""

R = TypeVar("R", bound=Message)


class EtcdError(Exception):
    """No endpoint answers, or the request is refused. ``str()`` gives the endpoint and the reason."""


class LeaseLost(EtcdError):
    """The lease has ended."""


class Key(NamedTuple):
    value: str
    create_revision: int
    cluster_id: int
    lease: int


class Etcd:
    """A client of one etcd cluster. Each call tries every endpoint once, starting with the last that answered."""

    def __init__(self, endpoints: Sequence[str], certificates: Certificates | None = None) -> None:
        """endpoints: HOST:PORT."""
        self._endpoints = list(endpoints)
        self._certificates = certificates
        self._shown: Pem | None = None
        self._channels = self._connect()
        self._at = 0

    def _connect(self) -> list[grpc.Channel]:
        if self._certificates is None:
            return [grpc.insecure_channel(e, options=CHANNEL_OPTIONS) for e in self._endpoints]
        self._shown = self._certificates.current()
        credentials = client_credentials(self._shown)
        return [grpc.secure_channel(e, credentials, options=CHANNEL_OPTIONS) for e in self._endpoints]

    async def _renew_certificates(self) -> None:
        """Opens new channels if the certificates have changed: a channel keeps those that it was made with."""
        if self._certificates is not None and self._certificates.current() is not self._shown:
            old, self._channels = self._channels, self._connect()
            for channel in old:
                channel.close()

    async def close(self) -> None:
        for channel in self._channels:
            channel.close()

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        """Creates a lease; returns its number and the time to live in seconds that etcd gave it, which may be
        longer."""
        reply = await self._call(
            "/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=ttl_s), pb.LeaseGrantResponse
        )
        return reply.ID, reply.TTL

    async def revoke(self, lease: int) -> None:
        await self._call("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), pb.LeaseRevokeResponse)

    async def renew(self, lease: int) -> int:
        """Renews a lease; returns the time to live from now in seconds. Raises LeaseLost."""
        request = pb.LeaseKeepAliveRequest(ID=lease)
        reply = await self._call("/etcdserverpb.Lease/LeaseKeepAlive", request, pb.LeaseKeepAliveResponse, stream=True)
        if reply.TTL <= 0:
            raise LeaseLost(f"lease {lease:x} has ended")
        return reply.TTL

    async def get(self, key: str) -> Key | None:
        reply = await self._call("/etcdserverpb.KV/Range", pb.RangeRequest(key=key.encode()), pb.RangeResponse)
        for row in reply.kvs:
            return Key(row.value.decode(errors="replace"), row.create_revision, reply.header.cluster_id, row.lease)
        return None

    async def create(self, key: str, value: str, lease: int) -> Key | None:
        """Creates the key unless it exists; returns None if it does."""
        name = key.encode()
        put = pb.RequestOp(request_put=pb.PutRequest(key=name, value=value.encode(), lease=lease))
        absent = pb.Compare(target=pb.Compare.CREATE, result=pb.Compare.EQUAL, key=name, create_revision=0)
        request = pb.TxnRequest(compare=[absent], success=[put])
        reply = await self._call("/etcdserverpb.KV/Txn", request, pb.TxnResponse)
        return Key(value, reply.header.revision, reply.header.cluster_id, lease) if reply.succeeded else None

    async def _call(self, path: str, request: Message, answer: type[R], *, stream: bool = False) -> R:
        problems = []
        await self._renew_certificates()
        for _ in self._endpoints:
            try:
                return await self._ask(self._channels[self._at], path, request, answer, stream)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.NOT_FOUND:
                    raise LeaseLost(error.details() or "lease not found") from error
                details = " ".join((error.details() or error.code().name).split())
                problems.append(f"{self._endpoints[self._at]}: {details}")
                self._at = (self._at + 1) % len(self._endpoints)
        raise EtcdError("; ".join(problems))

    async def _ask(self, channel: grpc.Channel, path: str, request: Message, answer: type[R], stream: bool) -> R:
        """Makes the call in a thread of its own. On the loop a call takes about twenty passes, each of which takes
        milliseconds under many reports, so that a leader would lose its lease by its own work."""
        return await asyncio.to_thread(_ask, channel, path, request, answer, stream)


def _ask(channel: grpc.Channel, path: str, request: Message, answer: type[R], stream: bool) -> R:
    encode, decode = type(request).SerializeToString, answer.FromString
    if not stream:
        call = channel.unary_unary(path, request_serializer=encode, response_deserializer=decode)
        return call(request, timeout=CALL_S)
    calls = channel.stream_stream(path, request_serializer=encode, response_deserializer=decode)
    streaming = calls(iter([request]), timeout=CALL_S)
    for reply in streaming:
        streaming.cancel()
        return reply
    raise EtcdError(f"{path}: ended without an answer")

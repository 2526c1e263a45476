"""Copies the leader's history to a standby coordinator, so that the history outlives the leader."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from mfsd.coordinator.history import INTERVALS
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.wire import STATUS, TlsError, TlsFiles, channel_credentials, channel_options

if TYPE_CHECKING:
    from mfsd.coordinator.service import Service

ASK_S = 5.0
ANSWER_S = 2.0
LATEST = 3
"""Number of intervals that may have changed since the last answer."""


async def follow(service: Service) -> None:
    """Runs for as long as the service runs."""
    followed = ("", 0)
    while True:
        role = service.role
        if leader := service.leader_elsewhere():
            known = followed == (leader, role.term)
            reply = await _ask(leader, service.settings.tls, LATEST if known else INTERVALS)
            if reply is not None:
                followed = (leader, reply.term)
                service.take_history(reply)
        await asyncio.sleep(ASK_S)


async def _ask(leader: str, tls: TlsFiles | None, intervals: int) -> pb.StatusReply | None:
    options = channel_options(tls)
    try:
        channel = (
            grpc.aio.secure_channel(leader, channel_credentials(tls), options=options)
            if tls is not None
            else grpc.aio.insecure_channel(leader, options=options)
        )
    except TlsError:
        return None  # reported by the server, which uses the same files
    async with channel:
        call = channel.unary_unary(
            STATUS,
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.StatusReply.FromString,
        )
        try:
            return await call(pb.StatusRequest(batches_max=1, history_max=intervals), timeout=ANSWER_S)
        except grpc.RpcError:
            return None

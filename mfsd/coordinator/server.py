"""The gRPC server of the coordinator's service."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from mfsd.coordinator.election import Logger
from mfsd.coordinator.service import Service
from mfsd.proto import mfs_pb2 as pb
from mfsd.proto.certificates import Certificates, server_credentials
from mfsd.proto.wire import CHANNEL_OPTIONS, SERVICE, TlsFiles


class CannotListen(Exception):
    """``str()`` gives the address and the remedy."""


def new_server(service: Service, listen: str, tls: TlsFiles | None, log: Logger) -> tuple[grpc.aio.Server, int]:
    """Returns a server, not started, and the port that it is bound to. Raises CannotListen or TlsError."""
    server = grpc.aio.server(options=(*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)))
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Link": grpc.stream_stream_rpc_method_handler(service.link, request_deserializer=pb.FromNode.FromString),
        "Status": grpc.unary_unary_rpc_method_handler(
            service.status,
            request_deserializer=pb.StatusRequest.FromString,
            response_serializer=pb.StatusReply.SerializeToString,
        ),
        "Ask": grpc.unary_stream_rpc_method_handler(
            service.ask,
            request_deserializer=pb.AskRequest.FromString,
            response_serializer=pb.AskReply.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        if tls is not None:
            port = server.add_secure_port(listen, server_credentials(Certificates(tls, log)))
        else:
            port = server.add_insecure_port(listen)
            log.warning(
                "nodes-not-authenticated",
                listen=listen,
                problem="any client that can reach this port can report as any node and replace its daemon",
                remedy="set ca, certificate and key in [coordinator], or restrict the port to a management network",
            )
    except RuntimeError as error:
        raise CannotListen(
            f"cannot listen on {listen}: another process may use the port, or the address may not be this host's; "
            "choose another one with --listen"
        ) from error
    return server, port

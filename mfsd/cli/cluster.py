"""Turns the configuration file into what coordinators, the daemon's link and mfsctl need."""

from __future__ import annotations

import os
import socket
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from mfsd.proto.wire import TlsFiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mfsd.coordinator.settings import Settings
    from mfsd.node.config import Config
    from mfsd.proto import mfs_pb2 as pb

DEFAULT_ADDRESS = "localhost:7400"
ANSWER_S = 3.0


def coordinator_settings(config: Config) -> Settings:
    from mfsd.coordinator.settings import Settings

    own = config.coordinator
    port = own.listen.rpartition(":")[2]
    return Settings(
        listen=own.listen,
        advertise=own.advertise or f"{socket.gethostname()}:{port}",
        version=version("mfsd"),
        policy=config.policy,
        etcd=tuple(own.etcd),
        lease_ttl_s=-(-own.lease_ns // 1_000_000_000),
        heartbeat_ns=own.heartbeat_ns,
        grace_ns=own.grace_ns,
        rate_default_bytes_per_s=own.rate_default_bytes_per_s,
        tls=tls_files(own.ca, own.certificate, own.key),
        etcd_tls=tls_files(own.etcd_ca, own.etcd_certificate, own.etcd_key),
    )


def tls_files(ca: str, certificate: str, key: str, server_name: str = "") -> TlsFiles | None:
    """Returns the files; None without certificates. The configuration has all three or none."""
    if not ca:
        return None
    return TlsFiles(ca=Path(ca), certificate=Path(certificate), key=Path(key), server_name=server_name)


def cluster_access(addresses: str | None, config_file: Path | None) -> tuple[Sequence[str], TlsFiles | None]:
    """Returns which coordinators to ask, and with which certificates: those of this configuration, else of the daemon's
    if there is one. Raises ConfigError."""
    from mfsd.cli.daemon_call import DEFAULT_CONFIG
    from mfsd.node.config import Config
    from mfsd.node.config_file import load
    from mfsd.node.options import addresses as parse_addresses

    file = config_file or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)
    config = load(file) if file is not None else Config()
    own = config.cluster
    found: Sequence[str] = parse_addresses("--address", addresses) or own.coordinators or [DEFAULT_ADDRESS]
    return found, tls_files(own.ca, own.certificate, own.key, own.server_name)


def ask_leader(
    addresses: Sequence[str], tls: TlsFiles | None, batches_max: int
) -> tuple[pb.StatusReply | None, list[str]]:
    """Returns the status of the leader, else of the last coordinator that answered; and the problems on the way."""
    reply, _, problems = reach_leader(addresses, tls, batches_max)
    return reply, problems


def reach_leader(
    addresses: Sequence[str], tls: TlsFiles | None, batches_max: int
) -> tuple[pb.StatusReply | None, str, list[str]]:
    """Like ask_leader(), with the address that answered. It may differ from the one that the coordinator advertises, as
    behind the forwarded port of a playground."""
    waiting, asked = list(addresses), set[str]()
    best: pb.StatusReply | None = None
    answered = ""
    problems = []
    while waiting:
        address = waiting.pop(0)
        if address in asked:
            continue
        asked.add(address)
        reply, problem = ask_one(address, tls, batches_max)
        if reply is None:
            problems.append(f"{address}: {problem}")
            continue
        best, answered = reply, address
        if reply.leads:
            break
        if reply.leader:
            waiting.insert(0, reply.leader)
    return best, answered, problems


def advice(problems: Sequence[str]) -> str:
    """Returns advice for the case that no coordinator has answered, from the problems."""
    text = " ".join(problems).lower()
    # A server that asks for certificates closes the connection of a client that shows none.
    if any(word in text for word in ("ssl", "tls", "handshake", "certificate", "socket closed", "connection reset")):
        return (
            "cannot talk to a coordinator: it listens, but the two ends disagree about certificates; compare ca, "
            "certificate and key of [cluster] here (--config FILE) with those of [coordinator] there, and check "
            "server_name"
        )
    return (
        "no coordinator answers: check that one is running (mfsd --coordinator) and that this is its address; name it "
        "with --address, or by [cluster] coordinators in mfsd.toml"
    )


def ask_one(
    address: str,
    tls: TlsFiles | None,
    batches_max: int,
    timeout_s: float = ANSWER_S,
    *,
    history_max: int = 0,
    batch_id: int = 0,
) -> tuple[pb.StatusReply | None, str]:
    """Returns the status of the coordinator at this address, or None and the reason."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # we print what is wrong, once
    import grpc

    from mfsd.proto import mfs_pb2 as pb
    from mfsd.proto.wire import STATUS, TlsError, channel_credentials, channel_options

    options = channel_options(tls)
    try:
        channel = (
            grpc.secure_channel(address, channel_credentials(tls), options)
            if tls is not None
            else grpc.insecure_channel(address, options)
        )
    except TlsError as error:
        return None, str(error)
    with channel:
        call = channel.unary_unary(
            STATUS,
            request_serializer=pb.StatusRequest.SerializeToString,
            response_deserializer=pb.StatusReply.FromString,
        )
        try:
            asked = pb.StatusRequest(batches_max=batches_max, history_max=history_max, batch_id=batch_id)
            return call(asked, timeout=timeout_s), ""
        except grpc.RpcError as error:
            return None, " ".join((error.details() or error.code().name).split())

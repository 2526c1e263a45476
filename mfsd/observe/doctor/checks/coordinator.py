"""The coordinators: reachable from this node, of this version, with a leader, and this node's daemon linked to it.

Their addresses are those of --coordinator, else those of the daemon's command line and configuration file.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from mfsd.node.config_file import ConfigError, load
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, version
from mfsd.proto import wire

if TYPE_CHECKING:
    from mfsd.proto.mfs_pb2 import StatusReply  # loaded where coordinators are asked

TITLE = "Coordinator"
CONNECT_S = 2.0
STATUS_S = 3.0
ADDRESS_OPTION = "--coordinator-address"

NONE = Kind(
    "coordinator.none",
    "info",
    "No coordinator is configured: this node orders batches by itself and prunes nothing.",
    "for one order over all nodes: mfsd --coordinator-address HOST:PORT, or --coordinator HOST:PORT here",
)
BAD_ADDRESS = Kind(
    "coordinator.bad-address", "fail", "The coordinator's address cannot be used.", "write HOST:PORT, e.g. coord:7400"
)
BAD_CONFIG = Kind(
    "coordinator.bad-config",
    "unknown",
    "The daemon's configuration cannot be read, so it is not known which coordinators it uses.",
    "mfsd --check-config --config FILE, as a user who may read it; or give --coordinator HOST:PORT",
)
UNREACHABLE = Kind(
    "coordinator.unreachable",
    "fail",
    "No connection to the coordinator: after its time to live the last order is dropped, and this node decides alone.",
    "start the coordinator, open its TCP port in the firewall, and check name and route",
)
NO_STATUS = Kind(
    "coordinator.no-status",
    "fail",
    "A program accepts connections there but does not speak the coordinators' protocol with this node.",
    "check the port, and that both ends use TLS or neither does ([cluster] ca, certificate, key)",
)
OTHER_VERSION = Kind(
    "coordinator.version",
    "warn",
    "Coordinator and installation have different versions. They agree on a protocol, but may behave differently.",
    "upgrade coordinators first, then the nodes",
)
NO_LEADER = Kind(
    "coordinator.no-leader",
    "fail",
    "None of the coordinators that answer leads: batches are not ordered.",
    "run mfsctl coordinator status on each; with several coordinators, check etcd",
)
NOT_LINKED = Kind(
    "coordinator.not-linked",
    "fail",
    "The leader does not see this node's daemon as connected: the node's batches have no place in the order.",
    "see the daemon's log for the reason; [cluster] node must be unique in the cluster",
)
LEADS = Kind("coordinator.leads", "ok", "A coordinator leads, and this node reaches it.")


class Cluster(Struct, frozen=True):
    """The coordinators' addresses, and how this node's daemon would connect to them."""

    addresses: tuple[str, ...] = ()
    tls: wire.TlsFiles | None = None
    node: str = ""
    """Name of this node. Empty: the addresses were given by hand, and no daemon has to be linked."""


def run(host: Host) -> Iterator[Finding]:
    try:
        cluster = find_cluster(host)
    except (ConfigError, OSError) as error:
        yield BAD_CONFIG(str(error))
        return
    if not cluster.addresses:
        yield NONE("no coordinator address is given, to the daemon or here")
        return
    answers: dict[str, StatusReply] = {}
    for text in cluster.addresses:
        try:
            answers[text] = _ask(text, cluster.tls)
        except Unusable as error:
            yield error.kind(error.reason, text)
    here = version()
    for text, answer in answers.items():
        if answer.version != here:
            yield OTHER_VERSION(f"it is version {answer.version}, this installation {here}", text)
    leaders = {text: answer for text, answer in answers.items() if answer.leads}
    if answers and not leaders:
        known = ", ".join(sorted({a.leader for a in answers.values() if a.leader})) or "none"
        yield NO_LEADER(f"{len(answers)} answer, leader they know of: {known}")
    for text, leader in leaders.items():
        nodes = sorted(n.node for n in leader.nodes if n.connected)
        if cluster.node and cluster.node not in nodes:
            yield NOT_LINKED(f"connected there: {', '.join(nodes) or 'none'}; this node is {cluster.node}")
        else:
            yield LEADS(
                f"version {leader.version}, term {leader.term}, epoch {leader.epoch}, {len(nodes)} nodes connected",
                text,
            )


def find_cluster(host: Host) -> Cluster:
    """Coordinators and certificates. Raises ConfigError or OSError if the daemon's configuration cannot be read."""
    daemon = host.daemon()
    file = daemon.daemon.config_file if daemon else None
    config = load(Path(file)).cluster if file else None
    tls = None
    if config and config.ca:
        ca, certificate, key = (Path(name) for name in (config.ca, config.certificate, config.key))
        tls = wire.TlsFiles(ca=ca, certificate=certificate, key=key, server_name=config.server_name)
    if host.coordinators:
        return Cluster(host.coordinators, tls)
    given = _option(host.proc / str(daemon.daemon.pid)) if daemon else None
    addresses = given if given is not None else tuple(map(str, config.coordinators)) if config else ()
    return Cluster(addresses, tls, (config.node if config else "") or socket.gethostname())


def _option(folder: Path) -> tuple[str, ...] | None:
    """The coordinators on the daemon's command line, which override its file; None if it names none."""
    try:
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == ADDRESS_OPTION:
            return tuple(part.strip() for part in following.split(",") if part.strip())
        if word.startswith(f"{ADDRESS_OPTION}="):
            return tuple(part.strip() for part in word.partition("=")[2].split(",") if part.strip())
    return None


class Unusable(Exception):
    """A coordinator does not answer: the finding that says why, and its reason."""

    def __init__(self, kind: Kind, reason: str) -> None:
        self.kind, self.reason = kind, reason
        super().__init__(reason)


def _ask(text: str, tls: wire.TlsFiles | None) -> StatusReply:
    """Connects, then asks for the status. Raises Unusable."""
    if (problem := wire.address_problem(text)) is not None:
        raise Unusable(BAD_ADDRESS, f"{text!r}: {problem}")
    name, _, port = text.rpartition(":")
    try:
        socket.create_connection((name.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        raise Unusable(UNREACHABLE, f"TCP connection failed: {error.strerror or error}") from error
    try:
        import grpc

        from mfsd.proto import mfs_pb2
    except ImportError as error:
        raise Unusable(NO_STATUS, f"the protocol's package is missing here: {error}") from error
    try:
        options = wire.channel_options(tls)
        if tls is not None:
            channel = grpc.secure_channel(text, wire.channel_credentials(tls), options)
        else:
            channel = grpc.insecure_channel(text, options)
        with channel:
            question = channel.unary_unary(
                wire.STATUS,
                request_serializer=mfs_pb2.StatusRequest.SerializeToString,
                response_deserializer=mfs_pb2.StatusReply.FromString,
            )
            reply: StatusReply = question(mfs_pb2.StatusRequest(batches_max=1), timeout=STATUS_S)
            return reply
    except wire.TlsError as error:
        raise Unusable(NO_STATUS, str(error)) from error
    except grpc.RpcError as error:
        raise Unusable(NO_STATUS, f"{error.code().name}: {error.details()}") from error

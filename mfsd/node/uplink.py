"""Makes this node's link to the coordinators from the configuration."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

from mfsd.node.addresses import PortNames
from mfsd.node.config import ClusterConfig, NicConfig
from mfsd.node.link import Link
from mfsd.node.link_interface import Identity, LinkSettings, Listener, Logger
from mfsd.proto.wire import TlsFiles


def node_name(cluster: ClusterConfig) -> str:
    return cluster.node or socket.gethostname()


def unit_name(cluster: ClusterConfig, process: str) -> str:
    """The unit of a program's batches."""
    return cluster.unit or f"{node_name(cluster)}/{process}"


def make_link(
    cluster: ClusterConfig,
    nics: Mapping[str, NicConfig],
    host_rates: Mapping[str, int],
    names: PortNames,
    listener: Listener,
    log: Logger,
    version: str,
    epoch: int,
) -> Link | None:
    """Returns None if no coordinators are configured. `host_rates`: devices of this host and their rates in bytes/s. A
    port without a known rate is planned with the coordinator's default."""
    if not cluster.coordinators:
        return None
    rates = {**host_rates, **{name: int(nic.rate_bytes_per_s) for name, nic in nics.items() if nic.rate_bytes_per_s}}
    ports = {
        f"{names.own(nic)}/{direction}": rate for nic, rate in rates.items() if rate for direction in ("in", "out")
    }
    settings = LinkSettings(addresses=tuple(cluster.coordinators), ttl_ns=int(cluster.ttl_ns), tls=_tls(cluster))
    return Link(settings, Identity(node_name(cluster), version, epoch), ports, listener, log)


def _tls(cluster: ClusterConfig) -> TlsFiles | None:
    if not cluster.ca:
        return None
    return TlsFiles(
        ca=Path(cluster.ca),
        certificate=Path(cluster.certificate),
        key=Path(cluster.key),
        server_name=cluster.server_name,
    )

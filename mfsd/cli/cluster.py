"""From the configuration file to what coordinators, the daemon's link and mfsctl take."""

from __future__ import annotations

import socket
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from mfsd.proto.wire import TlsFiles

if TYPE_CHECKING:
    from mfsd.coordinator.settings import Settings
    from mfsd.node.config import Config


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
    """None without certificates; the configuration has all three or none."""
    if not ca:
        return None
    return TlsFiles(ca=Path(ca), certificate=Path(certificate), key=Path(key), server_name=server_name)

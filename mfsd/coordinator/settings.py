"""The options of a coordinator."""

from __future__ import annotations

from msgspec import Struct

from mfsd.policy.config import PolicyConfig
from mfsd.proto.wire import TlsFiles


class Settings(Struct, frozen=True, kw_only=True):
    listen: str
    """HOST:PORT to serve."""
    advertise: str
    """HOST:PORT where daemons and mfsctl reach it."""
    version: str
    policy: PolicyConfig = PolicyConfig()
    etcd: tuple[str, ...] = ()
    """HOST:PORT of each endpoint; empty: it leads alone."""
    lease_ttl_s: int = 2
    heartbeat_ns: int = 1_000_000_000
    grace_ns: int = 5_000_000_000
    """How long the batches of a lost daemon stay in the order."""
    rate_default_bytes_per_s: int = 12_500_000_000
    """Rate of a port that no daemon has declared."""
    tls: TlsFiles | None = None
    etcd_tls: TlsFiles | None = None

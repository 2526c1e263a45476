"""Finds the network card that UCX uses by its environment variables."""

from __future__ import annotations

import os
import socket

from mooncake_adapter.mooncake.network import device_of, guid_of, interface_of
from mooncake_adapter.session import Session

DEVICES, TRANSPORTS = "UCX_NET_DEVICES", "UCX_TLS"
RDMA = ("rc", "dc", "ud", "ib", "srd", "all")


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def device_chosen() -> str:
    """Returns the first RDMA device that is named, else the first of this host; "" if UCX uses TCP."""
    transports = [name.strip().lower() for name in os.environ.get(TRANSPORTS, "").split(",") if name.strip()]
    if transports and not any(name.startswith(RDMA) for name in transports):
        return ""
    named = [name.partition(":")[0].strip() for name in os.environ.get(DEVICES, "").split(",")]
    named = [name for name in named if name and name != "all"]
    known = interfaces()
    rdma = [name for name in named if name not in known]
    return "" if named and not rdma else device_of(",".join(rdma))


def interface_chosen() -> str:
    """Returns the first network interface that is named, else that of the host's own name."""
    known = interfaces()
    for name in os.environ.get(DEVICES, "").split(","):
        if name.partition(":")[0].strip() in known:
            return name.partition(":")[0].strip()
    return interface_of(socket.gethostname())


def nic_of_ucx(session: Session) -> int:
    """Returns the session's number of the network card that UCX's bytes leave through, as far as known before it has
    connected: with several rails the first."""
    device = device_chosen()
    return session.nic(device, guid=guid_of(device)) if device else session.nic(interface_chosen())

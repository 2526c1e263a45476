"""Finds the RDMA ports of this host that are InfiniBand, by their link layer in sysfs."""

from __future__ import annotations

from pathlib import Path

DEVICES = Path("/sys/class/infiniband")
INFINIBAND = "InfiniBand"


def infiniband_ports(devices: Path | None = None) -> list[str]:
    """Returns the InfiniBand ports as "mlx5_0 port 1". A port that cannot be read is taken for Ethernet."""
    return [name for name, layer in _ports(devices) if layer == INFINIBAND]


def other_ports(devices: Path | None = None) -> list[str]:
    return [name for name, layer in _ports(devices) if layer != INFINIBAND]


def _ports(devices: Path | None) -> list[tuple[str, str]]:
    files = sorted((devices or DEVICES).glob("*/ports/*/link_layer"))
    return [(f"{file.parts[-4]} port {file.parts[-2]}", _text(file)) for file in files]


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""

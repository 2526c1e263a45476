"""Which RDMA ports of this host are InfiniBand, by what sysfs says of their link layer."""

from __future__ import annotations

from pathlib import Path

DEVICES = Path("/sys/class/infiniband")
INFINIBAND = "InfiniBand"


def infiniband_ports(devices: Path | None = None) -> list[str]:
    """As "mlx5_0 port 1"; a port that cannot be read is taken for Ethernet."""
    files = sorted((devices or DEVICES).glob("*/ports/*/link_layer"))
    return [f"{file.parts[-4]} port {file.parts[-2]}" for file in files if _text(file) == INFINIBAND]


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""

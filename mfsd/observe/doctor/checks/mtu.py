"""MTU: the link's, the RoCE MTU that follows from it, and the one that the device really uses (libibverbs)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mfsd.observe.doctor.checks.nic import plan_for
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, NoAnswer, names_in, read_line

TITLE = "MTU"
ROCE_MTUS = (4096, 2048, 1024, 512, 256)
ROCE_OVERHEAD_BYTES = 96
"""IPv6 and UDP headers, the largest transport headers and the checksum, as Linux counts them (iboe_get_mtu)."""
ROCE_WANTED = 4096

SMALL = Kind(
    "mtu.roce-small",
    "warn",
    "The link's MTU forces small RoCE packets: more headers, more interrupts, less of the rate that MFS plans with.",
    "ip link set dev IF mtu 4200 (or 9000) here, on the switch and on every peer",
)
BELOW_POLICY = Kind(
    "mtu.below-policy",
    "info",
    "The link's MTU is smaller than the policy says; switch headroom was sized for more, which does no harm.",
    "set mtu_bytes of the port group, or the link's MTU, so that both agree",
)
ABOVE_POLICY = Kind(
    "mtu.above-policy",
    "warn",
    "The link's MTU is larger than the policy says: lossless headroom on the switch is too small for such frames.",
    "raise mtu_bytes of the port group and load the switch again, or lower the link's MTU",
)
ACTIVE_SMALLER = Kind(
    "mtu.active-smaller",
    "warn",
    "The device uses smaller RoCE packets than its link carries: the link's MTU was raised while the port was up.",
    "take the link down and up again: ip link set dev IF down; ip link set dev IF up",
)
UNREADABLE = Kind("mtu.unreadable", "unknown", "The link's MTU cannot be read.", "check the interface name")
FITS = Kind("mtu.fits", "ok", "RoCE packets of 4096 bytes fit, and the policy's headroom covers the link's frames.")


def roce_mtu(link_mtu_bytes: int) -> int:
    """The largest RoCE payload that fits into a frame of this link, 0 for none."""
    return next((m for m in ROCE_MTUS if m + ROCE_OVERHEAD_BYTES <= link_mtu_bytes), 0)


def run(host: Host) -> Iterator[Finding]:
    for device in host.devices:
        yield from _active(host, device)
    for interface in host.links:
        text = read_line(host.sys / "class/net" / interface / "mtu")
        if not text.isdigit():
            yield UNREADABLE(f"{host.sys / 'class/net' / interface / 'mtu'}: {text or 'nothing'}", interface)
            continue
        mtu, policy = int(text), plan_for(host, interface).ports[0].mtu_bytes
        roce = roce_mtu(mtu)
        problems = []
        if roce < ROCE_WANTED:
            problems.append(SMALL(f"link MTU {mtu}, so RoCE packets carry {roce} bytes, not {ROCE_WANTED}", interface))
        if mtu > policy and interface != "lo":
            problems.append(ABOVE_POLICY(f"link MTU {mtu}, policy {policy}", interface))
        elif mtu < policy:
            problems.append(BELOW_POLICY(f"link MTU {mtu}, policy {policy}", interface))
        yield from problems
        if not any(p.severity == "warn" for p in problems):
            yield FITS(f"link MTU {mtu}, RoCE {roce}", interface)


def _active(host: Host, device: str) -> Iterator[Finding]:
    """Reports nothing without pyverbs and ibv_devinfo; the link's MTU is checked anyway."""
    links = [int(t) for i in host.netdevs(device) if (t := read_line(host.sys / "class/net" / i / "mtu")).isdigit()]
    carried = max((roce_mtu(mtu) for mtu in links), default=0)
    for active in _active_mtus(host, device):
        if active < min(carried, ROCE_WANTED):
            yield ACTIVE_SMALLER(f"active_mtu is {active}, the link of {max(links)} carries {carried}", device)


def _active_mtus(host: Host, device: str) -> list[int]:
    """MTUs of the device's ports, by libibverbs."""
    numbers = [int(name) for name in names_in(host.sys / "class/infiniband" / device / "ports") if name.isdigit()]
    if known := [mtu for number in numbers if (mtu := host.port(device, number).mtu_bytes)]:
        return known
    try:
        return [int(n) for n in re.findall(r"active_mtu:\s+(\d+)", host.run(["ibv_devinfo", "-d", device]))]
    except NoAnswer:
        return []

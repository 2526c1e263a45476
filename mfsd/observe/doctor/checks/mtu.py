"""MTU: the link's, and the RoCE path MTU that follows from it."""

from __future__ import annotations

from collections.abc import Iterator

from mfsd.observe.doctor.checks.nic import plan_for
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, read_line

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
UNREADABLE = Kind("mtu.unreadable", "unknown", "The link's MTU cannot be read.", "check the interface name")
FITS = Kind("mtu.fits", "ok", "RoCE packets of 4096 bytes fit, and the policy's headroom covers the link's frames.")


def roce_mtu(link_mtu_bytes: int) -> int:
    """The largest RoCE payload that fits into a frame of this link, 0 for none."""
    return next((m for m in ROCE_MTUS if m + ROCE_OVERHEAD_BYTES <= link_mtu_bytes), 0)


def run(host: Host) -> Iterator[Finding]:
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

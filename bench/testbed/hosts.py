"""The hosts and their switch: `bench.fabric.lab` with NICs that are as slow as the switch's ports."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import msgspec
from pyroute2 import IPRoute, netns

from bench.fabric.lab import Lab, slow_profile
from mfsd.fabric.plan import make_plan
from mfsd.fabric.policy import Profile
from mfsd.fabric.systems import linux
from mfsd.fabric.systems.linux.qdisc import interface_index
from mfsd.playground.network import ip

POLICY = "paper-k8"
SEGMENT_BYTES = 16_384
"""Largest packet that a host passes to its NIC at once. A full-sized one (64 KiB) would occupy a 300 Mbit/s link for
1.7 ms, whatever waits behind it with a higher priority."""
SEGMENT_BYTES_MOST = 65_536
CONTROL_ADDRESS = "10.87.0.254"
"""Address of the coordinator, on a network of its own beside the fabric, as clusters have one."""
SOCKET_BYTES = 131_072
"""Limit of one connection's unacknowledged bytes: enough for a slow link, and less than a port's queue holds."""
SLOW_BITS_PER_S = 300e6
"""These sizes are for such links; on faster ones they grow with the rate."""


class Hosts(Lab):
    """Host i has address 10.86.0.(i+1) on its `eth0`; its switch port is `p<i>`. Both ends have eight strict queues."""

    def __init__(self, names: list[str], link_bits_per_s: float, slow: dict[str, float] | None = None) -> None:
        """`slow`: hosts whose own NIC has this share of the rate."""
        growth = max(1.0, link_bits_per_s / SLOW_BITS_PER_S)
        self._segment_bytes = min(round(SEGMENT_BYTES * growth), SEGMENT_BYTES_MOST)
        self._socket_bytes = round(SOCKET_BYTES * growth)
        self.profile: Profile = slow_profile(POLICY, link_bits_per_s / 1e9)
        super().__init__(names, self.profile, POLICY)
        self._nic = make_plan(POLICY, self.profile, {"testbed": ["eth0"]})
        self._slow = {
            host: make_plan(POLICY, slow_profile(POLICY, share * link_bits_per_s / 1e9), {"testbed": ["eth0"]})
            for host, share in (slow or {}).items()
        }
        self.dscp = [c.dscp for c in self.profile.classes]
        """DSCP of each wire class."""
        self._folder = tempfile.TemporaryDirectory(prefix="mfs-testbed-")
        self.folder = Path(self._folder.name)
        """For sockets and configurations."""

    def _build(self) -> None:
        self._cleanup.callback(self._folder.cleanup)
        super()._build()
        self._build_control_network()
        for host in self.names:
            self._tune(host)
            linux.SYSTEM.apply_live(self._slow.get(host, self._nic), self.namespace(host))
        netns.pushns(self.switch)
        try:
            self._netlink = IPRoute()
        finally:
            netns.popns()
        self._cleanup.callback(self._netlink.close)
        self._index = {host: interface_index(self._netlink, f"p{i}") for i, host in enumerate(self.names)}

    def _build_control_network(self) -> None:
        ip("link", "set", "dev", "lo", "up")  # a host reaches its own addresses over it
        bridge = f"{self.prefix}c"
        ip("link", "add", "name", bridge, "type", "bridge")
        self._cleanup.callback(ip, "link", "del", bridge)
        ip("address", "add", f"{CONTROL_ADDRESS}/24", "dev", bridge)
        ip("link", "set", "dev", bridge, "up")
        for i, host in enumerate(self.names):
            ns, port = self.namespace(host), f"{self.prefix}c{i}"
            ip("link", "add", "name", port, "type", "veth", "peer", "name", "eth1", "netns", ns)
            ip("link", "set", "dev", port, "master", bridge, "up")
            ip("-n", ns, "address", "add", f"10.87.0.{i + 1}/24", "dev", "eth1")
            ip("-n", ns, "link", "set", "dev", "eth1", "up")

    def _tune(self, host: str) -> None:
        netns.pushns(self.namespace(host))
        try:
            settings = Path("/proc/sys/net/ipv4")
            # bbr keeps its own pace and leaks past strict priorities. A namespace of an ordinary user may not choose.
            with contextlib.suppress(OSError):
                (settings / "tcp_congestion_control").write_text("cubic")
            with contextlib.suppress(OSError):
                (settings / "tcp_wmem").write_text(f"4096 {self._socket_bytes // 2} {self._socket_bytes}")
            with contextlib.suppress(OSError):  # idle between batches must not mean slow start
                (settings / "tcp_slow_start_after_idle").write_text("0")
            with IPRoute() as netlink:
                netlink.link("set", index=interface_index(netlink, "eth0"), gso_max_size=self._segment_bytes)
        finally:
            netns.popns()

    def port_bytes(self, host: str) -> list[int]:
        """Returns the bytes by wire class that the switch has sent to the host so far."""
        counts = {
            c["handle"] & 0xFFFF: int(c.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")["bytes"])
            for c in self._netlink.get_classes(index=self._index[host])
        }
        return [counts[16 + self.plan.dscp_to_priority[d]] for d in self.dscp]


class PortSample(msgspec.Struct):
    """What the switch had sent towards a host by a moment of CLOCK_MONOTONIC."""

    at_ns: int
    bytes_by_class: list[int]

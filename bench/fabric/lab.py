"""A switch and its hosts on one machine: network namespaces around a Linux bridge whose ports run the
fabric policy.

Every port of the switch is configured by `mfsctl switch`'s own code from a policy profile, so what is
measured is what an operator would apply. Needs root and a kernel with namespaces, veth, bridge and HTB.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyroute2 import netns

from mfsd.fabric.plan import Plan, make_plan
from mfsd.fabric.policy import EcnThresholds, PortGroup, Profile, load_profile
from mfsd.fabric.systems import linux
from mfsd.fabric.systems.linux.qdisc import interface_index, open_netlink
from mfsd.playground.network import ip

if TYPE_CHECKING:
    from typing_extensions import Self

CHUNK = bytes(65_536)
SO_SNDBUFFORCE = 32
FRAME_BYTES = 4200
"""The kernel may hand a device 64 KiB at once. No cable carries such frames, and a floor of 1 % would pay for one for
seconds: where floors are measured, frames are as large as RoCE's."""
IN_FLIGHT_BYTES = 400_000
"""What a flow may have on its way: less than a queue of the lab holds, so that nothing is lost and no
sender pauses for a retransmission timer, and enough to keep its queue filled while the sender waits for
a processor."""


def slow_profile(name: str, speed_gbps: float) -> Profile:
    """A shipped profile for ports of `speed_gbps`, slow enough for two cores to fill."""
    import msgspec

    profile = load_profile(name)
    ecn = EcnThresholds(speed_gbps=speed_gbps, min_bytes=10_240, max_bytes=524_288, mark_percent=10)
    return msgspec.structs.replace(
        profile,
        ecn=(ecn,),
        port_groups={"testbed": PortGroup(speed_gbps=speed_gbps, cable_m=1, mtu_bytes=1500)},
    )


def missing() -> str:
    """What this machine lacks for a lab, or the empty string."""
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    if shutil.which("tc") is None or shutil.which("ip") is None:
        return "needs iproute2"
    return ""


class Lab:
    """Hosts `names` around one switch. Host i has address 10.86.0.(i+1); its switch port is `p<i>`."""

    def __init__(
        self, names: list[str], profile: Profile, profile_name: str = "lab", frame_bytes: int | None = None
    ) -> None:
        """`frame_bytes`: the largest packet that a host hands its device at once; None: as the kernel likes."""
        self._frames = () if frame_bytes is None else ("gso_max_size", str(frame_bytes))
        self.names = names
        self.prefix = f"mfs{os.getpid()}"
        self.switch = f"{self.prefix}-switch"
        self.plan: Plan = make_plan(profile_name, profile, {"testbed": [f"p{i}" for i in range(len(names))]})
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def namespace(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def address(self, host: str) -> str:
        return f"10.86.0.{self.names.index(host) + 1}"

    def _build(self) -> None:
        for ns in (self.switch, *map(self.namespace, self.names)):
            ip("netns", "add", ns)
            self._cleanup.callback(ip, "netns", "del", ns)
            ip("-n", ns, "link", "set", "dev", "lo", "up")
        ip("-n", self.switch, "link", "add", "name", "br", "type", "bridge")
        ip("-n", self.switch, "link", "set", "dev", "br", "up")
        for i, host in enumerate(self.names):
            ns = self.namespace(host)
            peer = ("peer", "name", f"p{i}", "netns", self.switch)
            ip("-n", ns, "link", "add", "name", "eth0", "type", "veth", *peer)
            ip("-n", self.switch, "link", "set", "dev", f"p{i}", "master", "br", "up")
            ip("-n", ns, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", ns, "link", "set", "dev", "eth0", *self._frames, "up")
        linux.SYSTEM.apply_live(self.plan, self.switch)

    def socket_in(self, host: str) -> socket.socket:
        """A TCP socket that lives in the host's namespace."""
        netns.pushns(self.namespace(host))
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            netns.popns()


class PortCounters:
    """What the switch has sent to one host, by class of the policy, as its kernel counts it."""

    def __init__(self, lab: Lab, target: str) -> None:
        self._plan = lab.plan
        self._cleanup = ExitStack()
        self._netlink: Any = self._cleanup.enter_context(open_netlink(lab.switch))
        self._index = interface_index(self._netlink, f"p{lab.names.index(target)}")
        self.link_bytes_per_s = lab.plan.ports[0].speed_gbps * 1e9 / 8

    def read(self, *dscps: int) -> tuple[int, ...]:
        """Bytes sent of the class of each DSCP, at one moment."""
        counted = {
            c["handle"] & 0xFFFF: int(c.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")["bytes"])
            for c in self._netlink.get_classes(index=self._index)
        }
        return tuple(counted[16 + self._plan.dscp_to_priority[dscp]] for dscp in dscps)

    def wait_for(self, dscp: int, more_bytes: int, timeout_s: float = 30) -> None:
        """Waits until the class has sent that much more. Raises TimeoutError."""
        (before,), end = self.read(dscp), time.monotonic() + timeout_s
        while (moved := self.read(dscp)[0] - before) < more_bytes:
            if time.monotonic() > end:
                raise TimeoutError(f"DSCP {dscp}: {moved} of {more_bytes} bytes passed the switch in {timeout_s:g} s")
            time.sleep(0.001)

    def __enter__(self) -> PortCounters:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()


class Flow:
    """Bytes sent as fast as they go from one host to another with one DSCP, until stopped. Counts at the
    receiver."""

    def __init__(self, lab: Lab, source: str, target: str, dscp: int) -> None:
        listener = lab.socket_in(target)
        listener.bind((lab.address(target), 0))
        listener.listen(1)
        self._sender = lab.socket_in(source)
        self._sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        self._sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        self._sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, IN_FLIGHT_BYTES)
        self._sender.settimeout(20)
        self._sender.connect(listener.getsockname())
        self.dscp = dscp
        self._sending = threading.Event()
        self._sending.set()
        self._receiver, _ = listener.accept()
        listener.close()
        self._received = 0
        self._waited_for: int | None = None
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._send, daemon=True),
            threading.Thread(target=self._count, daemon=True),
        ]

    def start(self) -> Flow:
        for thread in self._threads:
            thread.start()
        return self

    def _send(self) -> None:
        self._sender.settimeout(None)
        try:
            while True:
                self._sending.wait()
                self._sender.sendall(CHUNK)
        except OSError:
            pass

    def _count(self) -> None:
        buffer = bytearray(1 << 18)
        try:
            while size := self._receiver.recv_into(buffer):
                with self._changed:
                    self._received += size
                    if self._waited_for is not None and self._received >= self._waited_for:
                        self._changed.notify_all()
        except OSError:
            pass

    @property
    def received_bytes(self) -> int:
        return self._received

    def wait_for(self, more_bytes: int, timeout_s: float = 30) -> int:
        """Waits until `more_bytes` more have arrived; returns how many had by then. Raises TimeoutError."""
        with self._changed:
            target = self._received + more_bytes
            self._waited_for = target
            if not self._changed.wait_for(lambda: self._received >= target, timeout_s):
                raise TimeoutError(f"{target - self._received} of {more_bytes} bytes did not arrive in {timeout_s} s")
            return self._received

    def pause(self) -> None:
        """Sends no more after what is on its way, until `go`."""
        self._sending.clear()

    def go(self) -> None:
        self._sending.set()

    def stop(self) -> None:
        """Aborts the connection, so that nothing of it is left in any queue of the hosts."""
        self._sending.set()
        linger = b"\x01\0\0\0\0\0\0\0"
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._sender.shutdown(socket.SHUT_RDWR)
        self._sender.close()
        for thread in self._threads:
            thread.join(10)
        self._receiver.close()

    def __enter__(self) -> Flow:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Counted(Protocol):
    """A running flow that can be waited for."""

    @property
    def received_bytes(self) -> int: ...

    def wait_for(self, more_bytes: int, timeout_s: float = 30) -> int: ...


def share_of_higher(high: Counted, low: Counted, measure_bytes: int, warm_up_bytes: int = 1_000_000) -> float:
    """While `high` moves `measure_bytes`: its part of what both moved. No clock is involved."""
    high.wait_for(warm_up_bytes)
    first_high, first_low = high.received_bytes, low.received_bytes
    high.wait_for(measure_bytes)
    last_high, last_low = high.received_bytes, low.received_bytes
    moved_high, moved_low = last_high - first_high, last_low - first_low
    return moved_high / (moved_high + moved_low)


class Pausable(Protocol):
    """A flow of one class that sends as fast as it can between `go` and `pause`."""

    dscp: int

    def pause(self) -> None: ...

    def go(self) -> None: ...


class Pair(NamedTuple):
    """How a higher and a lower class shared a port."""

    share_of_higher: float
    """Part of what both moved while both wanted all of the link."""
    resume_s: float
    """From the last byte of the higher class until the lower one had moved RESUMED_S of the link's time again."""


RESUMED_S = 0.02
"""So many seconds' worth of the whole link, which a floor alone would not give within the bound below."""
RESUME_BOUND_S = 0.1
"""What the design promises."""


def measure_pair(port: PortCounters, higher: Pausable, lower: Pausable, measure_bytes: int, warm_up_bytes: int) -> Pair:
    """Lets the lower class run, then both, then the lower alone again. Both are paused before and after.

    Everything is read from the switch port, so that what is measured is the switch's order, not the hosts' readers. A
    busy machine can only lengthen `resume_s`, by delaying a sender or a reading.
    """
    lower.go()
    port.wait_for(lower.dscp, warm_up_bytes)
    higher.go()
    port.wait_for(higher.dscp, warm_up_bytes)
    first_high, first_low = port.read(higher.dscp, lower.dscp)
    port.wait_for(higher.dscp, measure_bytes)
    last_high, last_low = port.read(higher.dscp, lower.dscp)
    higher.pause()
    resume_s = _resume(port, higher, lower)
    lower.pause()
    moved_high, moved_low = last_high - first_high, last_low - first_low
    return Pair(moved_high / (moved_high + moved_low), resume_s)


def _resume(port: PortCounters, higher: Pausable, lower: Pausable, timeout_s: float = 30) -> float:
    wanted = RESUMED_S * port.link_bytes_per_s
    high, low_at_end = port.read(higher.dscp, lower.dscp)
    ended = began = time.monotonic()
    while True:
        now_high, now_low = port.read(higher.dscp, lower.dscp)
        now = time.monotonic()
        if now_high != high:
            high, low_at_end, ended = now_high, now_low, now
        elif now_low - low_at_end >= wanted:
            return now - ended
        if now - began > timeout_s:
            raise TimeoutError(
                f"DSCP {lower.dscp} moved {now_low - low_at_end} bytes in {timeout_s:g} s beside nothing"
            )

"""Which NICs the node has, and what rate each is believed to have.

One NIC is one entry, however programs name it: two windows for one link would each be as large as the link. A device
name is unique on a host, so it decides. A GUID (0: not known) finds a device that a program calls by another name,
unless the host or the configuration knows that name for a device of its own. A virtual function or subfunction shares
its port with the physical one, so it is that NIC. Bonded ports are one NIC with all their functions. In both cases the
configuration can give a function a share of its own. In RDMA's exclusive mode of network namespaces this host's sysfs
does not show a function that was given away: the configuration then names its port.

A rate comes from the configuration, else from this host's sysfs, else from the first client that named the NIC among
those attached now. So no client can change the rate that another client's traffic is planned with. A rate that no port
can have is ignored and logged, whether a port or a program reports it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from mfsd._native import NICS_MAX
from mfsd.node.config import NicConfig
from mfsd.node.values import RateBytesPerS

SYSFS = Path("/sys/class/infiniband")
RATE_LEAST, RATE_MOST = RateBytesPerS.parse("8kbit"), RateBytesPerS.parse("10tbit")
"""Limits of a believable rate. The least is low, since tests slow links down."""


class NicRegistry(Protocol):
    def nic(self, name: str, guid: int, rate_bytes_per_s: int) -> int: ...


class Logger(Protocol):
    def warning(self, event: str, **values: object) -> None: ...


class NicTable:
    """Registers NICs with the arbiter."""

    def __init__(
        self,
        registry: NicRegistry,
        config: Mapping[str, NicConfig],
        host_rates: Callable[[], dict[str, int]] | None = None,
        physical: Callable[[str], str] | None = None,
        log: Logger | None = None,
        host_text: Callable[[str], str] | None = None,
    ) -> None:
        """``host_rates`` reads the rates in bytes/s of the host's devices (0: unknown). ``physical`` returns the device
        whose port a virtual function uses; any other device itself. ``host_text`` returns what a device's ports say of
        their rate."""
        self._registry = registry
        self._config = config
        self._host_rates = host_rates or read_host_rates
        self._physical = physical or read_physical
        self._log = log
        self._host_text = host_text or read_rate_text
        self._said: dict[str, str] = {}
        """The unbelievable rate that was last logged, by name."""
        self._index: dict[str, int] = {}
        self._guid: dict[str, int] = {}
        """The GUID that each NIC was first registered with: the arbiter tells NICs apart by name and GUID."""
        self._by_guid: dict[int, str] = {}
        self._announced: dict[str, tuple[int, set[int]]] = {}

    @property
    def count(self) -> int:
        """Number of NICs. Their indices are 0..count-1."""
        return len(self._index)

    def names(self) -> dict[int, str]:
        """Device names by index."""
        return {index: name for name, index in self._index.items()}

    def register(self, client_id: int, name: str, guid: int, rate_bytes_per_s: int) -> int:
        """Returns the index of the NIC. Raises OSError(ENOSPC) when the table is full."""
        host_rates = self._host_rates()
        name = self._canonical(name, guid, host_rates)
        if name not in self._index and self._free_slots(name, host_rates) <= 0:
            raise OSError(
                errno.ENOSPC,
                f"{NICS_MAX} NICs are known or kept for this host's devices, the most: its traffic is not scheduled; "
                "give fewer devices to programs under MFS, then restart mfsd",
            )
        announced, clients = self._announced.get(name, (0, set()))
        if not clients - {client_id} or announced == 0:
            announced = rate_bytes_per_s if RATE_LEAST <= rate_bytes_per_s <= RATE_MOST else 0
        rate = self.configured(name) or host_rates.get(name, 0) or announced
        self._doubt(name, host_rates, rate_bytes_per_s, rate)
        index = self._registry.nic(name, self._guid.get(name, guid), rate)
        self._guid.setdefault(name, guid)
        if guid:
            self._by_guid.setdefault(guid, name)
        self._announced[name] = (announced, clients | {client_id})
        self._index[name] = index
        return index

    def watched(self, name: str) -> int:
        """Returns the index of a device of this host whose traffic is seen, even if no program has named it. Raises
        OSError(ENOSPC) when the table is full."""
        return self._index[name] if name in self._index else self.register(0, name, read_guid(name), 0)

    def _canonical(self, name: str, guid: int, host_rates: Mapping[str, int]) -> str:
        """The name by which the table knows the NIC."""
        if name in self._config and self._config[name].port:
            return str(self._config[name].port)
        if name not in self._index and name not in self._config:
            name = self._physical(name)
        if name in self._index or name in host_rates or name in self._config:
            return name
        return self._by_guid.get(guid, name)

    def forget(self, client_id: int) -> None:
        """Drops a client that is gone. The rate it announced counts no longer once no other client has the NIC open."""
        for _, clients in self._announced.values():
            clients.discard(client_id)

    def reconfigure(self, config: Mapping[str, NicConfig]) -> None:
        self._config = config
        host_rates = self._host_rates()
        for name in self._index:
            announced, _ = self._announced[name]
            self._registry.nic(name, self._guid[name], self.configured(name) or host_rates.get(name, 0) or announced)

    def configured(self, name: str) -> int:
        """Its configured rate, or 0."""
        return int(self._config[name].rate_bytes_per_s or 0) if name in self._config else 0

    def _doubt(self, name: str, host_rates: Mapping[str, int], told: int, rate: int) -> None:
        """Logs an unbelievable rate once, and the rate that is planned with instead."""
        if self._log is None or self.configured(name):
            return
        says = self._host_text(name) if host_rates.get(name) == 0 else ""
        if not says and told and not host_rates.get(name) and not RATE_LEAST <= told <= RATE_MOST:
            says = f"{told * 8} bit/s, as a program found"
        if says and self._said.get(name) != says:
            self._said[name] = says
            self._log.warning(
                "nic-rate-unbelievable",
                nic=name,
                says=says,
                planned_with=str(RateBytesPerS(rate)) if rate else "arbiter.rate_default",
                remedy=f'set nic."{name}".rate',
            )

    def _free_slots(self, name: str, host_rates: dict[str, int]) -> int:
        """Slots that a NIC of this name may take. The host's real devices keep theirs, whatever names are made up."""
        known = {*map(self._physical, host_rates), *(nic.port or name for name, nic in self._config.items())}
        missing = known - self._index.keys()
        reserved = 0 if name in missing else len(missing)
        return NICS_MAX - len(self._index) - reserved


def read_host_rates(sysfs: Path = SYSFS) -> dict[str, int]:
    """Device names of this host, with the rate of the fastest port in bytes/s; 0 if it cannot be read."""
    try:
        devices = os.listdir(sysfs)  # noqa: PTH208 -- names are wanted, and a missing folder is the common case
    except OSError:
        return {}
    return {name: max((port_rate(port) for port in (sysfs / name / "ports").glob("*")), default=0) for name in devices}


def read_physical(name: str, sysfs: Path = SYSFS) -> str:
    """The device whose port a virtual function or subfunction uses; any other device itself."""
    device = sysfs / name / "device"
    physical = device / "physfn"
    try:
        function = physical if physical.exists() else device.resolve(strict=True).parent
        found = [path.name for path in function.glob("infiniband/*")]
        if not found:  # for two bonded functions the driver keeps one RDMA device with both ports
            found = [path.name for path in function.glob("net/*/master/lower_*/device/infiniband/*")]
    except (OSError, RuntimeError):  # the device is gone, or is on no bus; a loop of links
        return name
    return min(found, default=name)


def read_guid(name: str, sysfs: Path = SYSFS) -> int:
    """The GUID, or 0 if it cannot be read."""
    try:
        return int((sysfs / name / "node_guid").read_text().replace(":", ""), 16)
    except (OSError, ValueError):
        return 0


def read_rate_text(name: str, sysfs: Path = SYSFS) -> str:
    """What a device's ports say about their rate; empty if they say nothing."""
    texts = []
    for port in sorted((sysfs / name / "ports").glob("*")):
        try:
            texts.append((port / "rate").read_text(errors="replace").strip())
        except OSError:
            continue
    return ", ".join(filter(None, texts))


def port_rate(port: Path) -> int:
    """Reads ``100 Gb/sec (4X EDR)`` in a port's sysfs folder. Returns bytes/s; 0 if it cannot be read or believed."""
    try:
        number, unit, *_ = (port / "rate").read_text().split()
        rate = int(float(number) * 1e9 / 8)
    except (OSError, ValueError, OverflowError):
        return 0
    return rate if unit == "Gb/sec" and RATE_LEAST <= rate <= RATE_MOST else 0

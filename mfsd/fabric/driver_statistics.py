"""Reads the statistics that `ethtool -S` prints, many times a second: names are read once, values into one buffer."""

from __future__ import annotations

import ctypes
from collections.abc import Container, Mapping
from typing import Any

SPARE_VALUES = 4096
"""Room for values that a driver adds (as with `ethtool -L`) between the query of their number and the reading. The
kernel writes all values that exist then, whatever room it was given."""


class EthtoolStatistics:
    """Reads the driver's statistics of an interface, by name. OSError if there are none."""

    def __init__(self, only: Container[str] | None = None) -> None:
        """`only`: the wanted names, since a driver may have thousands; None: all."""
        self._only = only
        self._open: dict[str, _Interface] = {}

    def __call__(self, interface: str) -> Mapping[str, int]:
        from pyroute2.ethtool.ioctl import NoSuchDevice, NotSupportedError  # slow to import

        try:
            if interface not in self._open:
                self._open[interface] = _Interface(interface, self._only)
            return self._open[interface].read()
        except (OSError, NoSuchDevice, NotSupportedError) as error:
            self.close(interface)  # another device may have this name now
            raise OSError(f"{interface}: no statistics: {error}") from error

    def close(self, interface: str) -> None:
        if (opened := self._open.pop(interface, None)) is not None:
            opened.close()


class _Interface:
    def __init__(self, name: str, only: Container[str] | None) -> None:
        from pyroute2.ethtool.ioctl import IoctlEthtool

        self._handle = IoctlEthtool(name)
        self._only = only
        self._count = 0
        self._wanted: list[tuple[str, int]] = []
        self._values: Any = None

    def read(self) -> dict[str, int]:
        from pyroute2.ethtool.ioctl import ETH_SS_STATS

        count = self._handle.get_stringset_length(ETH_SS_STATS)
        if count != self._count or self._values is None:
            self._read_names(count)
        self._values.size = count  # newer kernels write nothing if there are more values by now
        self._handle.ifreq.gstats = ctypes.addressof(self._values)
        self._handle.ioctl()
        if self._values.size != count:
            self._count = 0
            raise OSError("the driver changed its statistics during the read")
        data = self._values.data
        return {name: data[at] for name, at in self._wanted}

    def _read_names(self, count: int) -> None:
        from pyroute2.ethtool.ioctl import ETH_SS_STATS, ETHTOOL_GSTATS, generate_EthtoolGStats

        names = self._handle.get_stringset(set_id=ETH_SS_STATS)
        if len(names) != count:
            raise OSError("the driver changed its statistics during the read")
        self._wanted = [(name, at) for at, name in enumerate(names) if self._only is None or name in self._only]
        self._values = generate_EthtoolGStats(count + SPARE_VALUES)(cmd=ETHTOOL_GSTATS)
        self._count = count

    def close(self) -> None:
        self._handle.close()

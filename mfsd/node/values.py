"""Values of the configuration file: written with units or words, kept as plain integers and text in the program.

Each class has ``parse`` (from what TOML holds; ValueError says what is allowed) and ``str()`` (what may be written).
Quantities are integers in the unit that the class names. Their unit words are those of Linux traffic control:
``10gbit`` is 10^10 bits per second.
"""

from __future__ import annotations

import grp
import ipaddress
import os
import pwd
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mfsd.proto.wire import address_problem

if TYPE_CHECKING:
    from typing_extensions import Self

_NUMBER_AND_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


class Quantity(int):
    """An integer in the unit of its class; subclasses list the unit words, largest last."""

    units: ClassVar[dict[str, int]]
    """Unit word -> its size in sub-units, in rising order."""
    divisor: ClassVar[int] = 1
    """Sub-units in one of the integer's units: 8 if words count bits and the integer counts bytes."""
    what: ClassVar[str]
    example: ClassVar[str]

    @classmethod
    def parse(cls, text: object) -> Self:
        """Reads ``text``. Raises ValueError that says what is allowed and gives an example."""
        if isinstance(text, str):
            match = _NUMBER_AND_UNIT.fullmatch(text.strip())
            if match is not None and match[2].lower() in cls.units:
                number, unit = match[1], cls.units[match[2].lower()]
                whole, _, fraction = number.partition(".")
                scaled = int(whole + fraction) * unit
                return cls(scaled // (10 ** len(fraction) * cls.divisor))
        raise ValueError(f"not {cls.what}; {cls.allowed()}")

    @classmethod
    def allowed(cls) -> str:
        """What may be written, for an error or a reference page."""
        return f'write a number and one of {", ".join(cls.units)}, for example "{cls.example}"'

    def __str__(self) -> str:
        value = int(self) * self.divisor
        for word, size in reversed(self.units.items()):
            if value >= size and value * 1000 % size == 0:
                whole, thousandths = divmod(value * 1000 // size, 1000)
                return f"{whole}.{thousandths:03d}".rstrip("0").rstrip(".") + word
        return f"{value}{next(iter(self.units))}"


class DurationNs(Quantity):
    """Nanoseconds."""

    units: ClassVar[dict[str, int]] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
    what = "a duration"
    example = "2ms"


class RateBytesPerS(Quantity):
    """Bytes per second, written in bits per second."""

    units: ClassVar[dict[str, int]] = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
    divisor = 8
    what = "a rate"
    example = "100gbit"


class SizeBytes(Quantity):
    """Bytes."""

    units: ClassVar[dict[str, int]] = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    what = "a size"
    example = "128kib"


class FileMode(int):
    """Permission bits, written in octal as text."""

    @classmethod
    def parse(cls, text: object) -> FileMode:
        if isinstance(text, str) and re.fullmatch(r"0?[0-7]{3}", text):
            return cls(int(text, 8))
        raise ValueError('not a file mode; write three octal digits as text, for example "0660"')

    def __str__(self) -> str:
        return f"{int(self):04o}"


class UserId(int):
    """A user, written as a name or a number."""

    @classmethod
    def parse(cls, text: object) -> UserId:
        if isinstance(text, int) and 0 <= text < 2**32 - 1 and not isinstance(text, bool):
            return cls(text)
        try:
            if isinstance(text, str):
                return cls(pwd.getpwnam(text).pw_uid)
        except KeyError:
            pass
        raise ValueError("no such user on this host; write a user's name or number")


class GroupId(int):
    """A group, written as a name or a number."""

    @classmethod
    def parse(cls, text: object) -> GroupId:
        if isinstance(text, int) and 0 <= text < 2**32 - 1 and not isinstance(text, bool):
            return cls(text)
        try:
            if isinstance(text, str):
                return cls(grp.getgrnam(text).gr_gid)
        except KeyError:
            pass
        raise ValueError("no such group on this host; write a group's name or number")


class CpuList(str):
    """Processors of this host, as Linux writes them: ``2-3,8``. Empty: any."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> CpuList:
        if not isinstance(text, str) or not (text == "" or _CPU_LIST.fullmatch(text)):
            raise ValueError('not a list of CPUs; write numbers and ranges, for example "2-3,8"')
        listed = cls(text)
        if text and not listed.numbers():
            raise ValueError('no CPU is in it; write the smaller number of a range first, for example "2-3"')
        usable = os.sched_getaffinity(0)
        if absent := sorted(listed.numbers() - usable):
            known = Path(f"/sys/devices/system/cpu/cpu{absent[0]}").exists()
            raise ValueError(
                f"CPU {absent[0]} {'is not among those that mfsd may use' if known else 'does not exist'}; "
                f"write some of {_cpu_ranges(usable)}, or nothing for any of them"
            )
        return listed

    def numbers(self) -> set[int]:
        numbers: set[int] = set()
        for part in filter(None, self.split(",")):
            first, _, last = part.partition("-")
            numbers |= set(range(int(first), int(last or first) + 1))
        return numbers


_CPU_LIST = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")


def _cpu_ranges(numbers: set[int]) -> str:
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in ranges)


class HostPort(str):
    """The address that a server listens on."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> HostPort:
        problem = address_problem(text) if isinstance(text, str) else "must be text"
        if problem is not None:
            raise ValueError(f'not an address; {problem}; write host and port, for example "coord-1:7400"')
        return cls(text)


class PortAddress(str):
    """The address of a NIC's port, IPv4 or IPv6."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> PortAddress:
        try:
            if isinstance(text, str):
                return cls(ipaddress.ip_address(text))
        except ValueError:
            pass
        raise ValueError('not an address; write an IPv4 or IPv6 address, for example "10.1.0.7"')


class PeerNetwork(str):
    """The remote ends that a rule applies to: an address or a network, IPv4 or IPv6 (GIDs are IPv6 addresses)."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> PeerNetwork:
        if isinstance(text, str):
            try:
                return cls(ipaddress.ip_network(text))
            except ValueError as error:
                raise ValueError(
                    f'{error}; write an address or a network, for example "10.1.0.0/16" or "fe80::/10"'
                ) from None
        raise ValueError('not a network; write an address or a network, for example "10.1.0.0/16"')

    def gid_prefix(self) -> tuple[bytes, int]:
        """The 16 bytes and the number of leading bits that count. IPv4 is written as ``::ffff:a.b.c.d``."""
        network = ipaddress.ip_network(self)
        if network.version == 4:
            return b"\0" * 10 + b"\xff\xff" + network.network_address.packed, network.prefixlen + 96
        return network.network_address.packed, network.prefixlen

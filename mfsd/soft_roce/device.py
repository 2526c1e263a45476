"""Writes the files of a soft RoCE device that programs read: those that a kernel driver would show in sysfs.

The files are in the user's runtime folder, in one directory for each device name and network namespace. They are
mounted over sysfs for every program launched with the device. All these programs therefore share one device, with one
GID, one rate limit (the file ``mfs_clock``, layout in csrc/soft_roce/rate.c) and one set of counters.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

CLOCK = struct.Struct("<QQQ40x")
CLOCK_MAGIC = 0x31656B6F6C63664D
COUNTERS_BYTES = 192
"""Size of the file ``mfs_counters``; its layout is in csrc/soft_roce/counters.c."""
COUNTER_TEXT = f"{0:023}\n"
COUNTERS = (
    "ports/1/counters/port_xmit_data",
    "ports/1/counters/port_rcv_data",
    *(f"ports/1/hw_counters/{direction}_prio{n}_bytes" for direction in ("tx", "rx") for n in range(8)),
)
"""The counters of drivers: some in words of four bytes, some in bytes by priority."""
NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,30}")


class DeviceError(Exception):
    """The device cannot be set up. The message says what is wrong and what to do."""


@dataclass(frozen=True)
class Device:
    """One device. ``rate_bytes_per_s`` is None if the user gave no rate, 0 for no limit."""

    name: str
    address: ipaddress.IPv4Address
    netdev: str
    rate_bytes_per_s: int | None

    def __post_init__(self) -> None:
        if not NAME_PATTERN.fullmatch(self.name):
            raise DeviceError(
                f"device name {self.name!r}: give a letter, then up to 30 letters, digits, '_', '.' or '-'"
            )


def runtime_folder() -> Path:
    """Returns the user's own folder for device state. DeviceError if another user could have prepared it."""
    uid = os.getuid()
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK | os.X_OK):
        folder = Path(base) / "mfs-soft-roce"
    elif uid == 0:
        folder = Path("/run/mfs-soft-roce")
    else:
        folder = Path(f"/tmp/mfs-soft-roce-{uid}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise DeviceError(f"{folder}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of your own") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        raise DeviceError(f"{folder} is not a folder that only you can write to; remove it or set XDG_RUNTIME_DIR")
    return folder


def _guid(address: ipaddress.IPv4Address) -> str:
    a, b, c, d = address.packed
    return f"0200:{a:02x}{b:02x}:{c:02x}{d:02x}:0001"


def _gid(address: ipaddress.IPv4Address) -> str:
    a, b, c, d = address.packed
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def sysfs_files(device: Device) -> dict[str, str]:
    """Returns path below /sys/class/infiniband/NAME -> content, without the clock and the counters."""
    return {
        "node_type": "1: CA",
        "node_guid": _guid(device.address),
        "sys_image_guid": _guid(device.address),
        "node_desc": "MFS soft RoCE",
        "fw_ver": "mfs-1",
        "hca_type": "MFS",
        "board_id": "MFS",
        "device/numa_node": "0",
        "ports/1/state": "4: ACTIVE",
        "ports/1/phys_state": "5: LinkUp",
        "ports/1/rate": "100 Gb/sec (4X EDR)",
        "ports/1/lid": "0x0",
        "ports/1/sm_lid": "0x0",
        "ports/1/link_layer": "Ethernet",
        "ports/1/cap_mask": "0x04010000",
        "ports/1/pkeys/0": "0xffff",
        "ports/1/gids/0": _gid(device.address),
        "ports/1/gid_attrs/types/0": "RoCE v2",
        "ports/1/gid_attrs/ndevs/0": device.netdev,
    }


class SharedDevice:
    """A device's directory, shared by all running programs that use the device.

    The launched program inherits the lock's descriptor. As long as a program holds it, the device is in use and keeps
    its address. The files of an unused device are written anew.
    """

    def __init__(self, device: Device, runtime: Path) -> None:
        self.device = device
        namespace = Path("/proc/self/ns/net").stat().st_ino
        self.folder = runtime / f"{device.name}@{namespace}"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.lock_fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        os.set_inheritable(self.lock_fd, True)
        # only one launcher at a time may decide this
        gate = os.open(runtime / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)
            try:
                fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._write_files()
            except BlockingIOError:
                self._join()
            fcntl.flock(self.lock_fd, fcntl.LOCK_SH)
        finally:
            os.close(gate)

    @property
    def sysfs(self) -> Path:
        return self.folder / "sysfs"

    def _write_files(self) -> None:
        for path, content in sysfs_files(self.device).items():
            file = self.sysfs / path
            file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            file.write_text(content + "\n")
        for path in COUNTERS:
            (self.sysfs / path).parent.mkdir(exist_ok=True)
            (self.sysfs / path).write_text(COUNTER_TEXT)
        (self.sysfs / "mfs_counters").write_bytes(bytes(COUNTERS_BYTES))
        clock = CLOCK.pack(CLOCK_MAGIC, self.device.rate_bytes_per_s or 0, 0)
        (self.sysfs / "mfs_clock").write_bytes(clock)

    def _join(self) -> None:
        """Checks that the device in use has the wanted address; sets a new rate if one is given. DeviceError."""
        wanted = sysfs_files(self.device)["ports/1/gids/0"]
        found = (self.sysfs / "ports/1/gids/0").read_text().strip()
        if found != wanted:
            raise DeviceError(
                f"device {self.device.name} is in use with GID {found}, not that of {self.device.address}; "
                "use another --device name or end the programs that use it"
            )
        if self.device.rate_bytes_per_s is None:
            return
        with (self.sysfs / "mfs_clock").open("r+b") as clock:
            clock.seek(8)
            clock.write(struct.pack("<Q", self.device.rate_bytes_per_s))

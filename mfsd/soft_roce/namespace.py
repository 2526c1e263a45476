"""Gives one program a private view of /sys/class and /dev, as root or as an ordinary user."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import socket
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND, MS_MOVE, MS_REC, MS_SLAVE = 0x1000, 0x2000, 0x4000, 0x80000
CAP_SYS_ADMIN = 21
NETLINK_RDMA = 20

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
# audit architecture, number of socket()
_SOCKET_CALL = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}

_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceError(Exception):
    """The host does not allow the private view. The message says why and what to do."""


def _call(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    argument = data.encode() if data else None
    _call(f"mount on {target}", _libc.mount(*encoded, ctypes.c_ulong(flags), argument))


def has_sys_admin() -> bool:
    """Whether this process may mount without a user namespace of its own."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


def enter_mount_namespace() -> None:
    """Moves this process into a new mount namespace, and into a new user namespace if that is necessary.

    The user namespace maps only the current user and group, to themselves, so the program keeps its identity.
    """
    uid, gid = os.getuid(), os.getgid()
    flags = CLONE_NEWNS if has_sys_admin() else CLONE_NEWNS | CLONE_NEWUSER
    try:
        _call("unshare", _libc.unshare(flags))
    except OSError as error:
        raise NamespaceError(_why_not(error, flags)) from None
    try:
        if flags & CLONE_NEWUSER:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        _mount("none", "/", None, MS_REC | MS_SLAVE)
    except OSError as error:
        raise NamespaceError(_why_not(error, flags)) from None


def _why_not(error: OSError, flags: int) -> str:
    if not flags & CLONE_NEWUSER:
        return f"cannot make a mount namespace ({error}); run on the host or add CAP_SYS_ADMIN"
    hint = "enable user namespaces (sysctl user.max_user_namespaces), or run as root"
    switches = {
        "/proc/sys/kernel/unprivileged_userns_clone": "0",
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
        "/proc/sys/user/max_user_namespaces": "0",
    }
    for path, off in switches.items():
        if Path(path).is_file() and Path(path).read_text().strip() == off:
            hint = f"{path} is {off}: an administrator can change it, or run as root"
    return f"cannot make a user namespace ({error}); {hint}"


def shadow(folder: Path, names: set[str], fill: Callable[[Path], None]) -> None:
    """Replaces ``folder`` by a copy in which ``fill`` makes the entries ``names``; all others are the original ones.

    The copy is a tmpfs whose entries are bind mounts of the original ones, so that device nodes and sysfs files also
    work in a user namespace.
    """
    staging = Path(tempfile.mkdtemp(prefix="mfs-soft-roce-"))
    try:
        _mount("mfs-soft-roce", str(staging), "tmpfs", 0, "mode=755")
        for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
            if entry.name not in names:
                _mirror(entry, staging / entry.name)
        fill(staging)
        _mount(str(staging), str(folder), None, MS_MOVE)
    except OSError as error:
        raise NamespaceError(f"cannot mount the device's files over {folder}: {error}") from None
    finally:
        # After the move this folder is empty again. If the move failed, the mount ends with the namespace.
        try:
            staging.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise


def _mirror(original: Path, copy: Path) -> None:
    if original.is_symlink():
        copy.symlink_to(original.readlink())
        return
    try:
        if original.is_dir():
            copy.mkdir()
        else:
            copy.touch()
        _mount(str(original), str(copy), None, MS_BIND | MS_REC)
    except FileNotFoundError:
        return  # it has been removed in the meantime


def lay_devices(sysfs: dict[str, Path]) -> None:
    """Shows the devices (name -> its files) in /sys/class and /dev/infiniband of this mount namespace."""

    def fill_class(target: Path) -> None:
        verbs = target / "infiniband_verbs"
        verbs.mkdir()
        (verbs / "abi_version").write_text("6\n")
        (target / "infiniband").mkdir()
        for index, (name, files) in enumerate(sysfs.items()):
            entry = verbs / f"uverbs{index}"
            entry.mkdir()
            (entry / "ibdev").write_text(f"{name}\n")
            (entry / "dev").write_text("1:3\n")  # /dev/null's number
            (entry / "abi_version").write_text("1\n")
            device = target / "infiniband" / name
            device.mkdir()
            _mount(str(files), str(device), None, MS_BIND)

    def fill_nodes(target: Path) -> None:
        for index in range(len(sysfs)):
            (target / f"uverbs{index}").symlink_to("/dev/null")

    def fill_dev(target: Path) -> None:
        (target / "infiniband").mkdir()
        fill_nodes(target / "infiniband")

    shadow(Path("/sys/class"), {"infiniband", "infiniband_verbs"}, fill_class)
    nodes = Path("/dev/infiniband")
    if nodes.is_dir():
        # its entries are real devices, which are hidden: all names `uverbs*` must be those of our devices
        shadow(nodes, {entry.name for entry in nodes.iterdir()}, fill_nodes)
    else:
        shadow(Path("/dev"), {"infiniband"}, fill_dev)


def kernel_has_rdma() -> bool:
    """Whether the kernel lists RDMA devices over netlink, which libibverbs prefers to sysfs."""
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA).close()
    except OSError:
        return False
    return True


def deny_netlink(protocol: int) -> None:
    """Makes socket(AF_NETLINK, *, protocol) fail for this process and its children."""
    machine = os.uname().machine
    if machine not in _SOCKET_CALL:
        raise NamespaceError(f"cannot hide the kernel's RDMA devices on {machine}; unload ib_core")
    architecture, number = _SOCKET_CALL[machine]
    load, equal, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPROTONOSUPPORT
    program = b"".join(
        struct.pack("HBBI", *step)
        for step in (
            (load, 0, 0, 4),  # architecture
            (equal, 0, 7, architecture),
            (load, 0, 0, 0),  # system call
            (equal, 0, 5, number),
            (load, 0, 0, 16),  # family
            (equal, 0, 3, socket.AF_NETLINK),
            (load, 0, 0, 32),  # protocol
            (equal, 0, 1, protocol),
            (give, 0, 0, refuse),
            (give, 0, 0, allow),
        )
    )
    steps = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(steps))
    argument = ctypes.create_string_buffer(header, len(header))
    result = _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(argument), 0, 0)
    try:
        _call("seccomp", result)
    except OSError as error:
        raise NamespaceError(f"cannot hide the kernel's RDMA devices: {error}") from None

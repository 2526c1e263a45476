"""RDMA devices: they are there, programs can open them, a port is up, and it has a RoCE v2 address."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, names_in, read_line
from mfsd.policy.service_levels import SERVICE_LEVELS

TITLE = "RDMA devices"
ROCE_V2 = "RoCE v2"
GID_INDEX = ("NCCL_IB_GID_INDEX", "MC_GID_INDEX", "NVSHMEM_IB_GID_INDEX", "UCX_IB_GID_INDEX")
CONTAINER_MARKS = (".dockerenv", "run/.containerenv")

NONE = Kind(
    "devices.none",
    "fail",
    "There is no RDMA device, so there is nothing to schedule.",
    "load the NIC's driver (modprobe mlx5_ib), or use mfs-soft-roce where there is no RDMA hardware",
)
NODES_MISSING = Kind(
    "devices.nodes-missing",
    "fail",
    "The kernel has the device, but its file in /dev/infiniband is missing: programs cannot open it.",
    "in a container: --device /dev/infiniband (Kubernetes: the RDMA device plugin); else: modprobe ib_uverbs",
)
NODES_DENIED = Kind(
    "devices.nodes-denied",
    "fail",
    "This user may not open the device's file in /dev/infiniband.",
    "give the user read and write permission (group rdma, or mode 0666 by a udev rule)",
)
NO_PORT = Kind(
    "devices.port-down", "warn", "The port is not active; nothing goes through it.", "check cable, switch port and link"
)
NO_GID_V2 = Kind(
    "devices.no-roce-v2",
    "fail",
    "The port has no RoCE v2 address: only RoCE v2 packets have a DSCP, so no class reaches the network.",
    "give the interface an IP address; with rdma_cm: set default_roce_mode to 'RoCE v2'",
)
GID_CHOICE = Kind(
    "devices.gid-index",
    "fail",
    "A variable makes a library use an address that is not RoCE v2: its packets carry no DSCP.",
    "unset the variable, or name an index of type RoCE v2 (show_gids, or gid_attrs/types in sysfs)",
)
INFINIBAND = Kind(
    "devices.infiniband",
    "warn",
    "The port runs InfiniBand, which has service levels in place of DSCPs, but nothing says which level a class has: "
    "MFS orders posting, but the network treats all packets as one class.",
    "start programs with mfs-run --policy NAME --infiniband, and have the subnet manager map the levels",
)
LEVELS = Kind(
    "devices.infiniband-levels",
    "info",
    "The port runs InfiniBand, and the environment gives each class its service level.",
    "have the subnet manager map the levels; the doctor cannot see whether it does",
)
CONTAINER = Kind(
    "devices.container",
    "info",
    "A container needs the daemon's socket, /dev/infiniband, locked memory and a large /dev/shm from its host.",
    "docker: -v /run/mfs:/run/mfs --device /dev/infiniband --ulimit memlock=-1 --shm-size 16g; run the doctor on the "
    "host, too",
)
USABLE = Kind("devices.usable", "ok", "The port is active, has a RoCE v2 address, and its file can be opened.")


def run(host: Host) -> Iterator[Finding]:
    marks = [host.root / mark for mark in CONTAINER_MARKS if (host.root / mark).exists()]
    if marks:
        yield CONTAINER(f"{marks[0]} exists")
    if not host.devices:
        yield NONE(f"{host.sys / 'class/infiniband'} is empty or missing")
        return
    nodes = _nodes(host)
    for device in host.devices:
        problems = [*_openable(host, device, nodes.get(device))]
        good: list[str] = []
        for port in names_in(host.sys / "class/infiniband" / device / "ports"):
            found = [*_port(host, device, port)]
            problems += found
            if not found:
                good.append(f"port {port} has GID index {_first_v2(host, device, port)} of type {ROCE_V2}")
        yield from problems
        if good and not problems:
            yield USABLE("; ".join(good), device)


def _nodes(host: Host) -> dict[str, str]:
    """The file in /dev/infiniband of each device."""
    folder = host.sys / "class/infiniband_verbs"
    return {read_line(folder / name / "ibdev"): name for name in names_in(folder) if name.startswith("uverbs")}


def _openable(host: Host, device: str, node: str | None) -> Iterator[Finding]:
    if node is None:
        yield NODES_MISSING(
            f"{host.sys / 'class/infiniband_verbs'} has no entry for it: ib_uverbs is not loaded", device
        )
        return
    path = host.dev / "infiniband" / node
    if not path.exists():
        yield NODES_MISSING(f"{path} does not exist", device)
    elif not os.access(path, os.R_OK | os.W_OK):
        yield NODES_DENIED(f"{path}: not readable and writable by uid {os.geteuid()}", device)


def gids(host: Host, device: str, port: str) -> dict[int, str]:
    """GID index -> type, of the indices in use."""
    return {index: gid.type for index, gid in host.port(device, int(port)).gids.items()}


def _first_v2(host: Host, device: str, port: str) -> int:
    return next(i for i, kind in gids(host, device, port).items() if kind == ROCE_V2)


def _port(host: Host, device: str, port: str) -> Iterator[Finding]:
    subject = f"{device} port {port}"
    found = host.port(device, int(port))
    if "ACTIVE" not in found.state:
        yield NO_PORT(f"state is {found.state or 'unreadable'}", subject)
        return
    owner, environ = host.program_environ
    if found.link == "InfiniBand":
        named = environ.get(SERVICE_LEVELS, "")
        levels = f"{SERVICE_LEVELS}={named}" if named else f"{SERVICE_LEVELS} is not set"
        yield (LEVELS if named else INFINIBAND)(f"link_layer is InfiniBand; {levels} ({owner})", subject)
        return
    types = gids(host, device, port)
    if ROCE_V2 not in types.values():
        yield NO_GID_V2(f"GID types: {', '.join(sorted(set(types.values()))) or 'none'}", subject)
        return
    yield from _choices(environ, owner, types, subject)


def _choices(environ: Mapping[str, str], owner: str, types: Mapping[int, str], subject: str) -> Iterator[Finding]:
    for name in GID_INDEX:
        value = environ.get(name, "")
        if value.isdigit() and types.get(int(value)) != ROCE_V2:
            kind = types.get(int(value), "not in use")
            yield GID_CHOICE(f"{name}={value} ({owner}) is {kind}; RoCE v2 here: {_v2(types)}", subject)


def _v2(types: Mapping[int, str]) -> str:
    return ", ".join(str(i) for i, kind in types.items() if kind == ROCE_V2)

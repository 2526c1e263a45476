"""Paths on which the GPU or a library drives the NIC itself, past libibverbs and so past the shim.

Seen by the environment (of --pid, else of this shell), by what --pid has mapped, by packages, by the driver, and by the
counters of ports that the daemon reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from mfsd.fabric.libraries import LIBRARIES, Library
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, NoAnswer, read_line
from mfsd.observe.doctor.launching import ask_probe, python
from mfsd.observe.doctor.running import mapped_files
from nccl_shim.run import LIBRARY

TITLE = "Paths past the shim"
TRUE = ("1", "true", "yes", "on", "y", "t")
UCX_VERBS_ONLY = {
    "rc_verbs",
    "ud_verbs",
    "rc_v",
    "ud_v",
    "tcp",
    "sm",
    "shm",
    "mm",
    "posix",
    "sysv",
    "self",
    "cma",
    "knem",
}
UCX_VERBS_ONLY |= {"xpmem", "cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc"}

IBGDA = Kind(
    "bypass.ibgda",
    "fail",
    "NVSHMEM's IBGDA lets GPU threads ring the NIC's doorbell: those bytes are neither counted nor held.",
    "give it the class of collectives (mfs-run --policy NAME, or mfsctl host env), so that KV does not go before it; "
    "NVSHMEM_IB_ENABLE_IBGDA=0 has a thread of the host post instead",
)
GIN = Kind(
    "bypass.nccl-gin",
    "fail",
    "NCCL's GPU-initiated networking posts from the GPU (GDAKI): those bytes are neither counted nor held.",
    "give it the class of collectives (mfs-run --policy NAME, or mfsctl host env); NCCL_GIN_TYPE=2 has NCCL's own "
    "proxy thread post instead, through libibverbs",
)
GIN_POSSIBLE = Kind(
    "bypass.nccl-gin-possible",
    "info",
    "This NCCL chooses by itself whether device-side collectives post from the GPU. Ordinary collectives never do.",
    "if kernels use NCCL's device API: NCCL_GIN_TYPE=2; otherwise nothing is to be done",
)
DEEPEP = Kind(
    "bypass.deepep",
    "warn",
    "DeepEP's all-to-all posts from the GPU (IBGDA or GIN); MFS sees neither its bytes nor its stage.",
    "give it the class of collectives (mfs-run --policy NAME, or mfsctl host env), or use an all-to-all backend on "
    "NCCL or CPU-driven verbs",
)
UCX = Kind(
    "bypass.ucx",
    "warn",
    "UCX drives the NIC's queues itself (rc_mlx5 and dc_mlx5 on ConnectX, SRD on EFA) unless it is set to use verbs.",
    "UCX_TLS=rc_verbs,cuda,sm,self; for NIXL from C++ and Rust: mfs-run --nixl-backend UCX; nothing, if UCX carries "
    "only NIXL's transfers from Python (docs/nixl.md)",
)
NIXL = Kind(
    "bypass.nixl-plugin",
    "ok",
    "NIXL's backend asks for permits itself, whatever UCX does below it.",
)
DIRECT = Kind(
    "bypass.direct-mapped",
    "fail",
    "The process has mapped a library that drives the NIC from the GPU.",
    "see bypass.ibgda and bypass.nccl-gin for the switches of each library",
)
ASYNC = Kind(
    "bypass.gpu-async",
    "info",
    "The GPU driver lets GPU threads write to the NIC (PeerMappingOverride), as IBGDA and GPUDirect Async need.",
    'nothing, if no program uses them; the driver option is NVreg_RegistryDwords="PeerMappingOverride=1;"',
)
UNREADABLE = Kind(
    "bypass.unreadable",
    "unknown",
    "The variables or mapped files of the process may not be read by this user: it may drive the NIC past the shim.",
    "run the doctor as root or as the program's user",
)
MEASURED = Kind(
    "bypass.measured",
    "warn",
    "The port sends more than a tenth of its rate that no program with the shim on this node has posted.",
    "start every program with mfs-run, and see the other findings of this check; what peers read from here (RDMA READ) "
    "is counted, too, and needs nothing",
)
MEASURED_SHARE = 0.1
NONE = Kind("bypass.none", "ok", "Nothing was seen that drives the NIC past the shim.")
NIXL_PLUGIN = "libplugin_MFS.so"
MAPPED_DIRECT = ("nvshmem_transport_ibgda", "libdoca_gpunetio", "deep_ep_cpp")


def run(host: Host) -> Iterator[Finding]:
    owner, environ = host.program_environ
    mapped, unread = [], host.environ_problem
    try:
        mapped = _mapped(host)
    except OSError as error:
        unread = unread or f"{host.proc / str(host.pid) / 'maps'}: {error.strerror}"
    problems = [*_nvshmem(environ, owner), *_gin(environ, owner, mapped), *_ucx(environ, owner, mapped)]
    problems += _direct(mapped, host.pid)
    problems += _deepep(host)
    problems += _driver(host)
    problems += _measured(host)
    yield from problems
    if unread:
        yield UNREADABLE(unread, owner)
    elif not any(p.severity in ("fail", "warn") for p in problems):
        yield NONE(f"environment of {owner}" + (f", {len(mapped)} mapped files" if mapped else ""))


def bypassing(host: Host) -> frozenset[Library]:
    """Libraries of collectives that drive the NIC past the shim: those that the environment turns on, or that the
    process has mapped."""
    _, environ = host.program_environ
    try:
        mapped = _mapped(host)
    except OSError:
        mapped = []
    deepep = any("deep_ep_cpp" in name for name in mapped)
    nvshmem = any("nvshmem" in name for name in mapped)
    names = set()
    if environ.get("NVSHMEM_IB_ENABLE_IBGDA", "").lower() in TRUE or any(MAPPED_DIRECT[0] in name for name in mapped):
        names.add("NVSHMEM_IB_TRAFFIC_CLASS")
    if environ.get("NCCL_GIN_TYPE") == "3" and environ.get("NCCL_GIN_ENABLE", "1") != "0":
        names.add("NCCL_GIN_IB_TC")
    if deepep:
        names.add("NVSHMEM_IB_TRAFFIC_CLASS" if nvshmem else "NCCL_GIN_IB_TC")
    return frozenset(library for library in LIBRARIES if library.traffic_class in names)


def _mapped(host: Host) -> list[str]:
    """Raises OSError."""
    return [] if host.pid is None else [str(m.path) for m in mapped_files(host.proc / str(host.pid))]


def _nvshmem(environ: Mapping[str, str], owner: str) -> Iterator[Finding]:
    value = environ.get("NVSHMEM_IB_ENABLE_IBGDA", "")
    if value.lower() in TRUE:
        yield IBGDA(f"NVSHMEM_IB_ENABLE_IBGDA={value} ({owner})", "NVSHMEM")


def _gin(environ: Mapping[str, str], owner: str, mapped: list[str]) -> Iterator[Finding]:
    kind = environ.get("NCCL_GIN_TYPE", "")
    enabled = environ.get("NCCL_GIN_ENABLE", "1") != "0"
    if enabled and kind == "3":
        yield GIN(f"NCCL_GIN_TYPE=3 ({owner})", "NCCL")
    elif enabled and kind in ("", "-1") and any("libnccl.so" in name for name in mapped):
        yield GIN_POSSIBLE("libnccl is mapped, NCCL_GIN_TYPE is not set", "NCCL")


def _ucx(environ: Mapping[str, str], owner: str, mapped: list[str]) -> Iterator[Finding]:
    plugin = [name for name in mapped if name.endswith(NIXL_PLUGIN)]
    folder = environ.get("NIXL_PLUGIN_DIR", "")
    if plugin or (folder and (Path(folder) / NIXL_PLUGIN).is_file()):
        yield NIXL(f"{plugin[0]} is mapped" if plugin else f"NIXL_PLUGIN_DIR={folder} ({owner})", "NIXL")
        return
    transports = {t.strip() for t in environ.get("UCX_TLS", "").lower().split(",") if t.strip()}
    direct = [name for name in mapped if "libuct_ib" in name]
    if transports and not transports <= UCX_VERBS_ONLY:
        yield UCX(f"UCX_TLS={environ['UCX_TLS']} ({owner})", "UCX")
    elif direct and not transports:
        yield UCX(f"{direct[0]} is mapped, UCX_TLS is not set", "UCX")


def _direct(mapped: list[str], pid: int | None) -> Iterator[Finding]:
    for name in mapped:
        if any(part in name for part in MAPPED_DIRECT):
            yield DIRECT(f"{name} is mapped", f"pid {pid}")


def _deepep(host: Host) -> Iterator[Finding]:
    if not LIBRARY.is_file():
        return
    try:
        packages = ask_probe(host).packages
    except NoAnswer:
        return  # preload.probe-failed says it
    if "deep_ep" in packages:
        yield DEEPEP(f"{packages['deep_ep']} is installed for {python(host)}", "DeepEP")


def _measured(host: Host) -> Iterator[Finding]:
    daemon = host.daemon()
    for nic in daemon.nics if daemon is not None else ():
        if nic.port is not None and nic.port.bypass_bytes_per_s > MEASURED_SHARE * nic.rate_bytes_per_s:
            rates = f"{nic.port.bypass_bytes_per_s / 1e6:.0f} of {nic.rate_bytes_per_s / 1e6:.0f} MB/s"
            yield MEASURED(f"{rates}, by the port's counters less what programs posted", nic.name)


def _driver(host: Host) -> Iterator[Finding]:
    parameters = read_line(host.proc / "driver/nvidia/params")
    if (found := re.search(r"PeerMappingOverride=(\d+)", parameters)) and found[1] != "0":
        yield ASYNC(f"{host.proc / 'driver/nvidia/params'}: PeerMappingOverride={found[1]}", "GPU driver")
